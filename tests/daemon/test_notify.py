"""The service manager's protocol, over a real datagram socket."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vkqueue.daemon.notify import Notifier


@pytest.fixture
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path_factory.mktemp("n") / "n"))
        bound.setblocking(False)
        yield bound


async def test_messages(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    before = time.monotonic_ns() // 1000
    notifier.ready("serving\nat x")
    notifier.reloading()
    notifier.status("busy")
    notifier.watchdog()
    notifier.stopping("bye")
    notifier.close()
    notifier.ready("is not sent")
    assert manager.recv(1000) == b"READY=1\nSTATUS=serving at x"
    reloading, _, usec = manager.recv(1000).decode().partition("\nMONOTONIC_USEC=")
    assert reloading == "RELOADING=1"
    assert before <= int(usec) <= time.monotonic_ns() // 1000
    assert [manager.recv(1000) for _ in range(3)] == [b"STATUS=busy", b"WATCHDOG=1", b"STOPPING=1\nSTATUS=bye"]
    with pytest.raises(BlockingIOError):
        manager.recv(1000)


def test_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"vkqueue-test-{os.getpid()}"
        manager.bind(f"\0{name}")
        notifier = Notifier({"NOTIFY_SOCKET": f"@{name}"})
        notifier.status("here")
        assert manager.recv(100) == b"STATUS=here"
        notifier.close()


def test_without_a_manager_nothing_happens() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "1000000"})
    notifier.ready("unheard")
    assert notifier.watchdog_s == 0.0


def test_a_manager_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    notifier.ready("unheard")
    notifier.close()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdog_is_fed_at_half_its_time(environ: dict[str, str], seconds: float) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/nowhere", **environ})
    assert notifier.watchdog_s == seconds
    notifier.close()
