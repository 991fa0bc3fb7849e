"""What a driver keeps of a replica's output; nothing here needs a cluster."""

import pytest

from fray_ray._head.replica_log import ReplicaLog


def test_a_secret_of_several_lines_is_in_no_message() -> None:
    log = ReplicaLog(0, ["-----BEGIN\nfirst-half\nsecond-half\n-----END"])
    log.write(b"key:\n-----BEGIN\nfirst-half\nsecond-half\n-----END\nbye\n")
    assert log.last_lines() == "; its last lines:\n  key:\n  ***\n  bye"


def test_what_is_no_text_and_returns_to_the_start_of_its_line_is_written_as_lines_of_text(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    log = ReplicaLog(3, [])
    for piece in (b"1%\r2%\r", b"\n\xff", b"\xfe", b" end"):
        log.write(piece)
    log.end()
    replaced = "\ufffd\ufffd".encode()
    written = capsysbinary.readouterr().out
    assert written == b"[replica-3] 1%\n[replica-3] 2%\n[replica-3] " + replaced + b" end\n"
