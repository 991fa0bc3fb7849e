"""What a replica computes on."""

from __future__ import annotations

from fray_resources._errors import check_count, check_keys, invalid
from fray_resources._flops import GPU_PEAKS, TPU_PEAKS, rate
from fray_resources._gpu import ANY, canonical_gpu
from fray_resources._tpu import find_slice
from fray_resources._value import fill, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@value(frozen=True)
class CpuConfig:
    """No accelerator."""

    __slots__ = ()
    __match_args__ = ()
    kind = "cpu"

    def __init__(self) -> None:
        pass

    @property
    def chips(self) -> int:
        """Accelerator chips of one replica: none."""
        return 0

    @property
    def variant(self) -> str:
        """What kind of CPU: not distinguished here."""
        return self.kind

    def device_flops(self, dtype: str = "bf16") -> float:
        """Refuse: rates of CPUs are not known here.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"a CPU has no known peak rate (dtype {dtype!r}); use a GpuConfig or a TpuConfig")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` takes."""
        return {"kind": self.kind}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CpuConfig:
        """Make the device that `to_dict` described."""
        return cls(**_fields("CpuConfig", cls.kind, data, ()))


@value(frozen=True)
class GpuConfig:
    """GPUs of one replica.

    Attributes:
        type: The canonical name, such as those of `gpu_types()`; `any` for whichever the machine has.
        count: How many of them a replica has.
    """

    __slots__ = ("count", "type")
    __match_args__ = ("type", "count")
    kind = "gpu"
    type: str
    count: int

    def __init__(self, type: str = ANY, count: int = 1) -> None:  # noqa: A002 - the name of the field
        """Take any spelling of a GPU type: `H100`, `h100`, `NVIDIA H100`; also one that no table here knows.

        Raises:
            ValueError: The type is not the name of a GPU, or the count not a whole number of 1 or more.
        """
        fill(self, type=canonical_gpu(type), count=check_count("count", count))

    @property
    def chips(self) -> int:
        """Accelerator chips of one replica."""
        return self.count

    @property
    def variant(self) -> str:
        """Another name of `type`."""
        return self.type

    @property
    def flops_source(self) -> str | None:
        """Where the figures of `device_flops` are from; None where none are known."""
        return GPU_PEAKS[self.type].source if self.type in GPU_PEAKS else None

    def device_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate of one GPU in operations per second.

        Args:
            dtype: `bf16`, `fp16`, `fp32`, `tf32`, `fp8`, `fp4`, `int8`, or a longer name of one.

        Raises:
            ValueError: No figure is known for this GPU and dtype.
        """
        return rate(self.type, GPU_PEAKS.get(self.type), dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` takes."""
        return {"kind": self.kind, "type": self.type, "count": self.count}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GpuConfig:
        """Make the device that `to_dict` described."""
        return cls(**_fields("GpuConfig", cls.kind, data, ("type", "count")))


@value(frozen=True)
class TpuConfig:
    """A TPU slice: chips on one or more hosts, wired together.

    Attributes:
        type: The canonical name, one of `tpu_types()`.
        count: Chips used on each host.
        topology: How the chips of the slice are wired, such as `4x4` or `2x2x1`.
    """

    __slots__ = ("count", "topology", "type")
    __match_args__ = ("type", "count", "topology")
    kind = "tpu"
    type: str
    count: int
    topology: str

    def __init__(
        self,
        type: str,  # noqa: A002 - the name of the field
        count: int | None = None,
        topology: str | None = None,
    ) -> None:
        """Name a slice; what is left out is filled in with what the type has.

        Args:
            type: Such as `v5litepod-16` (or `v5e-16`): 16 chips; `v4-16`: 16 TensorCores, 8 chips.
            count: Chips on each host. The slice then has `chips / count` hosts, so only the sizes
                of machine that the type comes on are taken: 4 or 8 for larger v5e and v6e slices.
            topology: One of `tpu_topologies(type)`; the sides may come in any order.

        Raises:
            ValueError: The type is not known, or cannot have this count or topology.
        """
        slice_ = find_slice(type)
        if count is None:
            count = slice_.host_chips[0]
        elif check_count("count", count) not in slice_.host_chips:
            allowed = " or ".join(str(chips) for chips in slice_.host_chips)
            raise invalid("count", f"{allowed}, the chips on each host of a {slice_.name}", count)
        wiring = slice_.topologies[0] if topology is None else slice_.topology(topology)
        fill(self, type=slice_.name, count=int(count), topology=wiring)

    @property
    def chips(self) -> int:
        """Chips of one slice, on all its hosts."""
        return find_slice(self.type).chips

    @property
    def chips_per_host(self) -> int:
        """Chips on each host; the same as `count`."""
        return self.count

    @property
    def hosts(self) -> int:
        """Machines of one slice."""
        return self.chips // self.count

    @property
    def variant(self) -> str:
        """Another name of `type`."""
        return self.type

    @property
    def generation(self) -> str:
        """What the type starts with: `v5litepod` of `v5litepod-16`."""
        return self.type.partition("-")[0]

    @property
    def flops_source(self) -> str | None:
        """Where the figures of `device_flops` are from."""
        return TPU_PEAKS[self.generation].source

    def device_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate of one chip in operations per second.

        Args:
            dtype: `bf16`, `fp8`, `int8`, or a longer name of one.

        Raises:
            ValueError: No figure is known for this generation and dtype.
        """
        return rate(f"TPU {self.generation}", TPU_PEAKS[self.generation], dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that `from_dict` takes."""
        return {"kind": self.kind, "type": self.type, "count": self.count, "topology": self.topology}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TpuConfig:
        """Make the device that `to_dict` described."""
        return cls(**_fields("TpuConfig", cls.kind, data, ("type", "count", "topology")))


DeviceConfig = CpuConfig | GpuConfig | TpuConfig

_BY_KIND: dict[object, type[CpuConfig] | type[GpuConfig] | type[TpuConfig]] = {
    "cpu": CpuConfig,
    "gpu": GpuConfig,
    "tpu": TpuConfig,
}


def _fields(owner: str, kind: str, data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    check_keys(owner, data, ("kind", *names))
    if data.get("kind", kind) != kind:
        raise invalid("kind", f"{kind!r} for a {owner}", data["kind"])
    if "type" in names and "type" not in data:
        raise ValueError(f"the data of a {owner} must have a 'type', got {data!r}")
    return {name: data[name] for name in names if name in data}


def device_from_dict(data: Any) -> DeviceConfig:
    """Make the device of the `kind` that the data names."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _BY_KIND:
        kinds = ", ".join(repr(known) for known in _BY_KIND)
        raise invalid("device", f"a dict whose 'kind' is one of {kinds}", data)
    return _BY_KIND[kind].from_dict(data)
