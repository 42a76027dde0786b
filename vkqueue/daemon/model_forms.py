"""Requests for inference of a form that was accepted before (`wire/forms.py`): nothing of them is looked at again but
what may have changed since: whether its version of the model is still served, and the bounds of what may wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkqueue.daemon.model_infer import Infer
from vkqueue.errors import VkqueueError
from vkqueue.wire.forms import Filled

if TYPE_CHECKING:
    from vkqueue.daemon.model_version import VersionTable
    from vkqueue.daemon.service import Service
    from vkqueue.daemon.session import Session


class Known:
    """What an accepted request says of all of its form.

    Attributes:
        name, version: of the model, as they were given.
        serving: the id of what took it.
        order: of the model's inputs, the place of each among the bins.
    """

    __slots__ = ("held_bytes", "name", "order", "priority", "serving", "shape", "sizes", "timeout_us", "timing",
                 "version", "wanted")  # fmt: skip

    def __init__(
        self, name: str, version: int | None, serving: int, infer: Infer, order: list[int], priority: int,
        timeout_us: int,
    ) -> None:  # fmt: skip
        self.name = name
        self.version = version
        self.serving = serving
        self.shape = infer.shape
        self.sizes = infer.sizes
        self.wanted = infer.wanted
        self.timing = infer.timing
        self.held_bytes = infer.held_bytes
        self.order = order
        self.priority = priority
        self.timeout_us = timeout_us


class ModelForms:
    """Takes such requests in."""

    def __init__(self, service: Service, table: VersionTable) -> None:
        self._service = service
        self._table = table

    def again(self, session: Session, msgid: int, filled: Filled, now: int) -> bool:
        """Take a request in, or answer it by an error; False when it has to be looked at as any other."""
        known: Known | None = filled.form.memo
        if known is None or self._service.holds_up(session):
            return False
        try:
            serving = self._table.serving(known.name, known.version)
            if serving.id != known.serving:
                return False
            bins = filled.bins
            data = [bins[place] for place in known.order]
            infer = Infer(
                session, msgid, now, known.shape, known.sizes, data, known.wanted, known.timing, known.held_bytes, True
            )
            serving.infer_again(infer, known.priority, known.timeout_us)
        except VkqueueError as error:
            self._service.fail(session, msgid, error)
        except Exception:
            self._service.broken(session, msgid, "model.infer")
        return True

    def learn(self, session: Session, msgid: int, filled: Filled) -> None:
        """After a request has been looked at: if it waits for its batch now, others of its form need no such look."""
        serving = session.infers.get(msgid)
        if serving is None:
            return
        request = serving.batcher.find((session.id, msgid))
        if request is None or not request.payload.plain:
            return
        params = filled.whole()
        order = [filled.form.names.index(name) for name in serving.input_names]
        filled.form.memo = Known(
            params["name"], params.get("version"), serving.id, request.payload, order, request.priority,
            params.get("timeout_us") or 0,
        )  # fmt: skip


__all__ = ["Known", "ModelForms"]
