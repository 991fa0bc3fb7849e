"""The main example on real input: the same result wherever it runs."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = ["--limit", "150"]
Run = Callable[..., str]


def load_census() -> ModuleType:
    spec = importlib.util.spec_from_file_location("census", EXAMPLES / "census.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["census"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def census() -> ModuleType:
    return load_census()


@pytest.fixture
def run(census: ModuleType, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> str:
        assert census.main(argv) == 0
        return capsys.readouterr().out

    return run


def test_it_counts_the_standard_library(run: Run) -> None:
    out = run("--context", "sync", *LIMIT)
    assert out.startswith("150 files, ")
    table = [line.split() for line in out.splitlines() if line.split()[1:] == ["self"]]
    assert int(table[0][0].replace(",", "")) > 1000, "self is what Python's own library says most"


@pytest.mark.parametrize(
    "spec",
    ["threadpool", "threadpool?max_workers=1", "threadpool?check_serialization=true", "process"],
)
def test_the_result_is_the_same_everywhere(run: Run, spec: str) -> None:
    assert run("--context", spec, *LIMIT) == run("--context", "sync", *LIMIT)


def test_replicas_share_the_work_and_their_parts_add_up(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run("--context", "sync", *LIMIT)
    monkeypatch.setenv("FRAY_REPLICA_COUNT", "2")
    for replica in ("0", "1"):
        monkeypatch.setenv("FRAY_REPLICA_ID", replica)
        part = run("--context", "threadpool", *LIMIT, "--save", str(tmp_path))
        assert part == f"75 files counted into {tmp_path}/part-{replica}.json\n"
    assert run("--merge", str(tmp_path)) == whole


def test_parts_of_an_earlier_run_are_not_counted_again(
    run: Run,
    census: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for replica, count in (("0", "3"), ("1", "3"), ("2", "3"), ("0", "2"), ("1", "2")):
        monkeypatch.setenv("FRAY_REPLICA_COUNT", count)
        monkeypatch.setenv("FRAY_REPLICA_ID", replica)
        run("--context", "sync", "--limit", "6", "--save", str(tmp_path))
    with pytest.raises(SystemExit):
        census.main(["--merge", str(tmp_path)])
    assert "does not hold all parts of one run" in capsys.readouterr().err


def test_a_folder_without_parts_is_refused(census: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        census.main(["--merge", str(tmp_path)])
