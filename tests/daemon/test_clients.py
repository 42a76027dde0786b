"""Who is let in, how many, and the clock that runs while nobody is there."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.echo import EchoService, LoopClient

from vkqueue.config import Config, ConfigError
from vkqueue.daemon.access import AccessList, groups_of, peer_of
from vkqueue.daemon.clients import Clients
from vkqueue.errors import DeniedError, OverloadedError, ShuttingDownError


class Door:
    """Clients, with a service behind and socket pairs in front."""

    def __init__(self, *, most: int = 100, access: AccessList | None = None, **settings: Any) -> None:
        self.service = EchoService()
        self.idle = asyncio.Event()
        self.config = Config().replace({"daemon": settings}, "test")
        self.clients = Clients(
            self.service, self.config, access or AccessList(), most=most, on_idle=self.idle.set
        )
        self.ends: list[LoopClient] = []

    def connect(self) -> LoopClient:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.ends.append(LoopClient(theirs))
        self.clients.admit(ours)
        return self.ends[-1]

    async def close(self) -> None:
        await self.clients.finish(0.0)
        self.clients.close()
        for end in self.ends:
            end.close()


@pytest.fixture
async def doors() -> AsyncIterator[list[Door]]:
    made: list[Door] = []
    yield made
    for door in made:
        await door.close()


async def test_a_client_is_served(doors: list[Door]) -> None:
    doors.append(door := Door())
    await door.connect().hello()
    peer = door.service.sessions[1].peer
    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())


async def test_one_client_too_many_is_told_why(doors: list[Door]) -> None:
    """Rule 46; and there is room again when one has left."""
    doors.append(door := Door(max_clients=2))
    first, second = door.connect(), door.connect()
    await first.hello()
    await second.hello()
    error = await door.connect().until_closed()
    assert isinstance(error, OverloadedError)
    assert error.data == {"limit": "max_clients", "max_clients": 2}
    first.close()
    while len(door.clients) == 2:
        await second.call("ping")
    await door.connect().hello()


async def test_the_descriptors_bound_the_clients_too(doors: list[Door]) -> None:
    doors.append(door := Door(max_clients=50, most=1))
    await door.connect().hello()
    assert isinstance(await door.connect().until_closed(), OverloadedError)


async def test_a_client_on_no_list_is_denied(doors: list[Door]) -> None:
    doors.append(door := Door(access=AccessList(users=frozenset({os.getuid() + 1}))))
    error = await door.connect().until_closed()
    assert isinstance(error, DeniedError)
    assert "allow_users" in error.message
    assert not door.service.sessions


async def test_the_lists_let_in_by_user_or_group(doors: list[Door]) -> None:
    for access in (
        AccessList(users=frozenset({os.getuid()}), groups=frozenset({1 << 30})),
        AccessList(users=frozenset({1 << 30}), groups=frozenset({os.getgid()})),
    ):
        doors.append(door := Door(access=access))
        await door.connect().hello()


async def test_supplementary_groups_count() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert groups_of(ours, peer_of(ours)) == {os.getgid(), *os.getgroups()}


def test_names_become_numbers() -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    config = Config().replace({"daemon": {"allow_users": [me, "12"], "allow_groups": ["34"]}}, "test").daemon
    assert AccessList.from_config(config) == AccessList(frozenset({os.getuid(), 12}), frozenset({34}))


def test_names_that_are_not_there_are_all_told() -> None:
    config = Config().replace({"daemon": {"allow_users": ["nobody-1"], "allow_groups": ["nogroup-1"]}}, "test").daemon
    with pytest.raises(ConfigError) as caught:
        AccessList.from_config(config)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "daemon.allow_users", "daemon.allow_groups",
    ]  # fmt: skip


async def test_other_settings_hold_from_then_on(doors: list[Door]) -> None:
    doors.append(door := Door())
    await door.connect().hello()
    door.clients.configure(Config().replace({"daemon": {"max_clients": 1}}, "test"), AccessList())
    assert isinstance(await door.connect().until_closed(), OverloadedError)


async def test_a_refusal_holds_for_all_who_come(doors: list[Door]) -> None:
    doors.append(door := Door())
    served = door.connect()
    await served.hello()
    door.clients.refusal = ShuttingDownError("the end")
    assert isinstance(await door.connect().until_closed(), ShuttingDownError)
    await served.call("ping")


async def test_the_service_may_refuse(doors: list[Door]) -> None:
    doors.append(door := Door())
    door.service.refusal = ShuttingDownError("no more sessions")
    assert isinstance(await door.connect().until_closed(), ShuttingDownError)


async def test_the_idle_clock_runs_while_nobody_is_there(doors: list[Door]) -> None:
    doors.append(door := Door(idle_exit_s=0.01))
    assert door.clients._idle_timer is not None
    client = door.connect()
    await client.hello()
    assert door.clients._idle_timer is None
    client.close()
    await door.idle.wait()


async def test_no_clock_runs_by_default(doors: list[Door]) -> None:
    doors.append(door := Door())
    assert door.clients._idle_timer is None


async def test_finish_closes_those_who_read_and_those_who_do_not(doors: list[Door]) -> None:
    doors.append(door := Door())
    quiet, deaf = door.connect(), door.connect()
    await quiet.hello()
    await deaf.hello()
    deaf.request("buffer.read", buffer=1, size=16 << 20)
    await deaf.send()
    while not door.service.sessions[2].conn.pending and len(door.service.bursts) < 3:
        await quiet.call("ping")
    await door.clients.finish(0.01)
    assert len(door.clients) == 0
    assert await quiet.until_closed() is None
