"""The tree uses the field's words: a table of those that it no longer uses, and what it says instead."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for room in ("packages", "docs", "examples", "benchmarks", "tests")
    for ending in ("py", "md", "sql", "lua", "js", "html", "txt")
    for path in ROOT.glob(f"{room}/**/*.{ending}")
    if not {"_site", "node_modules", "__pycache__"} & set(path.parts) and path != Path(__file__)
)
FILES += [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "noxfile.py")
]

# What is not said -> what is. Parts of names count as words: `_bury` is one, `CrewMember` too.
INSTEAD = {
    r"fleets?|hires?|hired|employers?": "Scheduler, workers; start_worker; owner",
    r"troupes?|crews?": "ActorRegistry, ActorProcess, IndependentReplicas",
    r"keepers?": "ProcessSupervisor, supervisor, holder",
    r"zygotes?|forges?": "ForkServerClient, fork server",
    r"shelf|shelves": "CachedFunction",
    r"mailbox(?:es)?": "control pipe (of a supervisor), actor queue",
    r"ledgers?|bury|buried|buries": "admission; mark_dead, dead letter",
    r"hears?|heard": "receives, is notified, learns",
    r"news": "changes, events",
    r"whoever": "the component: the caller, the holder, the next `poll`",
    r"no whole numbers?": "not an int",
    r"(?:is|are|was|were|be|been|being) told|told of": "is notified, is given, is reported",
}
# The same for what users read: packages, docs and examples, but for what runs a job inside a Ray cluster.
FOR_USERS = {
    r"tells? whether": "return whether",
    r"takes? note": "record, store",
    r"lets? go of": "release",
    r"anew": "again",
    r"somebody": "a user, a caller, another process",
    r"last word|what is no|the like": "the final state; what is not a; name the others",
}
IN_RAY = re.compile(r"fray_ray/(_head|_on_node|_launcher)/")
# Identifiers are split into words: at underscores, and where a capital follows a small letter.
PARTS = re.compile(r"_|(?<=[a-z])(?=[A-Z])")


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def found(path: Path) -> Iterator[str]:
    """Yield each line that has one of the words, with what to say instead."""
    name = label(path)
    is_read = name.startswith(("packages/", "docs/", "examples/")) and path.suffix not in (".sql", ".lua")
    table = {**INSTEAD, **FOR_USERS} if is_read and not IN_RAY.search(name) else INSTEAD
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = PARTS.sub(" ", line)
        for old, new in table.items():
            if match := re.search(rf"\b(?:{old})\b", words, re.IGNORECASE):
                yield f"{label(path)}:{number}: {match[0]!r}; say {new}"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_the_words_are_the_fields(path: Path) -> None:
    assert list(found(path)) == []


def test_the_parts_of_names_are_words() -> None:
    assert [re.sub(PARTS, " ", name) for name in ("_mark_dead", "ForkServer")] == [
        " mark dead",
        "Fork Server",
    ]
