"""What a task or an actor needs of this machine, and what is free of it."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fray import TaskOptions, UnsupportedError
from fray.backend import memory_bytes
from fray.job import ActorOptions
from fray_local._machine import own_gpu_ids

_PARTS = 10_000
"""What one of a resource is counted in: sums of fractions would not come out even, and lose a slot."""

_OF_THE_MACHINE = ("CPU", "GPU", "memory")
_OWN = ", or give ProcessContext resources={...} of your own"


@dataclass(frozen=True, eq=False, slots=True)
class Needs:
    """What a call reserves while it runs, or an actor while it lives; equal ones are one object.

    Args:
        cpu: In parts of one.
        amounts: By name, sorted, in parts of one, CPU left out.
        env: Variables that its worker must have been started with.
        max_calls: Calls of the function after which its worker is replaced.
        gpus: Whole GPUs, of the amounts.
    """

    cpu: int = _PARTS
    amounts: tuple[tuple[str, int], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    max_calls: int | None = None
    gpus: int = 0

    @property
    def names(self) -> set[str]:
        """What it needs beside CPUs."""
        return {name for name, _ in self.amounts}


PLAIN = Needs()


class Resources:
    """What is free; changed in the scheduler's serial queue only.

    Args:
        custom: Beyond what is the machine's.

    Raises:
        ValueError: A custom one is the machine's, or no number.
    """

    def __init__(
        self, cpu: float, custom: Mapping[str, float] | None = None, memory: int | None = None
    ) -> None:
        own = TaskOptions(resources=custom or {}).resources  # which looks at the amounts
        for name in _OF_THE_MACHINE:
            if name in own:
                raise ValueError(
                    f"resources adds names to {', '.join(_OF_THE_MACHINE)}, got {name!r}: max_workers, "
                    "num_cpus and memory say how much of those may be reserved, and GPUs are counted"
                )
        self._gpus = own_gpu_ids()
        self._total: dict[str, float] = {
            "CPU": float(cpu),
            "GPU": float(len(self._gpus)),
            "memory": float(memory_bytes() if memory is None else memory),
            **own,
        }
        self._known: dict[tuple[Any, ...], Needs] = {}
        self._free = {name: _parts(amount) for name, amount in self._total.items()}
        self.cpu = self._free.pop("CPU")
        self._of_actors: Counter[str] = Counter()

    def needs_of_actor(self, options: ActorOptions) -> Needs:
        """Return what an actor reserves as long as it lives: all that it requests but CPUs.

        CPUs are compared only, because an actor that waits for calls uses none: programs have more actors
        than a laptop has CPUs.

        Raises:
            UnsupportedError: As for a task.
        """
        self.needs_of(TaskOptions(resources={"CPU": 0, **options.resources}), "an actor")
        return self.needs_of(TaskOptions(resources={**options.resources, "CPU": 0}))

    def needs_of(self, options: TaskOptions, asker: str = "a task") -> Needs:
        """Return what a task's options request.

        Args:
            asker: Requests it, in messages.

        Raises:
            UnsupportedError: This machine, or this backend, has no such thing, or never so much of it.
        """
        if not options.resources and not options.runtime_env and options.max_calls is None:
            return PLAIN
        env = options.runtime_env
        if env is not None and (env.package_requirements or env.container_image):
            raise UnsupportedError(
                "'process' runs tasks in this environment, with env variables of their own at most; for "
                "packages or an image launch a job with create_environment(...)"
            )
        amounts = {"CPU": 1.0, **options.resources}
        for name, amount in amounts.items():
            self._check(name, amount, asker)
        key = (
            _parts(amounts.pop("CPU")),
            tuple(sorted((name, _parts(amount)) for name, amount in amounts.items() if amount)),
            tuple(sorted(env.env.items())) if env is not None else (),
            options.max_calls,
            int(amounts.get("GPU", 0)),
        )
        return self._known.setdefault(key, Needs(*key))

    def _check(self, name: str, amount: float, asker: str) -> None:
        total = self._total.get(name, 0.0)
        if amount > total:
            known = ", ".join(f"{key}={value:g}" for key, value in self._total.items())
            raise UnsupportedError(
                f"{asker} asks for {name}={amount:g} and this context has {known}; "
                f"ask for less{'' if name in _OF_THE_MACHINE else _OWN}"
            )
        if name == "GPU" and amount != int(amount):
            raise UnsupportedError(
                f"{asker} asks for GPU={amount:g}; here a GPU belongs to one task or actor as a whole"
            )

    def has_cpus(self, needs: Needs) -> bool:
        """Whether there are enough CPUs; fewer than none are free where what waits for them reserves some."""
        return not needs.cpu or self.cpu >= needs.cpu

    def fits(self, needs: Needs) -> bool:
        """Whether there is room."""
        return self.has_cpus(needs) and all(self._free[name] >= amount for name, amount in needs.amounts)

    def take(self, needs: Needs) -> list[str]:
        """Reserve; return the ids of the GPUs, if any."""
        self.cpu -= needs.cpu
        for name, amount in needs.amounts:
            self._free[name] -= amount
        return [self._gpus.pop(0) for _ in range(needs.gpus)]

    def take_for_actor(self, needs: Needs) -> list[str]:
        """Reserve until the end of an actor; return the ids of the GPUs, if any."""
        self._of_actors.update(dict(needs.amounts))
        return self.take(needs)

    def give_back_of_actor(self, needs: Needs, gpus: list[str]) -> None:
        """End such a reservation."""
        self._of_actors.subtract(dict(needs.amounts))
        self.give_back(needs, gpus)

    def waits_for_actors(self, needs: Needs) -> bool:
        """Whether there is no room before an actor has ended, whatever tasks end."""
        return any(
            _parts(self._total[name]) - self._of_actors[name] < amount for name, amount in needs.amounts
        )

    def give_back(self, needs: Needs, gpus: list[str]) -> None:
        """End a reservation."""
        self.cpu += needs.cpu
        for name, amount in needs.amounts:
            self._free[name] += amount
        self._gpus += gpus


def in_words(needs: Needs) -> str:
    """Return amounts as users write them, CPUs left out."""
    return ", ".join(f"{name}={amount / _PARTS:g}" for name, amount in needs.amounts)


def _parts(amount: float) -> int:
    return max(1, round(amount * _PARTS)) if amount else 0


def environment(needs: Needs, gpus: list[str]) -> dict[str, Any]:
    """Return the variables that a worker for such calls is started with, beyond the caller's own."""
    extra = dict(needs.env)
    if gpus:
        extra["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return {**os.environ, **extra}
