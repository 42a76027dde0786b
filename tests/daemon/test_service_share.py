"""`buffer.share`: each request has its own descriptor, whatever became of those before it, and none is left open."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.inprocess import AXPY, InProcessClient, Rig

from vkqueue.model import ROW_MSGID, ROW_PAYLOAD, Batch

SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def memfd(size: int, first: bytes = b"", seals: int = SEALED, flags: int = 0) -> int:
    file = os.memfd_create("shared", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(file, size)
    if first:
        os.pwrite(file, first, 0)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


@pytest.fixture(autouse=True)
def no_file_is_left_open() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before


def is_mapped() -> bool:
    return "memfd:shared" in Path("/proc/self/maps").read_text()


def share(client: InProcessClient, file: int, size: int = 4096, **params: Any) -> int:
    client.session.files.append(file)
    return client.send("buffer.share", size=size, **params)


def payload(rig: Rig, msgid: int) -> Any:
    rows = [row for item in rig.thread.posted if isinstance(item, Batch) for row in item.rows]
    return next(row[ROW_PAYLOAD] for row in rows if row[ROW_MSGID] == msgid)


async def test_a_shared_buffer_is_the_clients_memory(rig: Rig) -> None:
    client = rig.client()
    msgid = share(client, memfd(4096, b"theirs"), size=100)
    size, shared = payload(rig, msgid)
    assert (size, bytes(shared.map[:6])) == (100, b"theirs")
    rig.settle()
    assert client.result(msgid) == {"buffer": 1, "size": 100}
    assert client.session.memory_bytes == 100
    del shared
    gc.collect()
    assert is_mapped()
    rig.thread.posted.clear()  # the device has dropped it
    gc.collect()
    assert not is_mapped()


@pytest.mark.parametrize(
    "failure",
    [{"size": -1}, {"size": 0}, {"size": 4096, "sise": 1}, {"size": 2**40}, {"size": 8192}, {"size": 4, "device": 9}],
    ids=str,
)
async def test_a_failed_request_takes_its_descriptor_along(rig: Rig, failure: dict[str, Any]) -> None:
    """Else the next one would get it, and share other memory than it says."""
    client = rig.client()
    client.session.files.extend([memfd(4096, b"wrong"), memfd(4096, b"right")])
    failed, good = client.burst(
        ("buffer.share", {**failure, "as": 1}), ("buffer.share", {"size": 4096, "as": 2})
    )
    assert client.has(failed)
    assert bytes(payload(rig, good)[1].map[:5]) == b"right"
    rig.settle()
    assert client.code(failed) in ("invalid", "too_large")
    assert client.code(good) is None


async def test_a_cancelled_request_takes_its_descriptor_along(rig: Rig) -> None:
    client = rig.client()
    rig.helper.holding = True
    client.send("module.load", spirv=AXPY, **{"as": 1})
    client.send("module.inspect", module=1, format="json")
    waits = share(client, memfd(4096, b"wrong"), **{"as": 2})
    good = share(client, memfd(4096, b"right"), **{"as": 3})
    assert client.call("cancel", msgid=waits) == {"cancelled": True}
    rig.helper.answer()
    assert bytes(payload(rig, good)[1].map[:5]) == b"right"
    rig.settle()
    assert (client.code(waits), client.code(good)) == ("cancelled", None)


async def test_a_connection_that_closes_closes_what_waits(rig: Rig) -> None:
    client = rig.client()
    rig.helper.holding = True
    client.send("module.load", spirv=AXPY, **{"as": 1})
    client.send("module.inspect", module=1, format="json")
    share(client, memfd(4096), **{"as": 2})
    client.session.files.append(memfd(4096))
    client.session.close_files()  # as the connection does
    client.close()
    rig.helper.answer()


@pytest.mark.parametrize(
    ("file", "size"),
    [
        (lambda: os.open("/dev/null", os.O_RDWR), 1),
        (lambda: memfd(4096, seals=0), 1),
        (lambda: memfd(4096, seals=fcntl.F_SEAL_SHRINK), 1),
        (lambda: memfd(4096, seals=SEALED | fcntl.F_SEAL_WRITE), 1),
        (lambda: memfd(4096), 4097),
        (lambda: memfd(100), 100),
        (lambda: memfd(0), 1),
    ],
    ids=["no memfd", "not sealed", "may grow", "read-only", "too small", "no whole pages", "empty"],
)
async def test_what_is_not_safe_to_map_is_refused(rig: Rig, file: Any, size: int) -> None:
    client = rig.client()
    msgid = share(client, file(), size)
    assert client.code(msgid) == "invalid"
    assert (client.session.memory_bytes, client.session.buffers) == (0, 0)


async def test_no_descriptor_is_invalid(rig: Rig) -> None:
    client = rig.client()
    assert client.code(client.send("buffer.share", size=4096)) == "invalid"


async def test_not_more_is_mapped_than_is_counted(rig: Rig) -> None:
    """Importing pins the pages, and the quota counts the buffer."""
    client = rig.client()
    msgid = share(client, memfd(2**40), size=1)
    assert len(payload(rig, msgid)[1].map) <= 65536
    assert len(payload(rig, msgid)[1].map) % mmap.PAGESIZE == 0
    rig.settle()
    assert client.code(msgid) is None


async def test_huge_pages_are_refused(rig: Rig) -> None:
    client = rig.client()
    try:
        file = memfd(2 * 2**20, flags=os.MFD_HUGETLB)
    except OSError:
        pytest.skip("no huge pages here")
    assert client.code(share(client, file)) == "invalid"
