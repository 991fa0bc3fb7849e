"""The lines of standard input, as they arrive."""

import codecs
import io
import sys
from collections.abc import Iterator
from typing import cast

_MOST = 1000  # lines that are handed on together
_CHUNK = 1 << 20  # bytes; of a pipe arrives what it holds


def arriving_lines() -> Iterator[list[str]]:
    """Yield what has arrived, up to 1,000 lines at a time; waits for no more than the end of one line."""
    stdin = sys.stdin
    binary = codecs.getincrementaldecoder(stdin.encoding)(stdin.errors or "strict")
    decoder = io.IncrementalNewlineDecoder(binary, translate=True)
    begun: list[str] = []  # the parts of a line whose end is still to come
    # A buffered reader, whose `read1` waits for no more than there is.
    while data := cast("io.BufferedReader", stdin.buffer).read1(_CHUNK):
        first, *lines = decoder.decode(data).split("\n")
        begun.append(first)
        if lines:
            lines = ["".join(begun), *lines]
            begun = [lines.pop()]
            yield from _parts(lines)
    last = "".join([*begun, decoder.decode(b"", final=True)])
    if last:
        yield from _parts(last.removesuffix("\n").split("\n"))


def _parts(lines: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(lines), _MOST):
        yield lines[start : start + _MOST]
