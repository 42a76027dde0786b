"""dispatch_many through the socket of a real daemon: it computes what its launches would one after the other."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemon import Daemon
from support.rawclient import RawClient, RemoteError

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parents[1] / "gpu" / "kernels"
N = 64
ROW = 4 * N


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client


def load(client: RawClient, name: str) -> int:
    return int(client.call("module.load", spirv=(KERNELS / f"{name}.spv").read_bytes())["module"])


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def buffer(client: RawClient, data: bytes) -> int:
    return int(client.call("buffer.create", data=data)["buffer"])


def contents(client: RawClient, handle: int) -> list[int]:
    data = client.call("buffer.read", buffer=handle)["data"]
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def error(client: RawClient, **params: Any) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        client.call("dispatch_many", **params)
    return caught.value


def test_buffers_and_scalars_of_their_own(client: RawClient) -> None:
    scale = load(client, "scale")
    source = buffer(client, ints(*range(N)))
    targets = [buffer(client, bytes(ROW)) for _ in range(200)]
    answer = client.call(
        "dispatch_many", module=scale, count=200, args=[source, {"handles": u32(*targets)}],
        scalars={"packed": ints(*range(200))}, grid=[1],
    )  # fmt: skip
    assert answer == {"count": 200}
    for k in (0, 1, 77, 199):
        assert contents(client, targets[k]) == [k * i for i in range(N)]


def test_rows_of_a_buffer_columns_and_grids(client: RawClient) -> None:
    """More launches than one batch takes, some of which do nothing."""
    scale, count = load(client, "scale"), 5000
    source, target = buffer(client, ints(*range(N))), buffer(client, bytes(5000 * ROW))
    grids = [[i % 3, 1, (i + 1) % 2] for i in range(count)]
    offsets = [i * ROW for i in range(count)]
    client.call(
        "dispatch_many", module=scale, kernel="main", count=count, label="rows",
        args=[source, {"buffer": target, "offsets": u64(*offsets), "size": ROW}],
        scalars={"columns": {"m0": ints(*range(count))}}, grid={"grids": b"".join(u32(*grid) for grid in grids)},
    )  # fmt: skip
    found = contents(client, target)
    for k in (*range(12), 4094, 4095, 4096, 4097, 4098, 4999):
        expected = [k * i if all(grids[k]) else 0 for i in range(N)]
        assert found[k * N : (k + 1) * N] == expected, k


def test_launches_on_one_buffer_take_effect_one_after_the_other(client: RawClient) -> None:
    increment, shift = load(client, "increment"), load(client, "shift")
    y, z = buffer(client, ints(*[0] * N)), buffer(client, ints(*[1] * N))
    many = client.send("dispatch_many", module=increment, count=4500, args=[y], grid=[1])
    client.call("dispatch_many", module=shift, count=4, args=[z], scalars={"packed": ints(1, 2, 3, 4)}, grid=[1])
    single = buffer(client, ints(*[1] * N))
    for k in (1, 2, 3, 4):
        client.call("dispatch", module=shift, args=[single], scalars=[k], grid=[1])
    assert contents(client, z) == contents(client, single)
    assert contents(client, y) == [4500] * N
    assert client.wait(many) == {"count": 4500}


def test_a_chain_through_buffers(client: RawClient) -> None:
    """Each launch reads what the one before it wrote; reads and writes sent before and behind keep their order."""
    scale, count = load(client, "scale"), 60
    pool = [buffer(client, ints(*[1] * N)), *(buffer(client, bytes(ROW)) for _ in range(count))]
    client.send("buffer.write", buffer=pool[0], data=ints(*[3] * N))
    client.send(
        "dispatch_many", module=scale, count=count,
        args=[{"handles": u32(*pool[:-1])}, {"handles": u32(*pool[1:])}],
        scalars={"packed": ints(*(2 if i < 20 else 1 for i in range(count)))}, grid=[1],
    )  # fmt: skip
    late = client.send("buffer.read", buffer=pool[-1])
    client.send("buffer.write", buffer=pool[-1], data=ints(*[7] * N))
    assert client.wait(late)["data"] == ints(*[3 * 2**20] * N)
    assert contents(client, pool[-1]) == [7] * N


class Launches:
    """Random launches of one kernel, over ranges of four buffers that are equal, apart, or overlap in part."""

    def __init__(self, rng: random.Random, bindings: int, scalars: int) -> None:
        self.count = rng.choice([2, 9, 30, 70])
        step = rng.choice([ROW, 64])
        self.places = [
            [(rng.randrange(4), step * rng.randrange(2 * ROW // step)) for _ in range(self.count)]
            for _ in range(bindings)
        ]
        self.factors = [[rng.choice([1, 1, -1])] * scalars for _ in range(self.count)]
        self.grids = [rng.choice([0, 1, 1]) for _ in range(self.count)]

    def at_once(self, client: RawClient, module: int, pool: list[int]) -> None:
        args = [
            {"handles": u32(*(pool[b] for b, _ in place)), "offsets": u64(*(o for _, o in place)), "size": ROW}
            for place in self.places
        ]
        scalars = {"packed": ints(*(f for row in self.factors for f in row))} if self.factors[0] else []
        grid = {"grids": b"".join(u32(g, 1, 1) for g in self.grids)}
        client.call("dispatch_many", module=module, count=self.count, args=args, scalars=scalars, grid=grid)

    def one_by_one(self, client: RawClient, module: int, pool: list[int]) -> None:
        for i in range(self.count):
            args = [[pool[place[i][0]], place[i][1], ROW] for place in self.places]
            client.call("dispatch", module=module, args=args, grid=[self.grids[i]], scalars=self.factors[i])


def test_random_requests_do_what_their_launches_do(client: RawClient) -> None:
    kernels = {"add": (3, 0), "scale": (2, 1), "increment": (1, 0)}
    modules = {name: load(client, name) for name in kernels}
    rng = random.Random(5)
    for turn in range(25):
        name = rng.choice(list(kernels))
        launches = Launches(rng, *kernels[name])
        data = [ints(*rng.sample(range(100), N), *[b] * 2 * N) for b in range(4)]
        pools = [[buffer(client, part) for part in data] for _ in range(2)]
        launches.at_once(client, modules[name], pools[0])
        launches.one_by_one(client, modules[name], pools[1])
        for ours, theirs in zip(*pools, strict=True):
            assert contents(client, ours) == contents(client, theirs), f"turn {turn}: {name}, {launches.count} launches"
        for handle in (*pools[0], *pools[1]):
            client.call("buffer.free", buffer=handle)


def test_shared_data_and_uniform_values(client: RawClient) -> None:
    scale, add_uniform = load(client, "scale"), load(client, "add_uniform")
    target = buffer(client, bytes(3 * ROW))
    rows = {"buffer": target, "offsets": u64(0, ROW, 2 * ROW), "size": ROW}
    client.call("dispatch_many", module=scale, count=3, args=[{"in": ints(*range(N))}, rows],
                scalars={"packed": ints(1, 2, 3)}, grid=[1])  # fmt: skip
    client.call("dispatch_many", module=add_uniform, count=3, args=[rows, {"in": ints(5, N)}], grid=[1])
    assert contents(client, target) == [10 * k * i + 5 for k in (1, 2, 3) for i in range(N)]


def test_descriptor_arrays_and_several_sets(client: RawClient) -> None:
    sets, count = load(client, "sets"), 20
    source = buffer(client, ints(*range(N)))
    factors = buffer(client, b"".join(ints(k).ljust(256) for k in range(count)))
    sums, products = buffer(client, bytes(count * ROW)), [buffer(client, bytes(ROW)) for _ in range(count)]
    offsets = u64(*(i * ROW for i in range(count)))
    client.call(
        "dispatch_many", module=sets, count=count, grid=[1],
        args=[
            source, {"buffer": factors, "offsets": u64(*(256 * k for k in range(count))), "size": 16},
            {"array": [{"buffer": sums, "offsets": offsets, "size": ROW}, {"handles": u32(*products)}]},
        ],
    )  # fmt: skip
    assert contents(client, sums) == [k + i for k in range(count) for i in range(N)]
    assert contents(client, products[7]) == [7 * i for i in range(N)]


def test_the_wrong_launch_is_named_and_nothing_ran(client: RawClient) -> None:
    increment, count = load(client, "increment"), 100
    y = buffer(client, bytes(count * ROW))
    good = [i * ROW for i in range(count)]

    def args(offsets: list[int], size: Any = ROW) -> list[Any]:
        return [{"buffer": y, "offsets": u64(*offsets), "size": size}]

    more = {"module": increment, "count": count, "grid": [1]}
    wrong = error(client, args=args([*good[:98], 99 * ROW + 256, 2**63]), **more)
    assert wrong.code == "invalid" and wrong.message.startswith("launch 98: binding (set 0, binding 0")
    assert wrong.data is not None and wrong.data["launch"] == 98
    wrong = error(client, args=args([*good[:7], 8 * ROW + 3, *good[8:]]), **more)
    assert wrong.message.startswith("launch 7: ") and "minStorageBufferOffsetAlignment" in wrong.message
    assert error(client, args=args(good, u64(*[ROW] * 99, 2 * ROW)), **more).message.startswith("launch 99: ")
    wrong = error(client, args=[{"handles": u32(y, *[y] * 9, 999, *[y] * 89)}], **more)
    assert (wrong.code, wrong.data) == ("not_found", {"handle": 999, "launch": 10})
    grids = b"".join(u32(1, 1, 1 if i != 42 else 2**31) for i in range(count))
    wrong = error(client, args=args(good), **(more | {"grid": {"grids": grids}}))
    assert wrong.message.startswith("launch 42: grid[2]: 2147483648")
    assert error(client, args=args(good[:-1]), **more).code == "invalid"
    assert error(client, args=[{"out": ROW}], **more).code == "invalid"
    assert error(client, args=[{"inout": bytes(ROW)}], **more).code == "invalid"
    assert error(client, args=[{"in": bytes(ROW)}], **more).code == "invalid"
    assert error(client, args=[y], **(more | {"count": 0})).code == "invalid"
    wrong = error(client, args=[y], **(more | {"count": 65_537}))
    assert (wrong.code, wrong.data) == ("too_large", {"count": 65_537, "max_many_launches": 65_536})
    assert client.welcome is not None and client.welcome["limits"]["max_many_launches"] == 65_536
    assert contents(client, y) == [0] * count * N


def test_options_hold_for_all_launches(client: RawClient) -> None:
    increment = load(client, "increment")
    y = buffer(client, bytes(ROW))
    answer = client.call("dispatch_many", module=increment, count=5000, args=[y], grid=[1], timing=True, priority=7)
    assert answer["count"] == 5000 and answer["device"] == 0
    timing = answer["timing"]
    assert 0 <= timing["queued_us"] <= timing["total_us"] and (timing["device_us"] or 1) > 0
    failing = client.send("dispatch", module=increment, args=[y, y], grid=[1])
    behind = client.send("dispatch_many", module=increment, count=3, args=[y], grid=[1], after=[failing])
    with pytest.raises(RemoteError, match="dependency"):
        client.wait(behind)
    first = client.send("dispatch_many", module=increment, count=10, args=[y], grid=[1])
    second = client.send("dispatch_many", module=increment, count=10, args=[y], grid=[1], after=[first])
    assert client.wait(second) == {"count": 10}
    assert contents(client, y) == [5020] * N


def test_a_buffer_freed_behind_its_launches_is_used_by_them(client: RawClient) -> None:
    scale, count = load(client, "scale"), 5000
    source, target = buffer(client, ints(*[1] * N)), buffer(client, bytes(count * ROW))
    offsets = u64(*(i * ROW for i in range(count)))
    client.send("dispatch_many", module=scale, count=count, grid=[1], scalars=[9],
                args=[source, {"buffer": target, "offsets": offsets, "size": ROW}])  # fmt: skip
    freed = client.send("buffer.free", buffer=source)
    assert contents(client, target) == [9] * count * N
    client.wait(freed)
    assert error(client, module=scale, count=1, args=[{"handles": u32(source)}, target], scalars=[1],
                 grid=[1]).code == "not_found"  # fmt: skip


def test_launches_are_counted(client: RawClient) -> None:
    increment = load(client, "increment")
    y = buffer(client, bytes(ROW))
    before = client.call("stats")
    client.call("dispatch_many", module=increment, count=300, args=[y], grid=[1])
    client.call("dispatch", module=increment, args=[y], grid=[1])
    client.call("dispatch", module=increment, args=[{"inout": bytes(ROW)}], grid=[1])
    after = client.call("stats")
    assert after["launches"] - before["launches"] == 302
    assert after["jobs_completed"] - before["jobs_completed"] == 3


def test_a_full_queue_refuses_it_as_one_job(start: Callable[..., Daemon]) -> None:
    """A heavy launch holds the device, so that what is sent behind it stays in the queue."""
    daemon = start(config="[limits]\nmax_queued_jobs = 3\nmax_many_launches = 50\n[batching]\nbatches_in_flight = 1\n")
    with daemon.client() as client:
        heavy, increment = load(client, "heavy"), load(client, "increment")
        x, y = buffer(client, bytes(ROW)), buffer(client, bytes(ROW))
        client.call("dispatch_many", module=increment, count=2, args=[y], grid=[1])
        client.call("dispatch", module=heavy, args=[x], grid=[1])
        assert client.welcome is not None
        cpu = client.welcome["devices"][0]["type"] == "cpu"
        long = client.send("dispatch_many", module=heavy, count=1 if cpu else 50, args=[x], grid=[40000])
        client.call("ping")
        queued = client.send("dispatch_many", module=increment, count=50, args=[y], grid=[1])
        gone = client.send("dispatch_many", module=increment, count=50, args=[y], grid=[1], deadline_ms=1)
        assert error(client, module=increment, count=2, args=[y], grid=[1]).code == "overloaded"
        with pytest.raises(RemoteError, match="expired"):
            client.wait(gone)
        late = client.send("dispatch_many", module=increment, count=20, args=[y], grid=[1])
        assert client.call("cancel", msgid=queued) == {"cancelled": True}
        with pytest.raises(RemoteError, match="cancelled"):
            client.wait(queued)
        assert client.wait(late) == {"count": 20}
        client.wait(long)
        assert contents(client, y)[0] == 22
        assert error(client, module=increment, count=51, args=[y], grid=[1]).code == "too_large"


def test_numpy_comes_with_the_first_request(start: Callable[..., Daemon]) -> None:
    daemon = start(validation=False)

    def has_numpy() -> bool:
        return "numpy" in Path(f"/proc/{daemon.process.pid}/maps").read_text()

    with daemon.client() as client:
        increment = load(client, "increment")
        y = buffer(client, bytes(ROW))
        client.call("dispatch", module=increment, args=[y], grid=[1])
        assert not has_numpy()
        first = client.send("dispatch_many", module=increment, count=2, args=[y], grid=[1])
        behind = client.send("dispatch", module=increment, args=[y], grid=[1])
        client.wait(behind)
        assert client.wait(first) == {"count": 2} and has_numpy()
        assert contents(client, y) == [4] * N
