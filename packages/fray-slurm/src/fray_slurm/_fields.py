"""Read Slurm's data on nodes, in the form `Name=value`. Imports little: every batch step needs it."""

import re

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")


def fields_of(line: str) -> dict[str, str]:
    """Read `Name=value Other=value with spaces ...`."""
    starts = list(_FIELD.finditer(line))
    ends = [*(each.start() for each in starts), len(line)][1:]
    return {each[1]: line[each.end() : end].strip() for each, end in zip(starts, ends, strict=False)}


def read_nodes(text: str) -> dict[str, dict[str, str]]:
    """Read `scontrol show node -o`: the fields of each node by its name."""
    found = (fields_of(line) for line in text.splitlines())
    return {fields["NodeName"]: fields for fields in found if "NodeName" in fields}


def tasks_per_node(text: str) -> list[int]:
    """Read SLURM_TASKS_PER_NODE: `2,1(x2)` is [2, 1, 1]."""
    counts = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise ValueError(f"SLURM_TASKS_PER_NODE must be like '2,1(x2)', got {text!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts
