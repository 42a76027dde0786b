"""Several versions of one model: which are loaded when some cannot be, and which one the statistics are of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from daemon.test_models import Stored, call, infer, load, settle, unloading
from support.inprocess import InProcessClient, Rig, ServiceError

from vkqueue.errors import NotFoundError
from vkqueue.models.repository import Found
from vkqueue.models.source import ModelSource

__all__ = ["unloading"]


class Several(Stored):
    """The model in versions, of which those in `broken` cannot be read."""

    def __init__(self, *versions: int) -> None:
        super().__init__()
        self.versions = versions
        self.broken: set[int] = set()

    def look(self, name: str) -> Found:
        return Found(name, self.versions)

    def read(self, name: str, version: int | None = None) -> ModelSource:
        if version in self.broken:
            raise NotFoundError(f"{version} has no weights")
        return super().read(name, version)


@pytest.fixture
def rig(make_rig: Callable[..., Rig], unloading: Callable[[Rig], None]) -> Rig:
    found: Rig = make_rig()
    unloading(found)
    return found


def states(client: InProcessClient) -> dict[int, str]:
    return {one["version"]: one["state"] for one in client.call("model.list")}


async def test_statistics_say_which_version_is_ready(rig: Rig) -> None:
    repository = rig.service.models.repository = Several(1, 2)  # type: ignore[assignment]
    repository.broken = {2}  # type: ignore[attr-defined]
    client = rig.client()
    for version in (1, 2):
        client.send("model.load", name="m", version=version)
    await settle(rig)
    found = client.call("model.statistics", name="m")
    assert [(one["version"], one["state"]) for one in found] == [(1, "READY"), (2, "UNAVAILABLE")]
    msgid = infer(client, [[1]])
    rig.settle()
    assert client.result(msgid)["version"] == 1


@pytest.mark.parametrize("at_start", [True, False])
async def test_a_version_that_fails_keeps_no_other_from_being_loaded(unloading: Any, at_start: bool) -> None:
    rig = Rig()
    unloading(rig)
    repository = Several(1, 2, 3, 4)
    repository.broken = {1, 3}
    if at_start:
        rig.service.models.repository = repository  # type: ignore[assignment]
    rig.start()
    await settle(rig)
    client = rig.client()
    if not at_start:
        rig.service.models.repository = repository  # type: ignore[assignment]
        with pytest.raises(ServiceError) as caught:
            await call(rig, client, "model.load", name="m")
        assert caught.value.code == "not_found"
        assert caught.value.message == (
            "model 'm': versions 1, 3 could not be loaded; 1: 1 has no weights (`model.list` has all reasons); "
            "loaded: 2, 4"
        )
        assert caught.value.data == {"failed": [1, 3], "loaded": [2, 4]}
    assert states(client) == {1: "UNAVAILABLE", 2: "READY", 3: "UNAVAILABLE", 4: "READY"}


async def test_others_are_unloaded_only_when_all_that_is_selected_is_there(rig: Rig) -> None:
    client = rig.client()
    await load(rig, client)  # version 1, which is not among those selected
    repository = Several(2, 3)
    rig.service.models.repository = repository  # type: ignore[assignment]
    repository.broken = {2}
    with pytest.raises(ServiceError, match="version 2 could not be loaded: 2 has no weights; loaded: 3"):
        await call(rig, client, "model.load", name="m")
    assert states(client) == {1: "READY", 2: "UNAVAILABLE", 3: "READY"}
    repository.broken = set()
    assert await call(rig, client, "model.load", name="m") == {"name": "m", "version": 3}
    assert states(client) == {2: "READY", 3: "READY"}
