"""Requests with so many under way at any time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

DEPTHS = {"": 2, "_alone": 1}
"""Transfers under way, by the end of a figure's name."""


def rate(start: Callable[[], Any], *, under_way: int, count: int) -> tuple[float, Any]:
    """(requests per second, the last result) of `count` requests; those before them that fill the window are not
    counted.

    Args:
        start: begins one; its result is waited for with `result()`.
    """
    window = deque(start() for _ in range(under_way))
    started = 0.0
    for turn in range(count + under_way - 1):
        window.popleft().result()
        started = started or time.perf_counter()
        if turn < count:
            window.append(start())
    last = window.popleft().result()
    return count / (time.perf_counter() - started), last
