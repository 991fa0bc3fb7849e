"""A test of the kit that hangs fails, and so does one whose clean-up hangs after that."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fray.testing.deadline import DeadlinePassedError, deadline


def test_a_block_that_hangs_fails_with_the_stacks_of_all_threads() -> None:
    with (
        pytest.raises(DeadlinePassedError, match=r"(?s)not done within 0\.1 s.*test_deadline"),
        deadline(0.1),
    ):
        threading.Event().wait()


def test_a_block_that_hangs_again_in_its_clean_up_fails_again() -> None:
    reached: list[str] = []

    def hang_twice() -> None:
        try:
            threading.Event().wait()
        finally:
            reached.append("clean-up")
            threading.Event().wait()

    with pytest.raises(DeadlinePassedError), deadline(0.1, again=0.1):
        hang_twice()
    assert reached == ["clean-up"]


def test_a_block_that_ends_in_time_leaves_no_thread() -> None:
    before = threading.active_count()
    with deadline(100):
        pass
    assert threading.active_count() == before


SLOW_REPORT = """
import time
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    time.sleep(0.5)  # longer than `again`: the report of what hung is slow to write
    return (yield)
"""
HANGS = """
import threading
import pytest
from fray.testing.deadline import deadline


@pytest.fixture
def in_time():
    with deadline(2.0, again=0.1):
        yield


def test_hangs(in_time):
    threading.Event().wait()


def test_passes():
    pass
"""


def test_a_deadline_that_passes_while_pytest_reports_fails_its_test_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SLOW_REPORT)
    (tmp_path / "test_it.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout, done.stdout


HANGS_AT_ITS_END = """
import threading
import pytest
from fray.testing.deadline import deadline


class TestIt:
    @pytest.fixture(autouse=True)
    def _known(self):
        self.known = True

    @pytest.fixture(autouse=True)
    def _in_time(self, _known):
        with deadline(2.0, again=0.1):
            yield

    @pytest.fixture
    def hanging(self):
        yield
        threading.Event().wait()

    def test_hangs(self, hanging):
        pass

    def test_passes(self):
        assert self.known
"""


def test_a_test_whose_clean_up_hangs_leaves_its_fixtures_to_no_other(tmp_path: Path) -> None:
    """Pytest cleans up the rest only where it knows the failure; else the next test is given what is left."""
    (tmp_path / "test_it.py").write_text(HANGS_AT_ITS_END)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert "2 passed, 1 error" in done.stdout, done.stdout
