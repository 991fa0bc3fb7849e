"""A replica's lines in the log of the job."""

import contextlib
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fray.backend import as_last_lines, bytes_for_last_lines, complete_lines
from fray_ray._head.log_marks import LogMarks
from fray_ray._head.output import Output

_LAST_LINES = 20  # more than a message ends with would cost memory alone
_LONGEST_LINE = 1 << 20  # bytes
_BEHIND = 1 << 16  # bytes of the log in which a scheduler that takes it up looks for the last lines


def complete_log(path: str) -> None:
    """Remove a last line that a scheduler was killed in: it is written again."""
    with contextlib.suppress(OSError), Path(path).open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _BEHIND)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            end = start if newline < 0 else start + newline + 1
            if newline >= 0:
                break
        file.truncate(end)


class ReplicaLog:
    """What a replica writes, attempt after attempt.

    Args:
        output: The log of the job.
        marks: Those of that log.
    """

    def __init__(self, number: int, secrets: Iterable[str], output: Output, marks: LogMarks) -> None:
        self._output, self._marks = output, marks
        self._prefix, self._number = f"[replica-{number}] ", number
        self._secrets = tuple(secrets)
        self._rest = b""
        self._last: deque[str] = deque(maxlen=_LAST_LINES)  # the end of each, of which a message has enough
        self._longest = bytes_for_last_lines(self._secrets)
        # Where lines end that a scheduler which was killed has written already: the position behind each.
        self._ahead: deque[int] = deque()
        self._behind = 0  # the position behind the last of those that were passed over

    def begin(self, attempt: int) -> None:
        """Mark where an attempt starts."""
        self._last.clear()
        self._rest = b""
        self._print(self._mark(attempt))

    def note(self) -> dict[str, Any]:
        """Return what another scheduler needs to go on behind what was written until now."""
        return {"log": self._behind if self._ahead else self._output.size(), "rest": self._rest}

    def take_up(self, path: Path, attempt: int, note: dict[str, Any], *, began: bool) -> None:
        """Go on where a scheduler that was killed noted; what it wrote after that is not written again.

        Args:
            began: Whether something of the attempt was noted before; else its beginning may not be marked.
        """
        self._behind, self._rest = note["log"], note["rest"]
        marked = began
        with path.open("rb") as file:
            file.seek(max(0, self._behind - _BEHIND))
            before = file.read(self._behind - file.tell()).decode(errors="replace")
            position = self._behind
            for line in file:
                position += len(line)
                if line.startswith(self._prefix.encode()):
                    self._ahead.append(position)
                marked = marked or line == self._mark(attempt).encode()
        lines = before.rpartition(self._mark_begins)[2].split("\n")
        self._note_last(line.removeprefix(self._prefix) for line in lines if line.startswith(self._prefix))
        if not marked:
            self._print(self._mark(attempt))

    @property
    def _mark_begins(self) -> str:
        return f"[fray] replica {self._number} starts, attempt "

    def _mark(self, attempt: int) -> str:
        return f"{self._mark_begins}{attempt}\n"

    def write(self, piece: bytes) -> None:
        """Write the lines that a piece of output completes; a very long one in several.

        As text: Ray reads this process's output as that, and gives nothing of one that holds other bytes.
        """
        lines, self._rest = complete_lines(self._rest + piece)
        if len(self._rest) >= _LONGEST_LINE:  # it is kept, and sent with each confirmation
            lines.append(self._rest.decode(errors="replace"))
            self._rest = b""
        self._note_last(lines)
        new = [line for line in lines if not self._is_written()]
        if new:
            self._print("".join(f"{self._prefix}{line}\n" for line in new))

    def end(self) -> None:
        """Complete a last line without an end."""
        if self._rest:
            self.write(b"\n")

    def last_lines(self) -> str:
        """Return how an error message goes on with what the attempt wrote last, without secrets."""
        return as_last_lines("\n".join(self._last).encode(), self._secrets)

    def _note_last(self, lines: Iterable[str]) -> None:
        self._last.extend(line[-self._longest :] for line in lines)

    def _is_written(self) -> bool:
        """Whether the next line is in the log already."""
        if not self._ahead:
            return False
        self._behind = self._ahead.popleft()
        return True

    def _print(self, text: str) -> None:
        self._output.write((text + self._marks.after(text)).encode())
