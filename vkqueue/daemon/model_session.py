"""The session of a loaded model: as a client's, but without a socket. Its rows' answers go to functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from vkqueue.daemon.session import Peer, Session
from vkqueue.errors import VkqueueError
from vkqueue.wire.session import ServerConnection

Answer = Callable[[Any, VkqueueError | None], None]
"""Gets a row's result, or why there is none."""


class Calls:
    """In place of a connection: hands each answer to whoever made the row.

    Attributes:
        pending: always empty: the daemon is busy for the clients of a model, not for the model.
    """

    bytes_out = 0

    def __init__(self) -> None:
        self.pending: frozenset[int] = frozenset()
        self.refused: tuple[int, ...] = ()
        self._answers: dict[int, Answer] = {}
        self._last = 0

    def new(self, answer: Answer) -> int:
        """The msgid of a row that is answered to `answer`."""
        self._last += 1
        self._answers[self._last] = answer
        return self._last

    def respond(self, msgid: int, result: object) -> bool:
        """As a connection's."""
        self._answers.pop(msgid)(result, None)
        return True

    def respond_packed(self, msgid: int, packed_result: bytes) -> None:
        """As a connection's."""
        self._answers.pop(msgid)(None, None)

    def respond_alike(self, msgids: list[int], packed_result: bytes) -> None:
        """As a connection's."""
        for msgid in msgids:
            self._answers.pop(msgid)(None, None)

    def fail(self, msgid: int, error: VkqueueError) -> None:
        """As a connection's."""
        self._answers.pop(msgid)(None, error)


def _nothing() -> None:
    pass


class ModelSession(Session):
    """The owner of a model's buffers and rows.

    Attributes:
        answer: gives the answers that are due to `answered`; the model puts its own here.
        answered: sessions of clients that have got answers in this burst; `flush` sends them.
    """

    internal = True

    def __init__(self, id: int) -> None:
        self.calls = Calls()
        super().__init__(id, cast(ServerConnection, self.calls), Peer(), self._flush)
        self.answer: Callable[[], None] = _nothing
        self.answered: dict[int, Session] = {}

    def _flush(self) -> None:
        self.answer()
        answered, self.answered = self.answered, {}
        for session in answered.values():
            session.flush()


__all__ = ["Answer", "Calls", "ModelSession"]
