"""Sub-allocation of one block: the free list alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkqueue.gpu.space import Space


def test_best_fit_leaves_the_large_range_whole() -> None:
    space = Space(1024)
    hole, wall = space.take(64, 16), space.take(64, 16)
    assert hole is not None and wall is not None
    space.give(hole)
    assert space.take(48, 16) == hole
    assert space.largest == 1024 - 128


def test_neighbours_coalesce_in_any_order() -> None:
    space = Space(256)
    taken = [space.take(64, 64) for _ in range(4)]
    assert taken == [0, 64, 128, 192] and space.take(1, 1) is None
    for offset in (64, 192, 0, 128):
        space.give(offset)
    assert space.empty and space.largest == space.free == 256


def test_alignment_splits_a_range_in_three() -> None:
    space = Space(1000)
    assert space.take(8, 1) == 0
    assert space.take(100, 256) == 256
    assert space.take(240, 8) == 8, "the hole before the aligned range is still there"


def test_giving_twice_is_an_error() -> None:
    space = Space(64)
    offset = space.take(32, 1)
    assert offset is not None
    space.give(offset)
    with pytest.raises(KeyError):
        space.give(offset)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.sampled_from([1, 4, 16, 64, 256]), st.booleans()), max_size=80))
def test_ranges_never_overlap_and_everything_comes_back(steps: list[tuple[int, int, bool]]) -> None:
    space = Space(4096)
    live: dict[int, int] = {}
    for size, alignment, give_one in steps:
        offset = space.take(size, alignment)
        if offset is not None:
            assert offset % alignment == 0 and offset + size <= 4096
            assert all(offset + size <= o or o + s <= offset for o, s in live.items())
            live[offset] = size
        else:
            assert space.largest < size + alignment
        if give_one and live:
            start = min(live)
            assert space.give(start) == live.pop(start)
        assert space.free == 4096 - sum(live.values())
    for offset in live:
        space.give(offset)
    assert space.empty and space.largest == 4096
