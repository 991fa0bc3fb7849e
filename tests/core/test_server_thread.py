"""A server in a thread of its own: it starts, fails to start, is interrupted meanwhile, and stops."""

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest

from fray.backend import NoThreadError, ServerThread

pytestmark = pytest.mark.timeout(30)


def test_it_is_started_and_stopped_again_and_again() -> None:
    ended: list[bool] = []

    async def serve(listens_at: Callable[[int], None], stopping: asyncio.Event) -> None:
        listens_at(8000 + len(ended))
        await stopping.wait()
        ended.append(True)

    server = ServerThread(serve, "server")
    assert not server.stop()
    for number in range(3):
        assert server.start() == 8000 + number
        assert server.started
        assert server.stop()
        assert len(ended) == number + 1
    assert not server.started


def test_what_keeps_it_from_listening_is_raised_where_it_is_started() -> None:
    async def serve(listens_at: Callable[[int], None], stopping: asyncio.Event) -> None:
        raise OSError("the port is taken")

    server = ServerThread(serve, "server")
    with pytest.raises(OSError, match="taken"):
        server.start()
    assert not server.started


def test_ctrl_c_while_it_starts_ends_it() -> None:
    starting, ended = threading.Event(), threading.Event()

    async def serve(listens_at: Callable[[int], None], stopping: asyncio.Event) -> None:
        starting.set()
        await stopping.wait()  # before it listens
        ended.set()

    def interrupt() -> None:
        assert starting.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    server = ServerThread(serve, "server")
    with pytest.raises(KeyboardInterrupt):
        server.start()
    interrupter.join()
    assert ended.is_set()
    assert not server.started


def test_where_no_thread_can_be_started_nothing_is_left_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(listens_at: Callable[[int], None], stopping: asyncio.Event) -> None:
        listens_at(8000)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    server = ServerThread(serve, "server")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NoThreadError, match="'server' was not started"):
            server.start()
    assert not server.started
    assert not server.stop()
