"""What a TPU type is made of: chips, hosts and shapes, computed from a rule per generation.

Sources, unless a line says otherwise: the page of each generation in the Google Cloud TPU
documentation ("TPU v2" to "TPU7x"), and the tables of Ray 2.60, `ray/_private/accelerators/tpu.py`.
"""

from __future__ import annotations

from fray_resources._errors import did_you_mean, invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_Shape = tuple[int, ...]


class Generation:
    """One generation of TPU, and the slices that it comes in."""

    def __init__(self, name: str, cores: int, shapes: list[_Shape], big_hosts: bool = False) -> None:
        """Describe a generation.

        Args:
            name: What its types start with.
            cores: How many of the type's number make up one chip.
            shapes: Every shape of a slice, in chips; of two with as many chips, the default first.
            big_hosts: Whether one machine may have 8 chips, not only 4.
        """
        self.name = name
        self.cores = cores
        self.big_hosts = big_hosts
        self.shapes: dict[int, list[_Shape]] = {}
        for shape in shapes:
            self.shapes.setdefault(_product(shape), []).append(shape)

    @property
    def sizes(self) -> list[int]:
        """The numbers that its types end in, smallest first."""
        return [chips * self.cores for chips in sorted(self.shapes)]


class TpuSlice:
    """The facts of one TPU type."""

    def __init__(self, generation: Generation, chips: int) -> None:
        self.generation = generation
        self.chips = chips
        self.name = f"{generation.name}-{chips * generation.cores}"

    @property
    def topologies(self) -> tuple[str, ...]:
        """The shapes that its chips can be wired in, the default first."""
        return tuple(_topology_name(shape) for shape in self.generation.shapes[self.chips])

    @property
    def host_chips(self) -> tuple[int, ...]:
        """How many chips a host of it may have, the default first."""
        if not self.generation.big_hosts:
            return (4,)
        # Ray: up to 8 chips sit on one host; larger slices are made of 4-chip hosts. The v5e and
        # v6e pages also have machines of 8 chips for those, and two of 4 for a slice of 8.
        if self.chips < 8:
            return (self.chips,)
        return (8, 4) if self.chips == 8 else (4, 8)

    def topology(self, text: object) -> str:
        """Return the canonical form of a topology, whose sides may come in any order.

        Raises:
            ValueError: The chips of this type cannot be wired so.
        """
        if isinstance(text, str):
            sides = sorted(text.strip().lower().split("x"))
            for name in self.topologies:
                if sorted(name.split("x")) == sides:
                    return name
        allowed = " or ".join(repr(name) for name in self.topologies)
        raise invalid("topology", f"{allowed} for {self.name} ({self.chips} chips)", text)


def _product(shape: _Shape) -> int:
    chips = 1
    for side in shape:
        chips *= side
    return chips


def _topology_name(shape: _Shape) -> str:
    return "x".join(str(side) for side in shape)


def _rectangles(smallest: Sequence[_Shape], largest: int) -> list[_Shape]:
    """Add to the shapes below 16 chips the 4x4, 4x8, 8x8, ... that follow, by doubling the shorter side."""
    shapes, shape = list(smallest), (4, 4)
    while _product(shape) <= largest:
        shapes.append(shape)
        shape = (shape[1], shape[1]) if shape[0] < shape[1] else (shape[0], shape[0] * 2)
    return shapes


def _boxes(largest: int) -> list[_Shape]:
    """List the parts of a 4x4x4 cube that are offered, and the boxes made of whole cubes."""
    # v5p page: the largest box is 16x16x24. v4 page: each side is a multiple of 4, up to the pod.
    boxes = [
        (x, y, z)
        for x in range(4, 17, 4)
        for y in range(x, 17, 4)
        for z in range(y, 25, 4)
        if x * y * z <= largest
    ]
    # The default is the box nearest to a cube: it has the shortest paths.
    return [(2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), *sorted(boxes, key=sum)]


