"""An LLM engine without a GPU: an async actor whose loop makes one token for every request at each step.

    python examples/llm_engine.py --context threadpool --requests 8
    python examples/llm_engine.py --context 'ray?address=HOST:6379'

Real engines have this shape: requests join and leave the running batch between two steps of the model. The
model here is a table of which word follows which, counted in this file.
"""

import argparse
import asyncio
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

from fray import create_context


class Request:
    """A prompt, what is to be made of it, and what was."""

    def __init__(self, prompt: str, tokens: int) -> None:
        self.last, self.left = prompt, tokens
        self.made: asyncio.Queue[str] = asyncio.Queue()


class Engine:
    """Answers prompts word by word; all requests that are under way are in one batch.

    Args:
        text: What the model is made of.
        batch: Requests that are in the batch at most; others wait.
    """

    def __init__(self, text: str, batch: int = 4) -> None:
        self._follows: dict[str, list[str]] = defaultdict(list)
        words = re.findall(r"\w+", text)
        for word, after in pairwise(words):
            self._follows[word].append(after)
        self._batch = batch
        self._waiting: asyncio.Queue[Request] = asyncio.Queue()
        self._largest = 0
        self._loop = asyncio.create_task(self._run())

    async def generate(self, prompt: str, tokens: int) -> AsyncIterator[str]:
        """Yield that many words that follow a word, each as soon as it is made."""
        request = Request(prompt, tokens)
        self._waiting.put_nowait(request)
        for _ in range(tokens):
            yield await request.made.get()

    async def largest_batch(self) -> int:
        """Return how many requests were in one step at the most."""
        return self._largest

    async def _run(self) -> None:
        running: list[Request] = []
        while True:
            while len(running) < self._batch and (not running or not self._waiting.empty()):
                running.append(await self._waiting.get())
            self._largest = max(self._largest, len(running))
            for request in running:
                self._step(request)
            running = [request for request in running if request.left]
            await asyncio.sleep(0)  # a real engine awaits its model here

    def _step(self, request: Request) -> None:
        request.last = random.choice(self._follows[request.last] or list(self._follows))
        request.left -= 1
        request.made.put_nowait(request.last)


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream words from one engine to many requests.")
    parser.add_argument("--context", default="threadpool")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=12)
    args = parser.parse_args()
    with create_context(args.context) as context:
        engine = context.create_actor(Engine, Path(__file__).read_text(encoding="utf-8"))
        streams = [engine.generate("requests", args.tokens) for _ in range(args.requests)]
        for stream in streams:
            print(" ".join(context.get(word) for word in stream))
        print(f"largest batch: {context.get(engine.largest_batch())}")


if __name__ == "__main__":
    main()
