"""Random programs: whatever a backend does, the outcome is that of a plain sequential evaluation.

A program is a list of steps; each may use the results of earlier ones. It is evaluated once by hand,
with values, and once on the context, with references, everything submitted before anything is read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fray._contracts.context import JobContext
from fray._discovery.current import create_context
from fray.testing.context_fixtures import ContextFixtures, needs
from fray.testing.program_steps import StepLog, combine, nested, nested_plain, refuse, spread

Outcome = tuple[str, Any]
"""("value", what) or ("error", message); of a plain evaluation, ("error", every message it may have)."""


@dataclass(frozen=True)
class Step:
    """One step: what it does, and the earlier steps (or plain numbers) that it takes."""

    kind: str
    number: int
    uses: tuple[int, ...]


PLAIN: dict[str, Callable[..., Any]] = {"combine": combine, "refuse": refuse, "nested": nested_plain}
TASKS: dict[str, Callable[..., Any]] = {
    "combine": combine,
    "refuse": refuse,
    "nested": nested,
    "spread": spread,
}
STREAMS = ("spread", "replay")
KINDS = (*TASKS, "put", "enter", "replay")


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Draw a program of up to 12 steps."""
    length = draw(st.integers(1, 12))
    steps: list[Step] = []
    for index in range(length):
        kind = draw(st.sampled_from(KINDS))
        usable = [use for use in range(index) if steps[use].kind not in STREAMS]
        uses = draw(st.lists(st.sampled_from(usable), max_size=3)) if usable and kind != "put" else []
        steps.append(Step(kind, draw(st.integers(0, 9)), tuple(uses)))
    return steps


def evaluate_plainly(program: list[Step]) -> list[list[Outcome]]:
    """Evaluate step by step, in this thread, without any context."""
    log, results = StepLog(), list[list[Outcome]]()
    for step in program:
        # Of several failed arguments, whichever was known first is the step's failure.
        failures = [results[use][0][1] for use in step.uses if results[use][0][0] == "error"]
        values = [results[use][0][1] for use in step.uses]
        if failures:
            results.append([("error", frozenset().union(*failures))])
        elif step.kind == "put":
            results.append([("value", step.number)])
        elif step.kind in STREAMS:
            source = spread if step.kind == "spread" else log.replay
            results.append(_open(_collect(iter(source(step.number, *values)), lambda item: item)))
        else:
            function = log.enter if step.kind == "enter" else PLAIN[step.kind]
            results.append(_open([_outcome(lambda: function(step.number, *values))]))  # noqa: B023 - called at once
    return results


def agree(seen: list[list[Outcome]], expected: list[list[Outcome]]) -> bool:
    """Whether what a context made of a program is one of the things that it may be."""
    return len(seen) == len(expected) and all(
        len(ours) == len(theirs)
        and all(
            kind == other and (value in allowed if kind == "error" else value == allowed)
            for (kind, value), (other, allowed) in zip(ours, theirs, strict=True)
        )
        for ours, theirs in zip(seen, expected, strict=True)
    )


def _open(outcomes: list[Outcome]) -> list[Outcome]:
    return [(kind, frozenset([value]) if kind == "error" else value) for kind, value in outcomes]


def evaluate_on(context: JobContext, program: list[Step]) -> list[list[Outcome]]:
    """Submit everything with references as arguments, then read everything."""
    log = context.create_actor(StepLog)
    submitted: list[Any] = []
    for step in program:
        uses = [submitted[use] for use in step.uses]
        if step.kind == "put":
            submitted.append(context.put(step.number))
        elif step.kind in TASKS:
            submitted.append(context.create_task(TASKS[step.kind], step.number, *uses))
        else:
            submitted.append(getattr(log, step.kind)(step.number, *uses))
    results = []
    for step, thing in zip(program, submitted, strict=True):
        if step.kind in STREAMS:
            results.append(_collect(thing, context.get))
        else:
            results.append([_outcome(lambda: context.get(thing))])  # noqa: B023 - called at once
    context.kill(log)
    return results


def _outcome(get: Callable[[], Any]) -> Outcome:
    try:
        return "value", get()
    except LookupError as error:
        return "error", str(error)


def _collect(items: Iterator[Any], get: Callable[[Any], Any]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while True:
        try:
            item = next(items)
            outcomes.append(("value", get(item)))
        except StopIteration:
            return outcomes
        except LookupError as error:
            outcomes.append(("error", str(error)))
            return outcomes


class ProgramContract(ContextFixtures):
    """Every rule at once."""

    @needs("actors", "streams")
    def test_random_programs_come_out_as_evaluated_by_hand(self, spec: str) -> None:
        with create_context(spec) as context:

            @settings(
                max_examples=self.PROGRAMS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            )
            @given(programs())
            def run(program: list[Step]) -> None:
                seen, expected = evaluate_on(context, program), evaluate_plainly(program)
                assert agree(seen, expected), f"{program}\n{seen}\n{expected}"

            run()
