"""A test of the kit that hangs fails, and so does one whose clean-up hangs after that."""

import threading

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
