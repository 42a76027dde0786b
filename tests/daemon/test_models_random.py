"""Random histories of models: whatever comes in whatever order, each request is answered once, and accounts close."""

from __future__ import annotations

import random
from typing import Any

import pytest
from daemon.test_models import infer, settle, turns
from support.affine import loading
from support.inprocess import InProcessClient, Rig

from vkqueue.errors import JobTimeoutError, OutOfDeviceMemoryError
from vkqueue.model import GRAPH, ROW_MSGID, ROW_OP

POLICIES: list[dict[str, Any] | None] = [
    None,
    {},
    {"preserve_ordering": True},
    {"preferred_batch_size": [2, 4], "default_queue_policy": {"max_queue_size": 6}},
]
ANSWERS = {None, "device_lost", "cancelled", "overloaded", "not_found", "out_of_memory", "timeout", "invalid"}


class History:
    """One service with a few clients, and what they are owed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = Rig().start()
        self.clients = [self.rig.client() for _ in range(3)]
        self.owed: dict[InProcessClient, set[int]] = {client: set() for client in self.clients}
        self.buffers: dict[InProcessClient, list[int]] = {client: [] for client in self.clients}

    def client(self) -> InProcessClient:
        return self.random.choice(self.clients)

    def owe(self, client: InProcessClient, msgid: int) -> None:
        self.owed[client].add(msgid)

    def look(self) -> None:
        """Take the answers that are there."""
        for client, owed in self.owed.items():
            for msgid in list(owed):
                if client.has(msgid):
                    owed.remove(msgid)
                    assert client.code(msgid) in ANSWERS

    async def step(self) -> None:
        name = self.random.choices(
            ["infer", "buffers", "cancel", "close", "free", "finish", "fail", "late", "turn", "load", "unload", "lose"],
            [12, 5, 3, 1, 2, 8, 2, 1, 4, 2, 1, 1],
        )[0]
        await getattr(self, "do_" + name)()
        self.look()

    async def do_infer(self) -> None:
        client = self.client()
        for _ in range(self.random.randint(1, 4)):
            x = [[1.0] * self.random.randint(1, 17)] * self.random.randint(1, 3)
            self.owe(client, infer(client, x, outputs=self.random.choice([None, ["total"]])))

    async def do_buffers(self) -> None:
        client = self.client()
        if not self.buffers[client]:
            created = client.send("buffer.create", size=1024)
            await settle(self.rig)
            if client.has(created):
                self.buffers[client].append(client.result(created)["buffer"])
        if self.buffers[client]:
            buffer = self.random.choice(self.buffers[client])
            given = {"x": {"shape": [2, self.random.randint(1, 16)], "buffer": buffer, "offset": 4}}
            wanted = self.random.choice([None, {"rows": {"buffer": buffer, "offset": 512}}, {"total": None}])
            self.owe(client, client.send("model.infer", name="m", inputs=given, outputs=wanted))

    async def do_free(self) -> None:
        client = self.client()
        if self.buffers[client]:
            self.owe(client, client.send("buffer.free", buffer=self.buffers[client].pop()))

    async def do_cancel(self) -> None:
        client = self.client()
        if self.owed[client]:
            client.call("cancel", msgid=self.random.choice(sorted(self.owed[client])))

    async def do_close(self) -> None:
        client = self.client()
        client.close()
        self.clients.remove(client)
        del self.owed[client], self.buffers[client]
        new = self.rig.client()
        self.clients.append(new)
        self.owed[new], self.buffers[new] = set(), []

    async def do_finish(self) -> None:
        if self.rig.thread.batches:
            self.rig.thread.finish()

    async def do_fail(self) -> None:
        if self.rig.thread.batches:
            graphs = [row for row in self.rig.thread.batches[0].rows if row[ROW_OP] == GRAPH]
            error = OutOfDeviceMemoryError("no room")
            self.rig.thread.finish({row[ROW_MSGID]: error for row in graphs})

    async def do_late(self) -> None:
        if self.rig.thread.batches and all(row[ROW_OP] == GRAPH for row in self.rig.thread.batches[0].rows):
            self.rig.thread.late(JobTimeoutError("late"))
            self.rig.thread.finish()

    async def do_turn(self) -> None:
        await turns()
        self.rig.turn()
        await turns()

    async def do_load(self) -> None:
        client = self.client()
        policy = self.random.choice(POLICIES)
        version = self.random.randint(1, 2)
        self.owe(client, client.send("model.load", **loading(version=version, dynamic_batching=policy)))
        if self.random.random() < 0.7:
            await settle(self.rig)

    async def do_unload(self) -> None:
        client = self.client()
        self.owe(client, client.send("model.unload", name="m"))

    async def do_lose(self) -> None:
        self.rig.thread.lose()
        for client in self.clients:  # what a client does with handles of the lost device
            for buffer in self.buffers[client]:
                self.owe(client, client.send("buffer.free", buffer=buffer))
            self.buffers[client].clear()
        if self.random.random() < 0.5:
            await turns()
        self.rig.thread.open()

    async def end(self) -> None:
        """Let all come to rest; nobody is owed anything, and nothing is left."""
        await settle(self.rig)
        self.look()
        assert not any(self.owed.values())
        models = self.rig.service.models
        for version in models.table.all():
            counted = version.statistics
            assert counted.accepted == sum(each.count for each in counted.requests.values())
            models.spawn(models.unload(version.name, version.number))
        await settle(self.rig)
        assert not [session for session in self.rig.service.sessions.values() if session.internal]
        self.rig.finish()


@pytest.mark.parametrize("seed", range(40))
async def test_a_random_history(seed: int) -> None:
    history = History(seed)
    await history.do_load()
    await settle(history.rig)
    for _ in range(80):
        await history.step()
    await history.end()
