"""Dominators against their definition, and graphs made to take long."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vkqueue.kernels.flow import Dominators

BLOCKS = st.integers(0, 8)


def reached(edges: list[tuple[int, int]], without: int | None = None) -> set[int]:
    seen: set[int] = set()
    waiting = [] if without == 0 else [0]
    while waiting:
        block = waiting.pop()
        if block not in seen:
            seen.add(block)
            waiting += [target for source, target in edges if source == block and target != without]
    return seen


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.tuples(BLOCKS, st.integers(1, 8)), max_size=16))
def test_a_block_dominates_what_cannot_be_reached_without_it(edges):
    found = Dominators(0, edges)
    assert found.complete
    everywhere = reached(edges)
    for block in range(9):
        assert found.reaches(block) == (block in everywhere)
        for other in everywhere:
            wanted = block in everywhere and (block == other or other not in reached(edges, without=block))
            assert found.dominates(block, other) == wanted


def test_structured_control_flow_of_any_length_is_finished():
    """A chain of choices, each within a loop."""
    edges = []
    for i in range(0, 60_000, 3):
        edges += [(i, i + 1), (i, i + 2), (i + 1, i + 2), (i + 2, i + 3), (i + 2, i)]
    found = Dominators(0, edges)
    assert found.complete
    assert found.dominates(29_999, 59_999)
    assert not found.dominates(1, 2)


def test_what_is_built_to_take_long_is_given_up():
    count = 8_000
    edges = [(0, 1), (0, count)]
    edges += [(i, i + 1) for i in range(1, count)]
    edges += [(count - i, i) for i in range(1, count // 2)]
    assert not Dominators(0, edges).complete
