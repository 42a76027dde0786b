"""Memory for large data: used again once nobody looks at it, and never before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from vkqueue import large
from vkqueue.large import LARGE, idle_bytes, new_large


@pytest.fixture(autouse=True)
def nothing_idle() -> Iterator[None]:
    gc.collect()
    del large._idle[:]
    yield
    del large._idle[:]


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_it_is_as_long_as_asked_for_and_writable() -> None:
    for size in (1, LARGE, LARGE + 1, 5 * LARGE - 3):
        view = new_large(size)
        assert (len(view), view.format, view.itemsize, view.c_contiguous) == (size, "B", 1, True)
        view[-1] = 7
        assert view[-1] == 7


def test_pages_are_used_again_once_all_views_are_gone() -> None:
    first = new_large(3 * LARGE)
    place = address(first)
    part, array = first[LARGE:], np.frombuffer(first, np.uint8)[5:]
    del first
    assert address(new_large(3 * LARGE)) != place
    del part
    assert address(new_large(3 * LARGE)) != place
    del array
    assert address(new_large(4 * LARGE)) == place, "the same room serves sizes that are rounded alike"
    assert address(new_large(LARGE)) != place


def test_what_is_kept_is_bounded() -> None:
    views = [new_large(large.KEEP_BYTES // 4) for _ in range(9)]
    assert idle_bytes() == 0
    views.clear()
    assert idle_bytes() == large.KEEP_BYTES
    huge = new_large(2 * large.KEEP_BYTES)  # a promise, of which nothing is touched
    del huge
    assert idle_bytes() == large.KEEP_BYTES, "it would drive out all others"


def test_no_two_have_the_same_pages_whatever_threads_do() -> None:
    faults: list[str] = []

    def work(number: int) -> None:
        for turn in range(300):
            view = new_large(LARGE + turn)
            mark = bytes([number, turn % 256])
            view[:2] = view[-2:] = mark
            other = new_large(LARGE)
            other[:2] = b"\xff\xff"
            if view[:2] != mark or view[-2:] != mark:
                faults.append(f"thread {number}, turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert idle_bytes() <= large.KEEP_BYTES
