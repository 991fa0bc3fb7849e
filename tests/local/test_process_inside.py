"""What tasks do with their context: its references, futures and lists are those that the owner would have."""

from collections.abc import Iterator

import pytest

from fray import JobContext, create_context, get_job_context
from fray.job import ObjectRef


@pytest.fixture
def context() -> Iterator[JobContext]:
    with create_context("process", max_workers=2) as context:
        yield context


def said(word: str, count: int) -> Iterator[str]:
    for index in range(count):
        yield f"{word}{index}"


def read_stream(word: str, count: int) -> list[ObjectRef[str]]:
    """Return the items of a stream, unread."""
    return list(get_job_context().run(said, word, count))


def test_items_that_tasks_of_two_contexts_read_are_not_mixed_up(context: JobContext) -> None:
    with create_context("process", max_workers=1) as other:
        ours, theirs = context.run(read_stream, "a", 3), other.run(read_stream, "b", 3)
        context.wait([ours])
        other.wait([theirs])
        assert context.get(context.get(ours)) == ["a0", "a1", "a2"]
        assert other.get(other.get(theirs)) == ["b0", "b1", "b2"]
