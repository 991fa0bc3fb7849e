"""Coroutines that wait for one thing in turn."""

import asyncio

from fray.backend import Turns


def test_a_turn_is_shorter_the_more_wait_and_one_that_has_none_goes_on_in_time() -> None:
    async def program() -> None:
        turns = Turns(0.25)
        lengths: list[float] = []

        async def wait() -> None:
            async with turns.take(60.0) as seconds:
                lengths.append(seconds)
                await asyncio.sleep(0)

        async with turns.take(60.0) as alone:
            assert alone == 0.25
            waiting = [asyncio.create_task(wait()) for _ in range(40)]
            await asyncio.sleep(0)  # they wait
            async with turns.take(0.0) as without:
                assert 0 < without < 0.25
            assert not lengths
        await asyncio.wait_for(asyncio.gather(*waiting), 20)
        assert len(lengths) == 40
        assert lengths[0] < lengths[-1] == 0.25
        assert sum(lengths) < 5.0  # all 40 had their turn by then; in turns of 0.25 s it is 10

    asyncio.run(program())


def test_one_that_is_cancelled_while_it_waits_or_has_its_turn_leaves_it_to_the_next() -> None:
    async def program() -> None:
        turns = Turns(0.25)
        has_it = asyncio.Event()

        async def hold() -> None:
            async with turns.take(60.0):
                has_it.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await asyncio.wait_for(has_it.wait(), 20)
        waiting = asyncio.create_task(hold())
        await asyncio.sleep(0)
        for task in (waiting, holding):
            task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.cancelled()
        async with turns.take(60.0) as seconds:
            assert seconds == 0.25

    asyncio.run(program())
