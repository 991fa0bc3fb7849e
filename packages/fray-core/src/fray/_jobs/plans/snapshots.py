"""What a job's source is: its commit, its copy, and whether it changed before the job started."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_GIT_PATIENCE = 1.0  # seconds: a repository on a slow disk holds up no launch for longer
_FRESH = 1.0  # seconds for which what git said of a folder is good for another launch
_SHARE = 0.1  # of the time that asking git may take at the most, launch after launch
_IGNORE_FILES = (".gitignore", ".frayignore")
_NEVER = (".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache")
_SOURCES = (".py", ".toml", ".yaml", ".yml", ".json", ".sh", ".cfg", ".ini", ".ipynb")
_LIST = ("ls-files", "-z")
_NAMED = 3  # files in a warning
_MOST_FILES = 20_000  # to look at before a job starts


@dataclass(frozen=True, kw_only=True)
class SourceState:
    """The source of a job when it was launched.

    Args:
        commit: None where the workspace is not a git repository, or git failed.
        dirty: Whether files that git tracks were changed.
    """

    commit: str | None = None
    dirty: bool | None = None


_known: dict[Path, tuple[float, SourceState]] = {}  # until when it is good, and what was said


def source_state(workspace: Path) -> SourceState:
    """Return the commit of a workspace, and whether it has changes."""
    if not in_git(workspace):
        return SourceState()
    good_until, state = _known.get(workspace, (0.0, SourceState()))
    asked = time.monotonic()
    if asked > good_until:
        state = _ask_git(workspace)
        now = time.monotonic()
        _known[workspace] = (now + max(_FRESH, (now - asked) / _SHARE), state)
    return state


class SweepCopies:
    """The copies of workspaces that the members of a sweep share: one of each, however many members.

    Args:
        folder: The record of the sweep.
        leave_out: What is not copied: the records, where they are in the workspace.
    """

    def __init__(self, folder: Path, leave_out: Path) -> None:
        self._folder, self._leave_out = folder, leave_out
        self._copies: dict[Path, str] = {}

    def link(self, workspace: Path, place: Path) -> None:
        """Let a folder in the record of a member lead to the copy of its workspace."""
        name = self._copies.get(workspace)
        if name is None:
            name = self._copies[workspace] = f"workspace-{len(self._copies)}"
            take_snapshot(workspace, self._folder / name, leave_out=self._leave_out)
        place.symlink_to(Path("..", "..", name), target_is_directory=True)


def in_git(workspace: Path) -> bool:
    """Whether a folder is in a git repository, without asking git."""
    return any((folder / ".git").exists() for folder in (workspace, *workspace.parents))


def change_since(workspace: str, state: SourceState, launched_at: float) -> str | None:
    """Describe which source files changed since a job was launched; None where none did."""
    folder = Path(workspace)
    now = _ask_git(folder, patience=5.0).commit if state.commit else None
    if now and now != state.commit:
        return (
            f"the workspace was at commit {state.commit[:10]} at launch and at {now[:10]} at the start"
            if state.commit
            else None
        )
    changed = []
    for path in _candidates(folder, git=state.commit is not None):
        try:
            if (folder / path).stat().st_mtime > launched_at:
                changed.append(path)
        except OSError:
            continue
    if not changed:
        return None
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    return (
        f"files changed between launch and start: {', '.join(sorted(changed)[:_NAMED])}{more}; "
        "the job runs them as they were at its start (snapshot=True runs them as they were at launch)"
    )


def take_snapshot(workspace: Path, target: Path, leave_out: Path | None = None) -> int:
    """Copy a workspace: the files that git would, or all that its ignore rules leave; return how many.

    Args:
        leave_out: A folder that may be in the workspace and is not to be copied.

    Raises:
        OSError: A file cannot be copied.
    """
    count = 0
    for name in workspace_files(workspace):
        source, copy = workspace / name, target / name
        if leave_out is not None and source.is_relative_to(leave_out):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(source, copy, follow_symlinks=False)
        except FileNotFoundError:  # git knows it, and it was deleted
            continue
        except IsADirectoryError:  # a repository inside this one
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*_NEVER))
        count += 1
    target.mkdir(parents=True, exist_ok=True)
    return count


def workspace_files(workspace: Path) -> list[str]:
    """Return the files that a snapshot has, relative to the workspace."""
    if in_git(workspace):
        listed = _git(
            workspace, "ls-files", "-z", "--cached", "--others", "--exclude-standard", patience=60.0
        )
        # Nothing: of a folder that the repository around it ignores git knows no file.
        if listed or (listed is not None and _git(workspace, "check-ignore", "-q", ".") is None):
            return sorted({name for name in listed.split("\0") if name})
    return sorted(_walk(workspace, _Rules()))


def _candidates(folder: Path, git: bool) -> Iterator[str]:
    """The source files that may have changed: with git, those that differ from its index, and new ones."""
    if git:
        arguments = (*_LIST, "--modified", "--others", "--exclude-standard")
        listed = _git(folder, *arguments, patience=5.0) or ""
        names = [name for name in listed.split("\0") if name]
    else:
        names = _first(_walk(folder, _Rules()), _MOST_FILES)
    yield from (name for name in dict.fromkeys(names) if name.endswith(_SOURCES))


def _first(names: Iterator[str], count: int) -> list[str]:
    return [name for _, name in zip(range(count), names, strict=False)]


def _ask_git(workspace: Path, patience: float = _GIT_PATIENCE) -> SourceState:
    said = _git(workspace, "status", "--porcelain=v2", "--branch", "--untracked-files=no", patience=patience)
    if said is None:
        return SourceState()
    commit = re.search(r"^# branch\.oid ([0-9a-f]+)$", said, re.MULTILINE)
    dirty = any(not line.startswith("#") for line in said.splitlines())
    return SourceState(commit=commit[1] if commit else None, dirty=dirty)


def _git(workspace: Path, *args: str, patience: float = _GIT_PATIENCE) -> str | None:
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=workspace,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=patience,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


_TOKEN = re.compile(
    r"\\(?P<escaped>.)|\[(?P<negated>[!^]?)(?P<members>\]?(?:\[:\w+:\]|\\.|[^]\\])*)\]|(?P<plain>.)",
    re.DOTALL,
)
_MEMBER = re.compile(r"\[:(?P<named>\w+):\]|(?P<low>\\.|.)(?:-(?P<high>\\.|.))?", re.DOTALL)
_NAMED_CLASSES = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "lower": "a-z", "upper": "A-Z",
                  "xdigit": "0-9a-fA-F", "space": r"\s", "blank": r" \t", "punct": r"!-/:-@\[-`{-~",
                  "cntrl": r"\x00-\x1f\x7f", "graph": "!-~", "print": " -~"}  # fmt: skip
_NO_CHARACTER = "(?!)"

# What a path must be, whether it is kept after all, whether the rule is for folders alone.
_Rule = tuple[re.Pattern[str], bool, bool]


class _Rules:
    """The ignore rules that hold in a folder: its own and those above it; the last one that fits decides."""

    def __init__(self, rules: tuple[_Rule, ...] = ()) -> None:
        self._rules = rules

    def within(self, folder: Path, prefix: str) -> "_Rules":
        """Return the rules with those of a folder added; `prefix` is its path in the workspace."""
        found: list[_Rule] = []
        for name in _IGNORE_FILES:
            try:
                lines = (folder / name).read_text(errors="replace").splitlines()
            except OSError:
                continue
            found.extend(_rule(line, prefix) for line in lines if line.strip() and not line.startswith("#"))
        return _Rules((*self._rules, *found)) if found else self

    def ignore(self, path: str, folder: bool) -> bool:
        """Whether a path of the workspace is ignored."""
        ignored = False
        for pattern, negated, folders_only in self._rules:
            if (folder or not folders_only) and pattern.fullmatch(path):
                ignored = not negated
        return ignored


def _rule(line: str, prefix: str) -> _Rule:
    line = _without_blanks(line)
    negated, line = line.startswith("!"), line.removeprefix("!")
    folders_only, line = line.endswith("/"), line.rstrip("/")
    pattern = re.escape(prefix) + ("" if "/" in line else "(?:.*/)?")
    *folders, last = line.lstrip("/").split("/")
    pattern += "".join("(?:.*/)?" if part == "**" else _segment(part) + "/" for part in folders)
    return re.compile(pattern + (".*" if last == "**" else _segment(last))), negated, folders_only


def _without_blanks(line: str) -> str:
    """Return a rule without the blanks at its end, but for one that is escaped."""
    kept = line.rstrip(" ")
    escaped = (len(kept) - len(kept.rstrip("\\"))) % 2
    return line[: len(kept) + escaped]


def _segment(part: str) -> str:
    """A pattern of one part of a path, as git reads it: no wildcard fits a slash."""
    return "".join(map(_token, _TOKEN.finditer(part)))


def _token(token: re.Match[str]) -> str:
    if token["members"] is not None:
        return _characters(token["members"], negated=bool(token["negated"]))
    if token["escaped"] is not None:
        return re.escape(token["escaped"])
    wildcards = {"*": "[^/]*", "?": "[^/]", "[": _NO_CHARACTER}  # of a class without its end git fits nothing
    return wildcards.get(token["plain"], re.escape(token["plain"]))


def _characters(members: str, *, negated: bool) -> str:
    """A pattern of the one character that `[...]` stands for."""
    found = ""
    for member in _MEMBER.finditer(members):
        if member["named"]:
            found += _NAMED_CLASSES.get(member["named"], "")
            continue
        low, high = member["low"][-1], (member["high"] or member["low"])[-1]
        if low <= high:
            found += f"{re.escape(low)}-{re.escape(high)}"
    if negated:
        return f"[^/{found}]"
    return f"(?!/)[{found}]" if found else _NO_CHARACTER


def _walk(folder: Path, rules: _Rules, prefix: str = "") -> Iterator[str]:
    rules = rules.within(folder, prefix)
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            path = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if (is_folder and entry.name in _NEVER) or rules.ignore(path, is_folder):
                continue
            if is_folder:
                yield from _walk(Path(entry.path), rules, f"{path}/")
            elif entry.is_file() or entry.is_symlink():
                yield path
