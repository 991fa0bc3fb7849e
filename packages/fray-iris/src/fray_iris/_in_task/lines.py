"""What a replica writes, passed on as Iris takes it; the last lines are kept for the message of a failure."""

import collections
import os
import re
import threading

from fray_iris._in_task.redaction import redacted
from fray_iris._in_task.words import FLUSH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LAST_LINES, _LAST_BYTES = 20, 4096
_LONGEST_LINE = 1 << 20
_QUIET = 0.15  # seconds after a line until a reader that buffers is made to give it away


class Lines:
    """The lines that a replica writes, as Iris takes them: whole, text, on stderr."""

    def __init__(self) -> None:
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._lock = threading.Lock()
        # Iris's runtime for processes reads a line at a time and may keep the next ones in its buffer until
        # more comes; so a line that is no one's follows when it is quiet. In containers it reads otherwise.
        self._buffered = os.environ.get("IRIS_WORKDIR") != "/app"
        self._written = threading.Event()

    def pump(self, source: "Any") -> None:
        """Pass on what a program writes until nobody can write there any more."""
        if self._buffered:
            threading.Thread(target=self._flush_when_quiet, daemon=True).start()
        rest = b""
        while data := os.read(source.fileno(), 1 << 16):
            rest += data
            half = b"\r" if rest.endswith(b"\r") else b""  # of a line's end, perhaps
            *lines, rest = re.split(rb"\r\n|\n|\r", rest.removesuffix(half))
            for line in lines:
                self._pass_on(line)
            while len(rest) > _LONGEST_LINE:
                self._pass_on(rest[:_LONGEST_LINE])
                rest = rest[_LONGEST_LINE:]
            rest += half
        if rest:
            self._pass_on(rest.removesuffix(b"\r"))

    def _pass_on(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        self._last.append(text)
        self.write(text)
        self._written.set()

    def write(self, line: str) -> None:
        """Write one line of one source."""
        data = line.encode("utf-8", "replace") + b"\n"
        with self._lock:
            while data:
                data = data[os.write(2, data) :]

    def last(self, secrets: "list[str]") -> str:
        """Return the end of a message: the last lines, without secrets."""
        text = "\n".join(f"  {line}" for line in self._last)
        text = redacted(text, secrets)[-_LAST_BYTES:]
        return f"\nits last lines:\n{text}" if text else "; it wrote nothing"

    def _flush_when_quiet(self) -> None:
        while True:
            self._written.wait()
            self._written.clear()
            if not self._written.wait(_QUIET):
                self.write(FLUSH)
