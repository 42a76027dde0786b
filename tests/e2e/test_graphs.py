"""Graphs through the socket of a real daemon: what they compute is what their nodes do one after the other."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cases import of_kind
from support.daemon import Daemon
from support.rawclient import RawClient, RemoteError

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parents[1] / "gpu" / "kernels"
N = 256
SIZE = 4 * N


@pytest.fixture
def client(daemon: Daemon) -> Iterator[RawClient]:
    with daemon.client() as client:
        yield client


def load(client: RawClient, name: str) -> int:
    return int(client.call("module.load", spirv=(KERNELS / f"{name}.spv").read_bytes())["module"])


def buffer(client: RawClient, *values: int) -> int:
    data = ints(*values) if values else bytes(SIZE)
    return int(client.call("buffer.create", data=data)["buffer"])


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def contents(client: RawClient, handle: int) -> list[int]:
    data = client.call("buffer.read", buffer=handle)["data"]
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def skip_unless_runnable(case: Any, client: RawClient) -> None:
    device = client.welcome["devices"][client.welcome["device"]]
    missing = case.missing(device["limits"], device["features"], device["api_version"])
    if missing:
        pytest.skip(f"the device lacks {', '.join(missing)}")
    if case.deviates(device["name"]):
        pytest.skip(f"{device['name']} is known to deviate")


def node(module: int, *args: Any, grid: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"kernel": module, "args": list(args), "grid": grid or [N // 64], **more}


class Kit:
    """A client with some kernels loaded, and a graph: y = 7 x through two temporaries, then x += 1."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.scale, self.add, self.increment = (load(client, name) for name in ("scale", "add", "increment"))

    def sevenfold(self, **more: Any) -> int:
        created = self.client.call(
            "graph.create",
            nodes=[
                node(self.scale, "x", "t", scalars=[2]),
                node(self.scale, "t", "u", scalars=[3]),
                node(self.add, "u", "x", "y"),
                node(self.increment, "x"),
            ],
            inputs={"x": SIZE},
            outputs={"y": SIZE},
            temporaries={"t": SIZE, "u": SIZE},
            **more,
        )
        return int(created["graph"])

    def launch(self, graph: int, **buffers: Any) -> Any:
        return self.client.call("graph.launch", graph=graph, buffers=buffers)


@pytest.fixture
def kit(client: RawClient) -> Kit:
    return Kit(client)


def test_one_graph_with_many_bindings(kit: Kit) -> None:
    client, graph = kit.client, kit.sevenfold()
    xs, ys = [buffer(client, *range(i, i + N)) for i in range(5)], [buffer(client) for _ in range(5)]
    for _ in range(2):
        msgids = [
            client.send("graph.launch", graph=graph, buffers={"x": x, "y": y}) for x, y in zip(xs, ys, strict=True)
        ]
        assert [client.wait(msgid) for msgid in msgids] == [{"outputs": {}}] * 5
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        assert contents(client, x) == [i + 2 + j for j in range(N)]
        assert contents(client, y) == [7 * (i + 1 + j) for j in range(N)]


def test_many_equal_launches_at_once_each_count(kit: Kit) -> None:
    client, graph = kit.client, kit.sevenfold()
    x, y = buffer(client), buffer(client)
    msgids = [client.send("graph.launch", graph=graph, buffers={"x": x, "y": y}) for _ in range(500)]
    assert [client.wait(msgid) for msgid in msgids] == [{"outputs": {}}] * 500
    assert contents(client, x) == [500] * N
    assert contents(client, y) == [7 * 499] * N


