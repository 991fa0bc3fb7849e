"""Name the CPUs, GPUs and TPUs that a job needs, and what they can do."""

from fray_resources._config import ResourceConfig
from fray_resources._devices import CpuConfig, DeviceConfig, GpuConfig, TpuConfig
from fray_resources._gpu import gpu_types
from fray_resources._jax import device_flops_for_jax_device
from fray_resources._sizes import format_size, parse_size
from fray_resources._tpu import tpu_topologies, tpu_types

__all__ = [
    "CpuConfig",
    "DeviceConfig",
    "GpuConfig",
    "ResourceConfig",
    "TpuConfig",
    "device_flops_for_jax_device",
    "format_size",
    "gpu_types",
    "parse_size",
    "tpu_topologies",
    "tpu_types",
]
