"""Order and visibility: work with a common buffer takes effect in the order sent, however it is batched.

Each step is `y = 31 * y + x + k`, which does not commute, so the result tells the order.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.e2e import SLOW, code, create, load, read
from support.rawclient import RawClient

pytestmark = pytest.mark.gpu

N = 256
GRID = [N // 64]


class Mirror:
    """Buffers of a client, and what must be in them."""

    def __init__(self, client: RawClient, count: int) -> None:
        self.client = client
        self.module = load(client, "mix")
        rng = np.random.default_rng(count)
        self.content = [rng.integers(0, 2**32, N, np.uint32) for _ in range(count)]
        self.handles = [create(client, content) for content in self.content]
        self.msgids: list[int] = []

    def mix(self, x: int, y: int, k: int, **params: Any) -> int:
        self.content[y] = 31 * self.content[y] + self.content[x] + np.uint32(k)
        args = [self.handles[x], self.handles[y]]
        params = {"module": self.module, "args": args, "scalars": [N, k], "grid": GRID, **params}
        self.msgids.append(self.client.send("dispatch", **params))
        return self.msgids[-1]

    def write(self, y: int, value: int) -> None:
        self.content[y] = np.full(N, value, np.uint32)
        data = self.content[y].tobytes()
        self.msgids.append(self.client.send("buffer.write", buffer=self.handles[y], data=data))

    def copy(self, x: int, y: int) -> None:
        self.content[y] = self.content[x]
        self.msgids.append(self.client.send("buffer.copy", source=self.handles[x], target=self.handles[y]))

    def read(self, x: int) -> tuple[int, Any]:
        """A read, and what it must give."""
        return self.client.send("buffer.read", buffer=self.handles[x]), self.content[x].copy()

    def check(self) -> None:
        """All that was sent succeeds, and every buffer holds what it must."""
        for msgid in self.msgids:
            self.client.wait(msgid)
        for handle, content in zip(self.handles, self.content, strict=True):
            assert (read(self.client, handle, np.uint32) == content).all()


def test_rule_11_a_chain_through_one_buffer(client: RawClient) -> None:
    mirror = Mirror(client, 2)
    for k in range(300):
        mirror.mix(0, 1, k)
    mirror.check()


def test_rule_11_a_chain_from_buffer_to_buffer(client: RawClient) -> None:
    mirror = Mirror(client, 8)
    for step in range(200):
        mirror.mix(step % 8, (step + 1) % 8, step)
    mirror.check()


def test_rule_11_diamonds_over_many_buffers(client: RawClient) -> None:
    """One source, many that read it, one that reads all of those, again and again."""
    mirror = Mirror(client, 12)
    for round in range(10):
        for middle in range(1, 11):
            mirror.mix(0, middle, round)
        for middle in range(1, 11):
            mirror.mix(middle, 11, round)
        mirror.mix(11, 0, round)
    mirror.check()


def test_rule_11_writes_behind_reads_and_writes_behind_writes(client: RawClient) -> None:
    mirror = Mirror(client, 3)
    reads = []
    for step in range(100):
        mirror.mix(0, 1, step)
        reads.append(mirror.read(0))
        mirror.write(0, step)
        mirror.write(0, step + 1)
        reads.append(mirror.read(0))
        mirror.mix(1, 0, step)
        reads.append(mirror.read(1))
    for msgid, expected in reads:
        assert (np.frombuffer(client.wait(msgid)["data"], np.uint32) == expected).all()
    mirror.check()


@pytest.mark.parametrize("seed", range(4))
def test_rule_11_any_mixture_of_requests_has_the_result_of_one_after_the_other(client: RawClient, seed: int) -> None:
    """Launches, transfers, priorities, dependencies, creations and frees, a thousand without a wait."""
    rng = random.Random(seed)
    mirror = Mirror(client, 6)
    reads = []
    for step in range(400):
        x, y = rng.sample(range(6), 2)
        act = rng.random()
        if act < 0.55:
            mirror.mix(x, y, step)
        elif act < 0.65:
            mirror.mix(x, y, step, priority=rng.randint(-100, 100))
        elif act < 0.7 and mirror.msgids:
            mirror.mix(x, y, step, after=rng.sample(mirror.msgids, min(3, len(mirror.msgids))))
        elif act < 0.8:
            mirror.write(y, step)
        elif act < 0.85:
            mirror.copy(x, y)
        elif act < 0.95:
            reads.append(mirror.read(x))
        else:
            mirror.msgids.append(client.send("buffer.free", buffer=mirror.handles[y]))
            mirror.content[y] = np.zeros(N, np.uint32)
            mirror.handles[y] = create(client, 4 * N)
    for msgid, expected in reads:
        assert (np.frombuffer(client.wait(msgid)["data"], np.uint32) == expected).all()
    mirror.check()


def test_rule_12_a_read_behind_a_launch_sees_its_result_without_a_wait(client: RawClient) -> None:
    mirror = Mirror(client, 2)
    reads = []
    for k in range(50):
        mirror.mix(0, 1, k)
        reads.append(mirror.read(1))
    for msgid, expected in reversed(reads):
        assert (np.frombuffer(client.wait(msgid)["data"], np.uint32) == expected).all()
    mirror.check()


def test_rule_12_also_behind_a_long_one(client: RawClient) -> None:
    fill = load(client, "fill")
    y = create(client, 256)
    slow = client.send("dispatch", module=fill, args=[y], scalars=[7], grid=SLOW)
    result = client.send("buffer.read", buffer=y)
    overwrite = client.send("buffer.write", buffer=y, data=bytes(256))
    assert (np.frombuffer(client.wait(result)["data"], np.uint32) == np.arange(7, 71)).all()
    assert client.wait(slow) == {"outputs": []}
    assert client.wait(overwrite) == {}
    assert not read(client, y).any()


def test_rule_43_an_answer_means_visible_on_the_host(client: RawClient) -> None:
    """Wait for the launch alone, then read: what comes is the result, each time."""
    mirror = Mirror(client, 2)
    for k in range(100):
        client.wait(mirror.mix(0, 1, k))
        assert (read(client, mirror.handles[1], np.uint32) == mirror.content[1]).all()


def test_rule_43_overlapping_ranges_of_one_buffer_are_ordered(client: RawClient) -> None:
    module = load(client, "mix")
    content = np.arange(1024, dtype=np.uint32)
    x, y = create(client, np.full(1024, 3, np.uint32)), create(client, content)
    rng = random.Random(5)
    msgids = []
    for step in range(200):
        first = rng.randrange(0, 12) * 64
        count = rng.choice([64, 128, 256])
        part = content[first : first + count]
        part[:] = 31 * part + 3 + np.uint32(step)
        entry = [y, 4 * first, 4 * count]
        params = {"args": [[x, 0, 4 * count], entry], "scalars": [count, step], "grid": [count // 64]}
        msgids.append(client.send("dispatch", module=module, **params))
    for msgid in msgids:
        client.wait(msgid)
    assert (read(client, y, np.uint32) == content).all()


def test_S12_launches_on_disjoint_buffers_are_all_right_in_one_batch(client: RawClient) -> None:
    module = load(client, "mix")
    pairs = [(create(client, np.full(N, n, np.uint32)), create(client, 4 * N)) for n in range(100)]
    msgids = [
        client.send("dispatch", module=module, args=[x, y], scalars=[N, n], grid=GRID)
        for n, (x, y) in enumerate(pairs)
    ]
    for n, (msgid, (_, y)) in enumerate(zip(msgids, pairs, strict=True)):
        client.wait(msgid)
        assert (read(client, y, np.uint32) == 2 * n).all()


def test_S10_one_kernel_with_ever_other_buffers_needs_no_flush(client: RawClient) -> None:
    """Many sets of arguments in flight at once: more than any ring begins with."""
    module = load(client, "mix")
    buffers = [create(client, np.full(N, n, np.uint32)) for n in range(40)]
    content = [np.full(N, n, np.uint32) for n in range(40)]
    before = client.call("stats")["submits"]
    msgids = []
    for step in range(600):
        x, y = step % 40, (step * 7 + 3) % 40
        if x == y:
            continue
        content[y] = 31 * content[y] + content[x] + np.uint32(step)
        args = [buffers[x], buffers[y]]
        msgids.append(client.send("dispatch", module=module, args=args, scalars=[N, step], grid=GRID))
    for msgid in msgids:
        client.wait(msgid)
    submits = client.call("stats")["submits"] - before
    for buffer, expected in zip(buffers, content, strict=True):
        assert (read(client, buffer, np.uint32) == expected).all()
    assert submits < len(msgids) / 2


def test_S11_a_new_buffer_in_place_of_a_freed_one_is_the_new_one(client: RawClient) -> None:
    """The driver gives the handle of the freed VkBuffer again; the launch must not take it for the old one."""
    module = load(client, "mix")
    x = create(client, np.full(N, 1, np.uint32))
    for n in range(100):
        y = create(client, np.full(N, n, np.uint32))
        launch = client.send("dispatch", module=module, args=[x, y], scalars=[N, 0], grid=GRID)
        result = client.send("buffer.read", buffer=y)
        client.send("buffer.free", buffer=y)
        client.wait(launch)
        assert (np.frombuffer(client.wait(result)["data"], np.uint32) == 31 * n + 1).all()


def test_a_failed_request_changed_nothing_and_later_ones_run_as_if_it_had_not_been_sent(client: RawClient) -> None:
    mirror = Mirror(client, 2)
    for k in range(30):
        mirror.mix(0, 1, k)
        args = [mirror.handles[0], mirror.handles[1]]
        wrong = client.send("dispatch", module=mirror.module, args=args, scalars=[N], grid=GRID)
        outside = client.send("buffer.write", buffer=mirror.handles[1], data=b"xx", offset=4 * N)
        assert code(client, wrong) == code(client, outside) == "invalid"
    mirror.check()


def test_rule_3_twenty_thousand_launches_without_a_wait_are_all_right(client: RawClient) -> None:
    """In bursts as large as the queue allows; the result is that of all of them."""
    module = load(client, "mix")
    x, y = create(client, np.full(64, 1, np.uint32)), create(client, 256)
    value = np.uint32(0)
    for burst in range(5):
        msgids = [
            client.send("dispatch", module=module, args=[x, y], scalars=[64, 2], grid=[1]) for _ in range(4_000)
        ]
        for msgid in msgids:
            client.wait(msgid)
            with np.errstate(over="ignore"):
                value = np.uint32(31) * value + np.uint32(3)
        assert (read(client, y, np.uint32) == value).all(), burst