def test_launches_and_dispatches_by_turns(kit: Kit) -> None:
    client, graph = kit.client, kit.sevenfold()
    x, y = buffer(client), buffer(client)
    for _ in range(40):
        client.send("graph.launch", graph=graph, buffers={"x": x, "y": y})
        client.send("dispatch", module=kit.add, args=[x, y, x], grid=[4])
        client.send("dispatch", module=kit.scale, args=[x, y], scalars=[3], grid=[4])
        client.send("buffer.write", buffer=x, data=ints(5), offset=0)
    expected_x, expected_y = 0, 0
    for _ in range(40):
        expected_y = _wrapped(7 * expected_x)
        expected_x = _wrapped(expected_x + 1 + expected_y)
        expected_y = _wrapped(3 * expected_x)
    assert contents(client, y)[1:] == [expected_y] * (N - 1)
    assert contents(client, x)[:2] == [5, expected_x]


def _wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def test_data_that_comes_and_leaves_with_launches_at_once(kit: Kit) -> None:
    client, graph = kit.client, kit.sevenfold()
    msgids = [
        client.send("graph.launch", graph=graph, buffers={"x": {"inout": ints(*range(i, i + N))}}) for i in range(60)
    ]
    for i, msgid in enumerate(msgids):
        assert client.wait(msgid)["outputs"] == {
            "x": ints(*range(i + 1, i + 1 + N)), "y": ints(*(7 * (i + j) for j in range(N))),
        }  # fmt: skip


def test_numbers_that_come_with_a_launch(kit: Kit) -> None:
    client = kit.client
    graph = client.call(
        "graph.create",
        nodes=[
            {"fill": "y", "value": {"scalar": "start"}},
            node(kit.scale, "x", ["y", 0, 512], scalars=[{"scalar": "k"}], grid=[{"scalar": "groups"}]),
        ],
        inputs={"x": SIZE}, outputs={"y": SIZE}, scalars={"k": "int32", "groups": "uint32", "start": "int32"},
    )["graph"]  # fmt: skip
    x, y = buffer(client, *range(N)), buffer(client)
    for k, groups in ((2, 1), (-3, 2), (2, 1), (5, 0)):
        client.call("graph.launch", graph=graph, buffers={"x": x, "y": y},
                    scalars={"k": k, "groups": groups, "start": -1})  # fmt: skip
        done = min(64 * groups, 128)
        assert contents(client, y) == [k * i for i in range(done)] + [-1] * (N - done)


def test_what_a_graph_uses_may_be_freed_while_it_runs(kit: Kit) -> None:
    client = kit.client
    heavy = load(client, "heavy")
    graph, busy = kit.sevenfold(), buffer(client)
    x, y = buffer(client, *range(N)), buffer(client)
    slow = client.send("dispatch", module=heavy, args=[busy], grid=[20_000])
    launches = [client.send("graph.launch", graph=graph, buffers={"x": x, "y": y}) for _ in range(3)]
    read = client.send("buffer.read", buffer=y)
    for method, params in (
        ("module.unload", {"module": kit.add}), ("buffer.free", {"buffer": x}), ("graph.free", {"graph": graph}),
    ):  # fmt: skip
        client.send(method, **params)
    late = client.send("graph.launch", graph=graph, buffers={"x": x, "y": y})
    assert [client.wait(msgid)["outputs"] for msgid in (slow, *launches)] == [[], {}, {}, {}]
    assert client.wait(read)["data"] == ints(*(7 * (i + 2) for i in range(N)))
    with pytest.raises(RemoteError, match="not_found: graph"):
        client.wait(late)


def test_a_freed_buffer_fails_later_launches_and_another_takes_its_place(kit: Kit) -> None:
    client, graph = kit.client, kit.sevenfold()
    x, y = buffer(client, *range(N)), buffer(client)
    kit.launch(graph, x=x, y=y)
    client.call("buffer.free", buffer=y)
    with pytest.raises(RemoteError, match="not_found: buffers: y"):
        kit.launch(graph, x=x, y=y)
    y = buffer(client)
    kit.launch(graph, x=x, y=y)
    assert contents(client, y) == [7 * (i + 1) for i in range(N)]


