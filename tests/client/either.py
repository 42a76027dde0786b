"""One body of a test for both clients."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import vkqueue
import vkqueue.aio

Body = Callable[[Any], Coroutine[Any, Any, Any]]


class Runner:
    """Runs the body of a test with one of the clients.

    Within it, `await ready(value)` waits for what the asyncio client returns, and passes on what the blocking one does.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, body: Body, path: str, **options: Any) -> Any:
        if self.kind == "aio":
            return asyncio.run(self._in_loop(body, path, options))
        with vkqueue.connect(path, timeout=30, **options) as gpu:
            return drive(body(gpu))

    async def _in_loop(self, body: Body, path: str, options: dict[str, Any]) -> Any:
        async with vkqueue.aio.connect(path, **options) as gpu:
            return await body(gpu)


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("the body of a blocking test waited for a loop")


async def ready(value: Any) -> Any:
    """The value of what a client returned: a coroutine, a future of either kind, or the value itself."""
    if isinstance(value, vkqueue.Future):
        return value.result()
    return await value if inspect.isawaitable(value) else value


async def submitted(value: Any) -> Any:
    """The future that `submit` gives: the asyncio client's has to be awaited for."""
    return value if isinstance(value, vkqueue.Future) else await value
