"""What one replica of a job needs, and how many there are."""

from __future__ import annotations

from fray_resources._devices import CpuConfig, DeviceConfig, GpuConfig, TpuConfig, device_from_dict
from fray_resources._errors import check_count, check_keys, invalid
from fray_resources._gpu import ANY
from fray_resources._sizes import format_size, parse_size
from fray_resources._value import fill, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, TypedDict, Unpack

    class _Common(TypedDict, total=False):
        cpu: float
        ram: str | int
        disk: str | int
        preemptible: bool
        regions: Iterable[str] | None

    class _Fields(_Common, total=False):
        replicas: int | Sequence[int]


_CPU_ONLY = CpuConfig()


@value(frozen=True)
class ResourceConfig:
    """The resources of one replica, and the number of replicas.

    Two that mean the same are equal, because every field is normalized to one form.

    Attributes:
        cpu: Cores; may be a fraction.
        ram: Memory, in the form of `format_size`.
        disk: Disk space, in the form of `format_size`.
        device: The accelerator of each replica.
        replicas: How many run; or the numbers that are acceptable, the preferred one first. A local
            job gets the first for which there is room, a gang on Ray the largest; all else the first.
            A replica of a TPU job is a slice.
        preemptible: Whether it may run on machines that can be taken away.
        regions: Where it may run, the preferred one first; None for anywhere.
    """

    __slots__ = ("cpu", "device", "disk", "preemptible", "ram", "regions", "replicas")
    __match_args__ = ("cpu", "ram", "disk", "device", "replicas", "preemptible", "regions")
    cpu: float
    ram: str
    disk: str
    device: DeviceConfig
    replicas: int | tuple[int, ...]
    preemptible: bool
    regions: tuple[str, ...] | None

    def __init__(
        self,
        cpu: float = 1,
        ram: str | int = "1g",
        disk: str | int = "16g",
        device: DeviceConfig = _CPU_ONLY,
        replicas: int | Sequence[int] = 1,
        preemptible: bool = True,
        regions: Iterable[str] | None = None,
    ) -> None:
        """Check and normalise every field.

        Args:
            cpu: Cores, above zero.
            ram: `"512m"`, `"8g"`, `"1.5TiB"`, a bare `"16"` (GiB), or an int of bytes.
            disk: The same.
            device: A `CpuConfig`, `GpuConfig` or `TpuConfig`.
            replicas: 1 or more; or a list of different such numbers.
            preemptible: True or False.
            regions: Names of regions; a single name goes in a list too.

        Raises:
            ValueError: A field is none of these; the message names it.
        """
        fill(
            self,
            cpu=_cpu(cpu),
            ram=format_size(parse_size(ram, field="ram")),
            disk=format_size(parse_size(disk, field="disk")),
            device=_device(device),
            replicas=_replicas(replicas),
            preemptible=_preemptible(preemptible),
            regions=_regions(regions),
        )

    @property
    def ram_bytes(self) -> int:
        """Memory in bytes."""
        return parse_size(self.ram)

    @property
    def disk_bytes(self) -> int:
        """Disk space in bytes."""
        return parse_size(self.disk)

    def chip_count(self, *, replicas: int | None = None) -> int:
        """Return the accelerator chips of all replicas, none for a CPU job.

        Args:
            replicas: How many run, where several numbers are acceptable.

        Raises:
            ValueError: The number of replicas is open or not acceptable.
        """
        return self.device.chips * self._running(replicas, "chip_count")

    def device_flops(self, dtype: str = "bf16") -> float:
        """Return the peak dense rate of one chip in operations per second.

        Raises:
            ValueError: The device is a CPU, or has no known figure for this dtype.
        """
        return self.device.device_flops(dtype)

    def total_flops(self, dtype: str = "bf16", *, replicas: int | None = None) -> float:
        """Return the peak dense rate of all chips of all replicas in operations per second.

        Args:
            dtype: `bf16`, `fp8`, `int8`, or any other that the device has.
            replicas: How many run, where several numbers are acceptable.

        Raises:
            ValueError: No rate is known, or the number of replicas is open or not acceptable.
        """
        running = self._running(replicas, "total_flops")
        return self.device_flops(dtype) * self.device.chips * running

    def _running(self, replicas: int | None, asked_by: str) -> int:
        acceptable = (self.replicas,) if isinstance(self.replicas, int) else self.replicas
        running = acceptable[0] if replicas is None and len(acceptable) == 1 else replicas
        if running not in acceptable or isinstance(running, bool):
            allowed = " or ".join(str(number) for number in acceptable)
            raise invalid("replicas", f"given to {asked_by} as {allowed}", replicas)
        return running

    def to_dict(self) -> dict[str, Any]:
        """Return data of plain dicts, lists, strings, numbers and booleans that `from_dict` takes."""
        return {
            "cpu": self.cpu,
            "ram": self.ram,
            "disk": self.disk,
            "device": self.device.to_dict(),
            "replicas": self.replicas if isinstance(self.replicas, int) else list(self.replicas),
            "preemptible": self.preemptible,
            "regions": None if self.regions is None else list(self.regions),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ResourceConfig:
        """Make the config that `to_dict` described; what is left out has its default.

        Raises:
            ValueError: A key or a value is not one of a `ResourceConfig`.
        """
        check_keys("ResourceConfig", data, cls.__match_args__)
        if "device" in data:
            data = data | {"device": device_from_dict(data["device"])}
        return cls(**data)

    @classmethod
    def with_tpu(
        cls,
        type: str | None = None,  # noqa: A002 - as in TpuConfig
        slices: int | Sequence[int] | None = None,
        *,
        tpu_type: str | None = None,
        slice_count: int | Sequence[int] | None = None,
        count: int | None = None,
        topology: str | None = None,
        replicas: int | Sequence[int] | None = None,
        **fields: Unpack[_Common],
    ) -> ResourceConfig:
        """Request TPU slices.

        Args:
            type: As in `TpuConfig`.
            slices: How many, 1 by default; a replica of a TPU job is a slice.
            tpu_type: Another name of `type`.
            slice_count: Another name of `slices`.
            count: As in `TpuConfig`.
            topology: As in `TpuConfig`.
            replicas: Another name of `slices`.
            fields: Further fields of `ResourceConfig`, of each host.
        """
        wanted = _one_of(slices=slices, slice_count=slice_count, replicas=replicas)
        name = _one_of(type=type, tpu_type=tpu_type)
        if name is None:
            raise invalid("type", 'a TPU type such as "v5litepod-16"', name)
        return cls(
            device=TpuConfig(name, count, topology), replicas=1 if wanted is None else wanted, **fields
        )

    @classmethod
    def with_gpu(
        cls,
        type: str | None = None,  # noqa: A002 - as in GpuConfig
        count: int = 1,
        *,
        gpu_type: str | None = None,
        **fields: Unpack[_Fields],
    ) -> ResourceConfig:
        """Request GPUs.

        Args:
            type: As in `GpuConfig`; whichever the machine has where it is left out.
            count: How many for each replica.
            gpu_type: Another name of `type`.
            fields: Further fields of `ResourceConfig`.
        """
        name = _one_of(type=type, gpu_type=gpu_type)
        return cls(device=GpuConfig(ANY if name is None else name, count), **fields)

    @classmethod
    def with_cpu(cls, **fields: Unpack[_Fields]) -> ResourceConfig:
        """Request no accelerator; `fields` are those of `ResourceConfig`."""
        return cls(device=CpuConfig(), **fields)


def _one_of(**names: Any) -> Any:
    """Return the value of one field that has several names; given twice it must be the same."""
    given = [(name, chosen) for name, chosen in names.items() if chosen is not None]
    for name, chosen in given[1:]:
        first, earlier = given[0]
        if _comparable(chosen) != _comparable(earlier):
            raise invalid(name, f"left out or the same as {first} ({earlier!r})", chosen)
    return given[0][1] if given else None


def _comparable(chosen: Any) -> Any:
    return tuple(chosen) if isinstance(chosen, list) else chosen


def _cpu(cpu: object) -> float:
    if isinstance(cpu, bool) or not isinstance(cpu, (int, float)) or not 0 < cpu < float("inf"):
        raise invalid("cpu", "a number of cores above zero", cpu)
    return int(cpu) if cpu == int(cpu) else float(cpu)


def _device(device: object) -> DeviceConfig:
    if not isinstance(device, DeviceConfig):
        raise invalid("device", "a CpuConfig(), GpuConfig(TYPE, COUNT) or TpuConfig(TYPE)", device)
    return device


def _replicas(replicas: object) -> int | tuple[int, ...]:
    if not isinstance(replicas, (list, tuple)):
        return check_count("replicas", replicas)
    numbers = tuple(check_count("replicas", number) for number in replicas)
    if not numbers or len(set(numbers)) < len(numbers):
        raise invalid("replicas", "a number or different acceptable numbers", replicas)
    return numbers if len(numbers) > 1 else numbers[0]


def _preemptible(preemptible: object) -> bool:
    if not isinstance(preemptible, bool):
        raise invalid("preemptible", "True or False", preemptible)
    return preemptible


def _regions(regions: Any) -> tuple[str, ...] | None:
    if regions is None:
        return None
    allowed = 'a list of names such as ["eu-west4"], or None for anywhere'
    if isinstance(regions, str) or not hasattr(regions, "__iter__"):
        raise invalid("regions", allowed, regions)
    # A set has no order to keep, and must come out the same every time.
    names = sorted(regions, key=str) if isinstance(regions, (set, frozenset)) else list(regions)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise invalid("regions", allowed, regions)
    return tuple(dict.fromkeys(name.strip() for name in names))
