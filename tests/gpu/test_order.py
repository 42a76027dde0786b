"""Narrow barriers leave no hole: whatever stands on two sides of a barrier that was asked for is ordered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkqueue.gpu.order import Order

FULL, NARROW, LAUNCH, MOVE = "full", "narrow", "launch", "move"


class Log:
    """What would be recorded."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def barrier(self, command: Any) -> None:
        self.commands.append(FULL)

    def barrier_of_launches(self, command: Any) -> None:
        self.commands.append(NARROW)


def record(rows: list[tuple[bool, bool]]) -> tuple[list[str], list[int]]:
    """Rows (whether a barrier was asked for, whether it moves bytes), as the recorder does it; and where each lies."""
    log = Log()
    order = Order(log)
    places = []
    for wanted, moves in rows:
        before = len(log.commands)
        assert order.before(None, wanted, moves) == (len(log.commands) > before)
        places.append(len(log.commands))
        log.commands.append(MOVE if moves else LAUNCH)
    return log.commands, places


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=24))
def test_rows_on_two_sides_of_a_barrier_are_ordered(rows: list[tuple[bool, bool]]) -> None:
    commands, places = record(rows)
    for later in range(len(rows)):
        for earlier in range(later):
            if not any(wanted for wanted, _ in rows[earlier + 1 : later + 1]):
                continue
            between = commands[places[earlier] : places[later]]
            both_launch = not rows[earlier][1] and not rows[later][1]
            assert FULL in between or (both_launch and NARROW in between), (rows, commands)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Launches that depend on each other: narrow ones only.
        ([(False, False), (True, False), (True, False)], [LAUNCH, NARROW, LAUNCH, NARROW, LAUNCH]),
        # Bytes moved before: the next is full, and those behind it narrow again.
        ([(False, True), (True, False), (True, False)], [MOVE, FULL, LAUNCH, NARROW, LAUNCH]),
        # A copy behind a narrow barrier that was for others: it was not asked for, and there is one.
        ([(False, False), (True, False), (False, True)], [LAUNCH, NARROW, LAUNCH, FULL, MOVE]),
        # No barrier was asked for: none.
        ([(False, False), (False, True), (False, False)], [LAUNCH, MOVE, LAUNCH]),
    ],
)
def test_the_barriers_of(rows: list[tuple[bool, bool]], expected: list[str]) -> None:
    assert record(rows)[0] == expected