def _generations() -> dict[str, Generation]:
    # Ray lists for v7x these boxes alone.
    v7x = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16"
    # Ray lists 2x8 for v5e and v6e; the Cloud pages have 4x4, which is therefore the default.
    small = [(1, 1), (2, 2), (2, 4)]
    # Ray and the Cloud pages: the number counts TensorCores, 2 on a chip (v2, v3, v4, v5p, v7x) or
    # 1 on a chip (v5e, v6e). Largest slice in chips: v2 256, v3 1024, v4 4096, v5p 6144, v5e and v6e 256.
    generations = [
        Generation("v2", 2, _rectangles([(2, 2)], 256)),
        Generation("v3", 2, _rectangles([(2, 2)], 1024)),
        Generation("v4", 2, _boxes(4096)),
        Generation("v5litepod", 1, [*_rectangles(small, 256), (2, 8)], big_hosts=True),
        Generation("v5p", 2, _boxes(6144)),
        Generation("v6e", 1, [*_rectangles(small, 256), (2, 8)], big_hosts=True),
        Generation("v7x", 2, [tuple(int(side) for side in box.split("x")) for box in v7x.split()]),
    ]
    return {generation.name: generation for generation in generations}


# Cloud names: v5e in the documentation is v5litepod in the API; GKE calls v7x tpu7x.
_ALIASES = {"v5e": "v5litepod", "tpu7x": "v7x"}
_cache: dict[str, Generation] = {}


def _known() -> dict[str, Generation]:
    if not _cache:
        _cache.update(_generations())
    return _cache


def find_slice(text: object) -> TpuSlice:
    """Return the facts of a TPU type, whichever way its name is spelled.

    Raises:
        ValueError: There is no such type; the message says which is close.
    """
    if not isinstance(text, str):
        raise invalid("type", 'the name of a TPU type such as "v5litepod-16"', text)
    prefix, _, number = text.strip().lower().partition("-")
    generation = _known().get(_ALIASES.get(prefix, prefix))
    if generation is None:
        raise _unknown_generation(text)
    size = int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0
    if size not in generation.sizes:
        raise _unknown_size(text, prefix, size, generation)
    return TpuSlice(generation, size // generation.cores)


def is_tpu_type(text: str) -> bool:
    """Whether a name starts as the types of a TPU generation do."""
    prefix, dash, _ = text.strip().lower().partition("-")
    return bool(dash) and _ALIASES.get(prefix, prefix) in _known()


def _unknown_generation(text: str) -> ValueError:
    prefixes = (*_known(), *_ALIASES)
    spellings = [f"{prefix}-{size}" for prefix in prefixes for size in _sizes_of(prefix)]
    allowed = f"a TPU type, GENERATION-NUMBER with one of {', '.join(prefixes)}"
    return invalid("type", allowed, text, did_you_mean(text, spellings))


def _sizes_of(prefix: str) -> list[int]:
    return _known()[_ALIASES.get(prefix, prefix)].sizes


def _unknown_size(text: str, prefix: str, size: int, generation: Generation) -> ValueError:
    sizes = generation.sizes
    listed, others = sizes, ""
    if len(sizes) > 12:
        listed = sorted(sorted(sizes, key=lambda known: abs(known - size))[:4])
        others = f" or another of tpu_types({prefix!r})"
    unit = "chips" if generation.cores == 1 else "TensorCores, 2 per chip"
    allowed = f"{prefix}-N with N ({unit}) one of {', '.join(str(known) for known in listed)}{others}"
    closest = min(sizes, key=lambda known: (abs(known - size), -known))
    hint = f"; did you mean '{prefix}-{closest}'?" if size else ""
    return invalid("type", allowed, text, hint)


def tpu_types(generation: str | None = None) -> tuple[str, ...]:
    """List the TPU types in their canonical spelling, of one generation or of all.

    Args:
        generation: `v2`, `v3`, `v4`, `v5p`, `v5litepod` (or `v5e`), `v6e`, `v7x` (or `tpu7x`).
    """
    if generation is None:
        return tuple(name for known in _known() for name in tpu_types(known))
    key = generation.strip().lower() if isinstance(generation, str) else ""
    found = _known().get(_ALIASES.get(key, key))
    if found is None:
        allowed = f"one of {', '.join((*_known(), *_ALIASES))}"
        raise invalid("generation", allowed, generation)
    return tuple(f"{found.name}-{size}" for size in found.sizes)


def tpu_topologies(type: str) -> tuple[str, ...]:  # noqa: A002 - the field that it is about
    """List the topologies of a TPU type, in chips, the default first."""
    return find_slice(type).topologies
