"""The file among the logs of a node with what an attempt wrote there; nothing here needs a cluster."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fray_ray._on_node.replica_file import ReplicaFile

KEY = "-----BEGIN\nfirst-half\nsecond-half\n-----END"


def written(folder: Path, pieces: Sequence[bytes], secrets: Sequence[str] = (), **options: int) -> str:
    """What is in a file that these pieces were written to."""
    path = folder / "file.log"
    path.unlink(missing_ok=True)
    file = ReplicaFile(str(path), secrets, **options)
    for piece in (*filter(None, pieces), b""):
        file.feed(piece)
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_what_is_no_text_and_a_last_line_without_an_end_are_lines_of_text(tmp_path: Path) -> None:
    pieces = [b"1%\r2%\r", b"\n\xff", b"\xfe", b" end"]
    assert written(tmp_path, pieces) == "1%\n2%\n\ufffd\ufffd end\n"


@given(cuts=st.lists(st.integers(0, 80), max_size=8))
def test_no_secret_is_in_it_wherever_the_output_was_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    output = f"key:\n{KEY}\ntoken=token-value\nbye\n".encode()
    places = [0, *sorted(cuts), len(output)]
    pieces = [output[begin:end] for begin, end in pairwise(places)]
    text = written(tmp_path_factory.getbasetemp(), pieces, [KEY, "token-value"])
    assert text == "key:\n***\n***\n***\n***\ntoken=***\nbye\n"


@given(cuts=st.lists(st.integers(0, 220), max_size=8), before=st.integers(0, 20), between=st.integers(0, 20))
def test_a_line_that_is_too_long_is_cut_and_half_a_secret_is_not_in_it(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], before: int, between: int
) -> None:
    output = b"." * before + (b"token-value" + b"." * between) * 20 + b"\nnext\n"
    places = [0, *sorted(cuts), len(output)]
    pieces = [output[begin:end] for begin, end in pairwise(places)]
    text = written(tmp_path_factory.getbasetemp(), pieces, ["token-value"], longest=100)
    line, after = text.splitlines()
    assert set(line.removesuffix(" [fray] a line of more than 100 bytes")) <= {".", "*"}
    assert after == "next"


def test_files_rotate_as_rays_own_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ROTATION_MAX_BYTES", "1000")
    monkeypatch.setenv("RAY_ROTATION_BACKUP_COUNT", "2")
    last = written(tmp_path, [f"line {number}\n".encode() for number in range(1_000)])
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["file.log", "file.log.1", "file.log.2"]
    assert all(path.stat().st_size <= 1_000 for path in files)
    assert last.endswith("line 999\n")


def test_a_folder_that_is_gone_costs_the_file_not_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = ReplicaFile(str(tmp_path / "no" / "file.log"), [])
    file.feed(b"a\n")
    file.feed(b"")
    assert capsys.readouterr() == ("", "")
