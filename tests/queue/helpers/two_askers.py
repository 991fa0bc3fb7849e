"""Two askers of one key at a server, of whom one loses an answer on its way."""

from collections.abc import Callable
from typing import Any

import pytest
from queue_proxy import SwallowingProxy

from fray import NoReplyError
from fray_queue import HttpQueue


def check_two_askers(url: str, name: str, advance: Callable[[float], None]) -> None:
    """Fetch the answer for one of them twice, as its request is repeated; the other has its answer later."""
    with (
        SwallowingProxy(url) as proxy,
        HttpQueue[Any](url, name, create=True) as direct,
        HttpQueue[Any](proxy.url, name) as unlucky,
    ):
        assert direct.size() == 0  # which creates it
        first = unlucky.push("question", key="k", reply=True)
        second = direct.push("question", key="k", reply=True)
        lease = direct.pop()
        assert lease is not None
        direct.done(lease, result="answer")
        proxy.swallow_every, proxy.answered = 2, 1
        assert first.result(timeout=30.0) == "answer"
        assert proxy.swallowed == 1
        advance(61.0)
        assert second.result(timeout=30.0) == "answer"
        advance(61.0)
        third = direct.fetch_replies([second.item_id])
        with pytest.raises(NoReplyError):
            third[second.item_id].get()
