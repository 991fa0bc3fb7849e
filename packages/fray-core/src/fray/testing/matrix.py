"""The matrix of capabilities, read from reports of conformance runs.

python -m fray.testing.matrix --write docs/capabilities.md local.xml ray.xml queue.xml
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from fray.testing.promises import Area, areas_of

KEPT, REFUSED, MOOT, BROKEN = "kept", "refused", "—", "**not kept**"
_WEIGHT = {BROKEN: 3, REFUSED: 2, KEPT: 1, MOOT: 0}  # of several runs of one promise the heaviest is shown
_HEAD = """# What each backend keeps

Written by `python -m fray.testing.matrix` from the reports of conformance runs, never by hand: each row is
a test of `fray.testing`, each column a backend that it ran on.

| | |
|---|---|
| kept | the test passed |
| refused | the backend cannot do it and raises `UnsupportedError`, which the test checked |
| — | the test does not apply, by what the backend declares |
| **not kept** | known to fail, for the reason below the table |
| | the test did not run on this backend: tests of sharing, for a queue of one process |
"""


@dataclass
class Findings:
    """What was found out of one backend."""

    outcomes: dict[str, str] = field(default_factory=dict)  # promise -> outcome
    reasons: dict[str, str] = field(default_factory=dict)  # promise -> why it is refused or not kept
    declared: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, promise: str, outcome: str, reason: str) -> None:
        """Take in one run of a promise."""
        before = self.outcomes.get(promise)
        if before is None or _WEIGHT[outcome] > _WEIGHT[before]:
            self.outcomes[promise] = outcome
            self.reasons[promise] = reason


def contracts() -> dict[str, list[Area]]:
    """Return the areas of every contract, under the headings of the page."""
    from fray.testing.cluster import ClusterContract
    from fray.testing.context import ContextContract
    from fray.testing.queue import PoolContract, QueueContract, SharedQueueContract

    return {
        "Contexts": areas_of(ContextContract),
        "Clusters": areas_of(ClusterContract),
        "Queues": [*areas_of(QueueContract), *areas_of(SharedQueueContract), *areas_of(PoolContract)],
    }


def read_reports(paths: Iterable[Path], without: Iterable[str] = ()) -> dict[str, Findings]:
    """Return what the reports say of each backend, in the order in which they name them.

    Raises:
        ValueError: A promise failed that is not expected to; a matrix of that would lie.
    """
    found: dict[str, Findings] = defaultdict(Findings)
    failed = []
    for path in paths:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            properties = [
                (str(item.get("name")), str(item.get("value")))
                for item in case.iterfind("properties/property")
            ]
            named = dict(properties)
            if "promise" not in named or named["backend"] in without:
                continue
            if case.find("failure") is not None or case.find("error") is not None:
                failed.append(f"{named['backend']}: {named['promise']}")
            backend = found[named["backend"]]
            backend.add(named["promise"], *_outcome(case, named))
            for name, value in properties:
                if name == "declared":
                    attribute, _, setting = value.partition("=")
                    backend.declared[attribute].add(setting)
    if failed:
        raise ValueError("these failed; mend them, or leave the backend out:\n" + "\n".join(failed))
    return found


def _outcome(case: ElementTree.Element, named: dict[str, str]) -> tuple[str, str]:
    skipped = case.find("skipped")
    if skipped is not None:
        return BROKEN, str(skipped.get("message"))
    if "refused" in named:
        return REFUSED, named["refused"]
    return (MOOT, "") if "moot" in named else (KEPT, "")


def page(found: dict[str, Findings], notes: Iterable[str] = ()) -> str:
    """Write the page, with notes of its maker below its head."""
    parts = [_HEAD, *(f"\n{note}\n" for note in notes)]
    for heading, areas in contracts().items():
        keys = {promise.key for area in areas for promise in area.promises}
        columns = {
            name: findings for name, findings in sorted(found.items()) if keys & findings.outcomes.keys()
        }
        parts.append(f"\n## {heading}\n")
        parts += [_table(area, columns) for area in areas]
        parts.append(_declared(columns))
    return "".join(parts)


def _table(area: Area, columns: dict[str, Findings]) -> str:
    lines = [f"\n### {_title(area)}\n", _row(["promise", *columns]), _row(["---"] * (len(columns) + 1))]
    notes: dict[str, None] = {}
    for promise in area.promises:
        cells = [promise.sentence]
        for name, findings in columns.items():
            outcome = findings.outcomes.get(promise.key, "")
            cells.append(outcome)
            if reason := findings.reasons.get(promise.key):
                notes[f"- `{name}`, “{promise.sentence}”: {_one_line(reason)}"] = None
        lines.append(_row(cells))
    return "\n".join([*lines, *([""] if notes else []), *notes, ""])


def _declared(columns: dict[str, Findings]) -> str:
    """Describe what the backends declare, where they do not all declare the same."""
    names = sorted({name for findings in columns.values() for name in findings.declared})
    rows = []
    for name in names:
        cells = [" or ".join(sorted(findings.declared[name])) for findings in columns.values()]
        rows.append(_row([f"`{name}`", *cells]))
    if not rows:
        return ""
    title = "\n### What they declare\n"
    text = "The types of `capabilities` in `fray.backend` say what each means.\n"
    head = [title, text, _row(["", *columns]), _row(["---"] * (len(columns) + 1))]
    return "\n".join([*head, *rows, ""])


def _title(area: Area) -> str:
    return area.title.splitlines()[0].rstrip(".")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def rows_of(heading: str, text: str) -> dict[str, list[str]]:
    """Return the promises that a page lists under a heading: sentences by the title of their area."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = {}
    for part in section.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        rows = [line.strip("| ").split(" | ")[0] for line in body.splitlines() if line.startswith("| ")]
        found[title] = rows[2:]  # behind the head and the rule below it
    found.pop("What they declare", None)
    return found


def expected_rows(areas: list[Area]) -> dict[str, list[str]]:
    """Return what `rows_of` gives for the page while these are the areas of a contract."""
    return {_title(area): [promise.sentence for promise in area.promises] for area in areas}


def main(argv: list[str] | None = None) -> int:
    """Read reports, write the page; 1 where a promise failed."""
    parser = argparse.ArgumentParser(description="Write the matrix of capabilities from JUnit reports.")
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--write", type=Path, required=True, metavar="PAGE")
    parser.add_argument("--without", action="append", default=[], metavar="BACKEND", help="leave one out")
    parser.add_argument("--note", action="append", default=[], metavar="TEXT", help="a paragraph at the top")
    args = parser.parse_args(argv)
    try:
        found = read_reports(args.reports, args.without)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    args.write.write_text(page(found, args.note))
    counts = [f"{name} {len(findings.outcomes)}" for name, findings in found.items()]
    sys.stdout.write(f"{args.write}: {', '.join(counts)} promises\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
