"""How `fray logs` prints: live, and a progress bar as one line on a terminal."""

import io

import pytest

from fray.backend import LineSplitter, print_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines() -> list[str]:
    return LineSplitter().feed(b"start\n10%\r50%\r100%\nend\n")


def test_a_progress_bar_collapses_on_a_terminal() -> None:
    out = Terminal()
    print_lines(lines(), out)
    shown = out.getvalue()
    assert shown.startswith("start\n")
    assert shown.endswith("100%\nend\n")
    # Each step clears the line before it: no line break stays between them.
    assert shown.count("\n") == 3
    assert shown.count("\r\x1b[K") == 3


def test_a_terminal_is_left_on_a_line_of_its_own() -> None:
    out = Terminal()
    print_lines(LineSplitter().feed(b"10%\r50%\r60%"), out)
    assert out.getvalue().endswith("50%\n")


def test_a_step_takes_one_row_of_a_terminal_and_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    print_lines(LineSplitter().feed("\N{CJK UNIFIED IDEOGRAPH-4E2D}".encode() * 15 + b"\r-"), out)
    assert out.getvalue() == "\r\x1b[K" + "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 9 + "\n"
    out = Terminal()
    print_lines(LineSplitter().feed(b"\x1b[32m" + b"#" * 40 + b"\x1b[0m\r-"), out)
    assert out.getvalue() == "\r\x1b[K\x1b[32m" + "#" * 14 + "\x1b[0m\n"


def test_in_a_pipe_every_step_is_a_line() -> None:
    out = io.StringIO()
    print_lines(lines(), out)
    assert out.getvalue() == "start\n10%\n50%\n100%\nend\n"
