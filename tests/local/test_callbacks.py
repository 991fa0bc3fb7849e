"""Callbacks of futures that end their context, or the thread that calls them."""

import sys
import threading
from concurrent.futures import Future

import pytest

from fray import TaskCancelledError, create_context
from fray.testing.gates import until
from fray.testing.tasks import add

SPECS = ["sync", "threadpool?max_workers=1", "process?max_workers=1"]


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("spec", SPECS)
def test_a_callback_shuts_its_context_down(spec: str, cancelled: bool) -> None:
    down = threading.Event()
    context = create_context(spec)
    argument: Future[int] = Future()
    future = context.as_executor().submit(add, argument)  # type: ignore[arg-type] # it arrives as its value

    def shut_down(_: object) -> None:
        context.shutdown()
        down.set()

    def program() -> None:
        future.add_done_callback(shut_down)
        if cancelled:
            future.cancel()
        argument.set_result(1)

    # On a thread of its own: a deadlock fails this test and not the run.
    threading.Thread(target=program, daemon=True).start()
    assert down.wait(60)
    context.shutdown()
    assert future.cancelled() if cancelled else future.result() == 2


@pytest.mark.parametrize("spec", SPECS[1:])
def test_a_callback_that_exits_is_reported_and_ends_nothing(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: reported.append(kind))

    def leave(_: object) -> None:
        raise SystemExit(3)

    with create_context(spec) as context:
        argument: Future[int] = Future()
        future = context.as_executor().submit(add, argument)  # type: ignore[arg-type] # it arrives as its value
        future.add_done_callback(leave)
        argument.set_result(1)
        assert future.result(timeout=60) == 2
        assert context.get(context.run(add, 2), timeout=60) == 3
        until(lambda: reported, "it is reported")  # on a thread that the end of the context does not wait for
    assert reported == [SystemExit]


def test_a_callback_that_ends_the_program_leaves_its_context_in_order() -> None:
    def leave(_: object) -> None:
        raise SystemExit(3)

    with create_context("threadpool") as context:
        future = context.as_executor().submit(add, Future())  # type: ignore[arg-type] # it arrives as its value
        future.add_done_callback(leave)
        with pytest.raises(SystemExit):
            future.cancel()


@pytest.mark.parametrize("spec", SPECS)
def test_the_future_of_a_cancelled_task_raises_its_error(spec: str) -> None:
    with create_context(spec) as context:
        future = context.as_executor().submit(add, Future())  # type: ignore[arg-type] # it arrives as its value
        assert future.cancel()
        with pytest.raises(TaskCancelledError, match=r"add\(\) was cancelled"):
            future.result(timeout=60)
        with pytest.raises(TaskCancelledError):
            future.exception(timeout=60)
