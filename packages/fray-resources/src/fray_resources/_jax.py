"""Peak rates of the devices that JAX sees, by `jax.Device.device_kind`."""

from __future__ import annotations

from fray_resources._flops import GPU_PEAKS, PCIE_PEAKS, TPU_PEAKS, Peak, known_rate

# What JAX calls a device of each generation, and how many such devices make up a chip: it sees the two
# TensorCores of v2, v3 and v7x one by one, and joins those of v4 and v5p.
_TPU_KINDS = {
    "tpu v2": ("v2", 2),
    "tpu v3": ("v3", 2),
    "tpu v4": ("v4", 1),
    "tpu v5 lite": ("v5litepod", 1),
    "tpu v5e": ("v5litepod", 1),
    "tpu v5": ("v5p", 1),
    "tpu v5p": ("v5p", 1),
    "tpu v6 lite": ("v6e", 1),
    "tpu v6e": ("v6e", 1),
    "tpu7x": ("v7x", 2),
    "tpu v7x": ("v7x", 2),
}
# Words of a GPU's name that do not make it another chip.
_NEUTRAL = {"nvidia", "geforce", "tesla", "amd", "instinct", "oam", "pcie"}


def device_flops_for_jax_device(device_kind: str, dtype: str = "bf16") -> float | None:
    """Return the peak dense rate of one JAX device in operations per second; None where none is known.

    Multiplied by `jax.device_count()` it is the peak of a program, for MFU: of a TPU v2, v3 or v7x it is
    the rate of half a chip, for JAX sees their TensorCores one by one. A variant of a GPU that no source
    here covers (`H100 NVL`, a laptop's) has no rate rather than that of its relative.

    Args:
        device_kind: `jax.devices()[0].device_kind`: `TPU v4`, `NVIDIA A100-SXM4-80GB`, `cpu`.
        dtype: As in `device_flops`.

    Raises:
        ValueError: `dtype` is the name of no number format.
    """
    kind = " ".join(device_kind.lower().split())
    if kind in _TPU_KINDS:
        generation, parts = _TPU_KINDS[kind]
        return _part(known_rate(TPU_PEAKS[generation], dtype), parts)
    return known_rate(_gpu_peak(kind), dtype)


def _part(rate: float | None, parts: int) -> float | None:
    return None if rate is None else rate / parts


def _gpu_peak(kind: str) -> Peak | None:
    words = "".join(letter if letter.isalnum() else " " for letter in kind).split()
    matters = [word for word in words if word not in _NEUTRAL and not _is_module_or_memory(word)]
    key = "".join(matters)
    name = next((name for name in GPU_PEAKS if name.replace("-", "").lower() == key), None)
    if name is None:
        return None
    return PCIE_PEAKS.get(name, GPU_PEAKS[name]) if "pcie" in words else GPU_PEAKS[name]


def _is_module_or_memory(word: str) -> bool:
    return word.startswith(("sxm", "hbm")) or (word.endswith("gb") and word[:-2].isdigit())
