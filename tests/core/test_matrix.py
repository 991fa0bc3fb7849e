"""The matrix says what the runs said, and nothing where a run failed."""

import subprocess
import sys
from pathlib import Path

import pytest

from fray.testing.matrix import contracts, expected_rows, main, rows_of

# Three promises of three kinds, on a cluster that is not there: each test is overridden.
RUN = """
import pytest
from fray.testing.cluster import UnsupportedContract, WaitContract
from fray import UnsupportedError


class TestIt(UnsupportedContract, WaitContract):
    BACKEND = "toy"
    HAS_TPUS = True

    @pytest.fixture
    def cluster(self):
        return None

    def test_a_container_that_it_cannot_run_is_refused_at_launch(self):
        with self.refuses("no | boxes"):
            raise UnsupportedError("no | boxes here")

    @pytest.mark.xfail(strict=True, reason="ids are forgotten")
    def test_an_unknown_id_is_named(self):
        raise KeyError

    def test_several_are_answered_in_the_order_of_their_ids(self):
        {several}

    test_the_first_failure_is_raised_while_others_run = None

    def test_something_of_its_own(self):
        pass
"""


def report(folder: Path, several: str) -> Path:
    (folder / "test_it.py").write_text(RUN.replace("{several}", several))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    subprocess.run([*command, "test_it.py"], cwd=folder, capture_output=True, check=False)
    return folder / "report.xml"


def test_each_outcome_has_its_word_and_its_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert main(["--write", str(page), str(report(tmp_path, "pass"))]) == 0
    text = page.read_text()
    for row in (
        "| Several are answered in the order of their ids | kept |",
        "| A tpu that it does not have is refused at launch | — |",
        "| A container that it cannot run is refused at launch | refused |",
        "| An unknown id is named | **not kept** |",
        "| The first failure is raised while others run |  |",
        "| `HAS_TPUS` | True |",
    ):
        assert row in text
    assert "A container that it cannot run is refused at launch”: no | boxes here" in text
    assert "An unknown id is named”: ids are forgotten" in text
    assert "Something of its own" not in text
    for heading, areas in contracts().items():
        assert rows_of(heading, text) == expected_rows(areas)


def test_a_failure_is_no_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, broken = tmp_path / "page.md", str(report(tmp_path, "assert False"))
    assert main(["--write", str(page), broken]) == 1
    assert "toy: fray.testing.cluster_reading.WaitContract.test_several" in capsys.readouterr().err
    assert not page.exists()
    assert main(["--write", str(page), "--without", "toy", broken]) == 0
    assert "toy" not in page.read_text()
