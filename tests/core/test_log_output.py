"""How `fray logs` prints: live, and a progress bar as one line on a terminal."""

import io

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


def test_in_a_pipe_every_step_is_a_line() -> None:
    out = io.StringIO()
    print_lines(lines(), out)
    assert out.getvalue() == "start\n10%\n50%\n100%\nend\n"
