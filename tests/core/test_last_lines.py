"""The end of a log in a message: enough of it, and nothing that is secret."""

from pathlib import Path

import pytest

from fray.cluster import last_lines, redacted


@pytest.mark.parametrize(
    ("secrets", "shown"),
    [
        (["hunter2", "hunter2-long-token"], "with *** in it"),
        (["hunter2-long", "long-token"], "with *** in it"),
        (["token-token"], "with hunter2-long-token in it"),
        (["with", "in it"], "with hunter2-long-token in it"),
    ],
)
def test_no_part_of_a_secret_is_left_whichever_others_there_are(secrets: list[str], shown: str) -> None:
    for order in (secrets, secrets[::-1]):
        assert redacted("with hunter2-long-token in it", order) == shown


@pytest.mark.parametrize("shift", range(-2, 24))
def test_a_secret_that_the_cut_goes_through_is_not_seen_in_part(tmp_path: Path, shift: int) -> None:
    log, secret = tmp_path / "log", "sk-0123456789ABCDEF"
    log.write_text(f"{secret * 3}{'y' * (4096 - shift)}")
    shown = last_lines(log, [secret])
    assert not any(secret[start : start + 2] in shown for start in range(len(secret) - 1))
    assert shown.endswith("y" * (4096 - max(shift, 0)))


def test_the_message_goes_on_with_the_last_of_many_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100)) + b"\xe4 caf\xc3\xa9")
    assert last_lines(log, []).splitlines() == [
        "",
        "its last lines:",
        *(f"  line {number}" for number in range(81, 100)),
        "  \ufffd caf\u00e9",
    ]
    log.write_bytes(b"")
    assert last_lines(log, []) == "; it wrote nothing"
    assert last_lines(tmp_path / "missing", []) == ""