def test_cancel_and_deadline_behind_a_busy_device(start: Callable[..., Daemon]) -> None:
    daemon = start(config='[batching]\nbatches_in_flight = 1\n', validation=False)
    with daemon.client() as client:
        kit = Kit(client)
        heavy, busy, graph = load(client, "heavy"), buffer(client), kit.sevenfold()
        x, y = buffer(client), buffer(client)
        client.call("dispatch", module=heavy, args=[busy], grid=[1])
        slow = client.send("dispatch", module=heavy, args=[busy], grid=[65_535])
        client.call("ping")  # so that it is on the device when the others come
        launch: dict[str, Any] = {"graph": graph, "buffers": {"x": x, "y": y}}
        expires = client.send("graph.launch", **launch, deadline_ms=1)
        taken_back = client.send("graph.launch", **launch)
        kept = client.send("graph.launch", **launch, timing=True)
        assert client.call("cancel", msgid=taken_back) == {"cancelled": True}
        for msgid, code in ((taken_back, "cancelled"), (expires, "expired")):
            with pytest.raises(RemoteError, match=code):
                client.wait(msgid)
        assert client.wait(kept)["timing"]["total_us"] > 0
        assert client.wait(slow) == {"outputs": []}
        assert contents(client, x) == [1] * N


@pytest.mark.parametrize("case", [c for c in of_kind("run", tvm=True) if c.runs[0].scalars], ids=str)
def test_tvm_kernels_whose_scalars_come_with_a_launch(case: Any, client: RawClient) -> None:
    """Also where they go by a uniform buffer: each launch has its own."""
    skip_unless_runnable(case, client)
    module = client.call("module.load", tvm=case.file(case.tvm["bytes"]))["module"]
    for run in case.runs:
        arrays = run.arrays()
        names = [entry.array for entry in run.entries if entry.kind == "storage"]
        scalars = {f"s{i}": scalar for i, scalar in enumerate(run.scalars)}
        launch = {"kernel": [module, case.entry], "args": names, "grid": list(run.grid),
                  "scalars": [{"scalar": name} for name in scalars]}  # fmt: skip
        graph = client.call(
            "graph.create", nodes=[launch], inputs={name: arrays[name].nbytes for name in names},
            scalars={name: scalar["type"] for name, scalar in scalars.items()},
        )["graph"]  # fmt: skip
        for _ in range(2):
            handles = {name: client.call("buffer.create", data=arrays[name].tobytes())["buffer"] for name in names}
            values = {name: scalar["value"] for name, scalar in scalars.items()}
            client.call("graph.launch", graph=graph, buffers=handles, scalars=values)
            run.check({name: client.call("buffer.read", buffer=h)["data"] for name, h in handles.items()})


def test_clients_with_graphs_do_not_disturb_each_other(daemon: Daemon) -> None:
    kits = [Kit(daemon.client()) for _ in range(3)]
    graphs = [kit.sevenfold() for kit in kits]
    ends = [(buffer(kit.client, *[i] * N), buffer(kit.client)) for i, kit in enumerate(kits)]
    for _ in range(50):
        for kit, graph, (x, y) in zip(kits, graphs, ends, strict=True):
            kit.client.send("graph.launch", graph=graph, buffers={"x": x, "y": y})
    for i, (kit, (x, y)) in enumerate(zip(kits, ends, strict=True)):
        assert contents(kit.client, x) == [i + 50] * N
        assert contents(kit.client, y) == [7 * (i + 49)] * N
        kit.client.close()


ENDS, TEMPORARIES = ["a", "b", "c"], ["t", "u", "v"]


