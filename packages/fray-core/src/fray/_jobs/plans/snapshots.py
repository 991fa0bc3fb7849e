"""What a job's source is: its commit, its copy, and whether it changed before the job started."""

import codecs
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_GIT_PATIENCE = 1.0  # seconds: a repository on a slow disk holds up no launch for longer
_FRESH = 1.0  # seconds for which what git said of a folder is good for another launch
_SHARE = 0.1  # of the time that asking git may take at the most, launch after launch
_IGNORE_FILES = (".gitignore", ".frayignore")
_NEVER = (".git", ".hg", ".svn", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache")
_SOURCES = (".py", ".toml", ".yaml", ".yml", ".json", ".sh", ".cfg", ".ini", ".ipynb")
_LIST = ("ls-files", "-z")
# What a hook of git has for its own repository; the workspace may be in another one.
_OF_A_REPOSITORY = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)
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


def change_since(
    workspace: str, state: SourceState, launched_at: float, leave_out: Iterable[Path] = ()
) -> str | None:
    """Describe which source files changed since a job was launched; None where none did.

    Args:
        leave_out: Folders that may be in the workspace and are not looked at.
    """
    folder = Path(workspace)
    now = _ask_git(folder, patience=5.0).commit if state.commit else None
    if now and now != state.commit:
        return (
            f"the workspace was at commit {state.commit[:10]} at launch and at {now[:10]} at the start"
            if state.commit
            else None
        )
    changed, beside = [], _prefixes(leave_out, folder)
    for path in _candidates(folder, git=state.commit is not None):
        if path.startswith(beside):
            continue
        try:
            if (folder / path).stat().st_mtime > launched_at:
                changed.append(os.fsencode(path).decode(errors="backslashreplace"))
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
    count, beside = 0, _prefixes([leave_out] if leave_out else [], workspace)
    for name in workspace_files(workspace):
        if name.startswith(beside):
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(workspace / name, copy, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):  # deleted since it was listed
            continue
        count += 1
    target.mkdir(parents=True, exist_ok=True)
    return count


def workspace_files(workspace: Path) -> list[str]:
    """Return the files that a snapshot has, relative to the workspace; those of repositories in it, too."""
    return sorted(_files(workspace, in_git(workspace)))


def _prefixes(leave_out: Iterable[Path], workspace: Path) -> tuple[str, ...]:
    """What the names of the files begin with that are left out, whatever links lead to the folders."""
    top = os.path.realpath(workspace)
    names = [os.path.relpath(os.path.realpath(folder), top) for folder in leave_out]
    return tuple(f"{name}{os.sep}" for name in names if name.split(os.sep)[0] != os.pardir)


def _files(folder: Path, by_git: bool) -> Iterator[str]:
    listed = _listed(folder) if by_git else None
    if listed is None:
        yield from _walk(folder, _Rules())
        return
    folders = {"": True}
    for name in listed:
        if not _in_folders(folder, name, folders):
            continue  # git knows it of a folder that a link has replaced
        try:
            mode = (folder / name).lstat().st_mode
        except OSError:  # git knows it, and it was deleted
            continue
        if stat.S_ISDIR(mode):  # a repository inside this one, whose files git does not list
            inner = folder / name
            yield from (os.path.join(name, file) for file in _files(inner, (inner / ".git").exists()))
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield name


def _listed(folder: Path) -> list[str] | None:
    """Return what git lists; None where it does not say, or ignores the folder as a whole."""
    listed = _git(folder, *_LIST, "--cached", "--others", "--exclude-standard", patience=60.0)
    # Nothing: of a folder that the repository around it ignores git knows no file.
    if listed or (listed is not None and _git(folder, "check-ignore", "-q", ".") is None):
        return sorted({name.rstrip("/") for name in listed.split("\0") if name})
    return None


def _in_folders(top: Path, name: str, known: dict[str, bool]) -> bool:
    """Whether all that is above a file, up to `top`, is folders, and no links to folders."""
    above = os.path.dirname(name)
    if above not in known:
        place = top / above
        known[above] = _in_folders(top, above, known) and place.is_dir() and not place.is_symlink()
    return known[above]


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
            env={name: value for name, value in os.environ.items() if name not in _OF_A_REPOSITORY}
            | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
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
                text = os.fsdecode((folder / name).read_bytes().removeprefix(codecs.BOM_UTF8))
            except OSError:
                continue
            lines = [line.removesuffix("\r") for line in text.split("\n")]
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
    pattern += ".*" if last == "**" else _segment(last)
    return re.compile(pattern, re.DOTALL), negated, folders_only


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
    for entry in _entries(folder, prefix):
        path = prefix + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        never = entry.name in _NEVER if is_folder else entry.name == ".git"  # a file in a worktree
        if never or rules.ignore(path, is_folder):
            continue
        if is_folder:
            yield from _walk(Path(entry.path), rules, f"{path}/")
        elif entry.is_symlink() or entry.is_file():  # of a link that leads nowhere nothing else can be asked
            yield path


def _entries(folder: Path, prefix: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        if not prefix:
            raise
        return []  # deleted since its name was read
