"""docs/performance.md, from the results that `suite.py` keeps."""

from typing import Any

HEAD = """# Performance

`python noxfile.py -s bench` writes this page: it installs the peers and runs all benchmarks again.
Figures are of one machine: medians of interleaved rounds where a title names rounds, else of single runs.
**Ratios hold between machines, figures do not.**
A goal is a bound that was set before the measurement. A goal that is missed stays on this page.
[Scaling](scaling.md) says how costs grow with size, and where the limits of each backend are.
"""

QUICK = """
:::{warning}
Some of these results are from a quick run: small sizes, few rounds, and other work on the machine. They show
only that the benchmarks run. `python noxfile.py -s bench` measures the figures for the record.
:::
"""


def written(results: list[dict[str, Any]]) -> str:
    """Return the page."""
    parts = [HEAD]
    if any(result["quick"] for result in results):
        parts.append(QUICK)
    goals = [(result, note) for result in results for note in result["noted"] if "goal" in note]
    if goals:
        judged = [note["met"] for result, note in goals if not result["quick"]]
        parts.append(f"\n## Goals\n\n{sum(judged)} of {len(judged)} are met.\n")
        if len(judged) < len(goals):
            parts.append(
                f"{len(goals) - len(judged)} more figures are from quick runs, and are not judged.\n"
            )
        rows = [
            [f"[{result['name']}](#{result['name']})", *_goal(note, quick=result["quick"])]
            for result, note in goals
        ]
        parts.append(_table(["in", "what", "goal", "measured", ""], rows))
    parts.append(_where(results))
    parts += [_section(result) for result in results]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _goal(note: dict[str, Any], *, quick: bool) -> list[str]:
    word = "met" if note["met"] else "**missed**"
    return [note["goal"], note["bound"], note["figure"], "quick" if quick else word]


def _where(results: list[dict[str, Any]]) -> str:
    """Return the machines and the versions; where results differ in them, each says its own."""
    lines = ["\n## Machine and versions\n"]
    lines += [f"- {machine}" for machine in dict.fromkeys(result["machine"] for result in results)]
    versions: dict[str, list[str]] = {}
    for result in results:
        for name, version in result["versions"].items():
            if version not in versions.setdefault(name, []):
                versions[name].append(version)
    lines.append("- " + ", ".join(f"{name} {' and '.join(each)}" for name, each in versions.items()))
    missing = {
        (note["missing"], note["why"]) for result in results for note in result["noted"] if "missing" in note
    }
    lines += [f"- Not measured: {what}; {why}." for what, why in sorted(missing)]
    return "\n".join(lines) + "\n"


def _section(result: dict[str, Any]) -> str:
    """Return the tables of one benchmark, with what it missed and why."""
    quick = " **A quick run, not for the record.**" if result["quick"] else ""
    commit = result["versions"]["fray's commit"]
    lines = [
        f"\n## `{result['name']}`\n",
        f"{result['about']}\n",
        f"`{result['command']}`, {result['date']}, {result['seconds']} s, at {commit}.{quick}\n",
    ]
    if result["failure"]:
        lines.append(f"**Not complete**: {_escaped(result['failure'])}.\n")
    for note in result["noted"]:
        if "title" in note:
            lines.append(f"**{_escaped(note['title'])}**\n")
            lines.append(_table(["", *note["columns"]], note["rows"]) + "\n")
    missed = [note for note in result["noted"] if "goal" in note and not note["met"] and not result["quick"]]
    for note in missed:
        why = (
            f" What limits it: {note['limit']}."
            if note["limit"]
            else " What limits it has not been measured."
        )
        lines.append(f"- Missed: {_escaped(note['goal'])}: {note['figure']}, goal {note['bound']}.{why}")
    return "\n".join(lines) + "\n"


def _table(names: list[str], rows: list[list[str]]) -> str:
    lines = [" | ".join(names), " | ".join(["---", *["--:"] * (len(names) - 1)])]
    lines += [" | ".join(_escaped(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
