"""The notice of a provider, as what watches for it passes it on; nothing here needs a cluster."""

import sys
import threading
from types import FrameType
from typing import Any

import pytest
from metadata_server import metadata_server

from fray.testing.gates import until
from fray_ray._on_node.notices import NoticeWatch


def watching() -> bool:
    """Whether a watch of this process still asks its provider."""
    return any(thread.name == "notices" for thread in threading.enumerate())


def test_a_notice_is_given_once_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two steps of `take`: it comes before each of them in turn."""
    step, steps = 0, 1
    while step < steps:
        may_answer = threading.Event()
        with metadata_server() as server:
            server.preempted, server.before_an_answer = "TRUE", lambda: may_answer.wait(60)  # noqa: B023
            monkeypatch.setenv("GCE_METADATA_HOST", server.host)
            watch, count = NoticeWatch(), 0

            def trace(frame: FrameType, event: str, _: Any) -> Any:
                nonlocal count
                if frame.f_code is not NoticeWatch.take.__code__:
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode":
                    if count == step:  # noqa: B023
                        may_answer.set()  # noqa: B023
                        until(lambda: not watching(), "the notice has come")
                    count += 1
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                taken = watch.take()
            finally:
                sys.settrace(before)
            steps = max(steps, count)
            may_answer.set()
            until(lambda: not watching(), "the notice has come")
            found = [taken, watch.take(), watch.take()]
        assert [each for each in found if each] == ["its provider says preempted: TRUE"], step
        step += 1
    assert steps > 1, "each step of it is seen"