def random_node(kit: Kit, rng: random.Random, written: set[str], kinds: list[str]) -> dict[str, Any] | None:
    """A node that reads only what is written."""
    target, readable = rng.choice(ENDS + TEMPORARIES), sorted(written)
    kind = rng.choice(kinds)
    if kind == "scale":
        made = node(kit.scale, rng.choice(readable), target, scalars=[rng.randint(-3, 3)])
    elif kind == "add":
        made = node(kit.add, rng.choice(readable), rng.choice(readable), target)
    elif kind == "fill":
        made = {"fill": [target, 256, 512] if target in written else target, "value": rng.randint(0, 9)}
    elif kind == "copy":
        made = {"copy": [rng.choice([name for name in readable if name != target]), target]}
    elif target in written:
        made = node(kit.increment, target)
    else:
        return None
    written.add(target)
    return made


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_compute_what_eager_launches_do(kit: Kit, seed: int) -> None:
    """Also with two of their ends bound to one buffer, and with launches at once."""
    client, rng, written = kit.client, random.Random(seed), set(ENDS)
    together = seed % 2
    kinds = ["scale", "add", "increment", "fill", *([] if together else ["copy"])]
    made = [random_node(kit, rng, written, kinds) for _ in range(rng.randint(5, 40))]
    nodes = [each for each in made if each is not None]
    start = {name: ints(*(rng.randint(-9, 9) for _ in range(N))) for name in ENDS}
    graph = client.call(
        "graph.create", nodes=nodes, inputs=dict.fromkeys(ENDS, SIZE), temporaries=dict.fromkeys(TEMPORARIES, SIZE)
    )["graph"]
    found: list[Any] = []
    for eager in (False, True):
        handles = {name: client.call("buffer.create", data=data)["buffer"] for name, data in start.items()}
        if together:
            handles["b"] = handles["a"]
        for _ in range(3):
            if eager:
                run_eagerly(client, nodes, {**handles, **{name: buffer(client) for name in TEMPORARIES}})
            else:
                client.send("graph.launch", graph=graph, buffers=handles)
        found.append([contents(client, handles[name]) for name in ENDS])
    assert found[0] == found[1]


def run_eagerly(client: RawClient, nodes: list[dict[str, Any]], handles: dict[str, int]) -> None:
    for each in nodes:
        if "copy" in each:
            source, target = (handles[name] for name in each["copy"])
            client.send("buffer.copy", source=source, target=target)
        elif "fill" in each:
            name, offset, size = each["fill"] if type(each["fill"]) is list else (each["fill"], 0, SIZE)
            data = ints(*[each["value"]] * (size // 4))
            client.send("buffer.write", buffer=handles[name], data=data, offset=offset)
        else:
            client.send(
                "dispatch", module=each["kernel"], args=[handles[name] for name in each["args"]], grid=each["grid"],
                scalars=each.get("scalars"),
            )  # fmt: skip


@pytest.mark.parametrize("case", of_kind("run"), ids=str)
def test_every_module_of_the_corpus_as_a_node(case: Any, client: RawClient) -> None:
    skip_unless_runnable(case, client)
    loaded = client.call("module.load", spirv=case.spirv, entry=case.entry)
    for run in case.runs:
        arrays = run.arrays()
        args, previous = [], None
        for entry in run.entries:
            if (entry.set, entry.binding) == previous:
                args[-1] = {"array": [*(args[-1]["array"] if type(args[-1]) is dict else [args[-1]]), entry.array]}
            else:
                args.append(entry.array)
            previous = (entry.set, entry.binding)
        launch: dict[str, Any] = {"kernel": [loaded["module"], case.entry], "args": args, "grid": list(run.grid)}
        if run.push is not None:
            launch["scalars"] = run.push
        if run.spec:
            launch["specialization"] = {str(id): value for id, value in run.spec.items()}
        graph = client.call(
            "graph.create", nodes=[launch], inputs={name: array.nbytes for name, array in arrays.items()}
        )["graph"]
        handles = {name: client.call("buffer.create", data=array.tobytes())["buffer"] for name, array in arrays.items()}
        client.call("graph.launch", graph=graph, buffers=handles)
        run.check({name: client.call("buffer.read", buffer=handle)["data"] for name, handle in handles.items()})
