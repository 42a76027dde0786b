"""Which barrier is enough: a narrow one between launches, the full one where bytes are moved.

On an H200 a barrier that has the transfer stage in it costs some 5 µs, one of launches alone some 1.3 µs. The stream
counts on each barrier to cover everything before it on the queue, so a narrow one leaves a debt: the next command that
moves bytes stands behind a full barrier, whether it asked for one or not.
"""

from __future__ import annotations

from typing import Any, Protocol


class Barriers(Protocol):
    """Records barriers; see `commands.Commands`."""

    def barrier(self, command: Any) -> None: ...

    def barrier_of_launches(self, command: Any) -> None: ...


class Order:
    """What has been recorded since the last full barrier, on a queue or in one recording.

    Attributes:
        moved: whether bytes were moved by commands since; a narrow barrier does not cover those.
        narrow: whether a narrow barrier was recorded since.
    """

    __slots__ = ("_barriers", "moved", "narrow")

    def __init__(self, barriers: Barriers) -> None:
        self._barriers = barriers
        self.moved = self.narrow = False

    def before(self, command: Any, wanted: bool, moves: bool) -> bool:
        """Record the barrier that has to stand before the next row or node; whether there was one.

        Args:
            wanted: whether one was asked for, which orders everything before with everything after.
            moves: whether what comes next moves bytes (or may).
        """
        full = (wanted and (moves or self.moved)) or (moves and self.narrow)
        if full:
            self.full(command)
        elif wanted:
            self._barriers.barrier_of_launches(command)
            self.narrow = True
        if moves:
            self.moved = True
        return full or wanted

    def full(self, command: Any) -> None:
        """One that stands for all."""
        self._barriers.barrier(command)
        self.moved = self.narrow = False
