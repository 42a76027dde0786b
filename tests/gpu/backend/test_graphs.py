"""Graphs on the device: recorded once, replayed, with the results of their nodes one after the other."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from support.gpu_rig import KINDS, Rig, error_of, ints
from support.graph_rig import GraphRig, node

from vkqueue.errors import NotFoundError, OutOfDeviceMemoryError
from vkqueue.gpu import binding, graphs
from vkqueue.gpu.hot import Hot
from vkqueue.gpu.payload import Tuning
from vkqueue.model import Options, Release

pytestmark = pytest.mark.gpu

N = 256
BYTES = 4 * N


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> list[int]:
    """Handles of command buffers, as they are begun."""
    seen: list[int] = []
    hot: Hot = rig.backend.device.hot
    begin = hot.begin_command_buffer

    def counted(command: int, info: int) -> int:
        seen.append(command)
        return int(begin(command, info))

    monkeypatch.setattr(hot, "begin_command_buffer", counted)
    return seen


def pipeline_of_steps(kit: GraphRig, **options: Any) -> Any:
    """y = (x * 2 * 3 + x) and x += 1, through two temporaries."""
    return kit.graph(
        node("scale", "x", "t", scalars=[2]), node("scale", "t", "u", scalars=[3]), node("add", "u", "x", "y"),
        node("increment", "x"),
        inputs={"x": BYTES}, outputs={"y": BYTES}, temporaries={"t": BYTES, "u": BYTES}, **options,
    )  # fmt: skip


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("descriptors", ["auto", "sets"])
def test_a_graph_is_replayed(open_rig: Callable[..., Rig], memory: str, descriptors: str) -> None:
    rig = open_rig(memory=memory, descriptors=descriptors)
    graph = pipeline_of_steps(GraphRig(rig))
    x, y = rig.buffer(ints(*range(N))), rig.buffer(BYTES)
    bound = graph.bind(x=x, y=y)
    for launch in range(3):
        gc.collect()
        rig.results(graph.row(*bound))
        assert rig.ints_of(y) == [7 * (i + launch) for i in range(N)]
    assert rig.ints_of(x) == [i + 3 for i in range(N)]


def test_each_instance_is_recorded_once(rig: Rig, begun: list[int]) -> None:
    graph = pipeline_of_steps(GraphRig(rig))
    x, y, z = rig.buffer(BYTES), rig.buffer(BYTES), rig.buffer(BYTES)
    first, second = graph.bind(x=x, y=y), graph.bind(x=x, y=z)
    rig.results(*(graph.row(*bound) for bound in (first, second, first, second, first)))
    recorded = len(set(begun))
    begun.clear()
    rig.results(*(graph.row(*bound) for bound in (second, first)))
    assert len(begun) == 1 and recorded == 4  # the frame's two, and one each


def test_launches_and_other_work_keep_their_order(rig: Rig) -> None:
    """Through one arena and one buffer, in one batch and across batches in flight."""
    graph = pipeline_of_steps(GraphRig(rig))
    x, y, z = rig.buffer(BYTES), rig.buffer(BYTES), rig.buffer(BYTES)
    into_y, into_z = graph.bind(x=x, y=y), graph.bind(x=x, y=z)
    rows = [
        graph.row(*into_y),
        rig.dispatch("increment", (x,), grid=(4, 1, 1)),
        graph.row(*into_z),
        rig.dispatch("add", (y, z, y), grid=(4, 1, 1)),
        rig.dispatch("add", (y, z, z), grid=(4, 1, 1)),
        graph.row(*into_y),
    ]
    flying = [rig.submit(*rows[:3]), rig.submit(rows[3]), rig.submit(*rows[4:])]
    for submission in flying:
        assert not rig.finish(submission).errors
    assert rig.ints_of(x) == [4] * N
    assert rig.ints_of(y) == [7 * 3] * N
    assert rig.ints_of(z) == [7 * 0 + 14 + 14] * N


def test_launches_overlap_with_arenas_of_their_own(rig: Rig) -> None:
    graph = pipeline_of_steps(GraphRig(rig))
    ids = [(rig.buffer(ints(*[n] * N)), rig.buffer(BYTES)) for n in range(4)]
    arenas = [(next(rig._ids), 0) for _ in ids]
    bound = [graph.bind(arenas=own, x=x, y=y) for own, (x, y) in zip(arenas, ids, strict=True)]
    batch = rig.batch([graph.row(*b) for b in bound])
    assert batch.flags == [0, 0, 0, 0]
    assert not rig.finish(rig.backend.submit(batch)).errors
    assert [rig.ints_of(y) for _, y in ids] == [[7 * n] * N for n in range(4)]


@pytest.mark.parametrize("memory", KINDS)
def test_data_that_comes_and_leaves_with_a_launch(open_rig: Callable[..., Rig], memory: str) -> None:
    rig = open_rig(memory=memory, tuning=Tuning(host_out_max=64, host_in_max=64))
    graph = pipeline_of_steps(GraphRig(rig))
    data = [ints(*range(n, n + N)) for n in range(5)]
    bound = [graph.bind(x=("inout", d), y=("out", BYTES)) for d in data]
    instance, token, _ = bound[0]
    got = rig.results(*(graph.row(instance, token, payload) for _, _, payload in bound))
    assert [bytes(out) for _, out in got] == [ints(*(7 * (i + n) for i in range(N))) for n in range(5)]
    assert [bytes(x) for x, _ in got] == [ints(*(i + n + 1 for i in range(N))) for n in range(5)]


def test_results_are_zero_where_no_node_writes(rig: Rig) -> None:
    graph = GraphRig(rig).graph(
        node("scale", ["x", 0, 256], ["y", 0, 256], grid=[1], scalars=[1]), inputs={"x": BYTES}, outputs={"y": BYTES}
    )
    bound = graph.bind(x=("in", b"\1" * BYTES), y=("out", BYTES))
    other = graph.bind(x=("in", b"\1" * BYTES), y=("out", BYTES))
    for each in (bound, other, bound):
        assert rig.results(graph.row(*each)) == [[b"\1" * 256 + bytes(BYTES - 256)]]


def test_copies_fills_constants_and_uniform_blocks(rig: Rig) -> None:
    y = rig.buffer(BYTES)
    graph = GraphRig(rig).graph(
        {"copy": ["x", "t"]},
        {"fill": ["t", 512, 512], "value": 5},
        node("add_uniform", "t", {"values": {"m0": 3, "m1": N}}),
        node("add", "t", {"in": ints(*range(N))}, y),
        inputs={"x": BYTES}, temporaries={"t": BYTES},
    )  # fmt: skip
    x = rig.buffer(ints(*range(N)))
    rig.sizes[y] = BYTES
    bound = graph.bind(x=x)
    rig.results(graph.row(*bound), graph.row(*bound))
    assert rig.ints_of(y) == [10 * i + 3 + i for i in range(128)] + [53 + i for i in range(128, N)]


def test_several_sets_and_a_descriptor_array(rig: Rig) -> None:
    graph = GraphRig(rig).graph(
        node("sets", "x", {"values": {"m0": 10}}, {"array": ["a", "b"]}), node("add", "a", "b", "y"),
        inputs={"x": BYTES}, outputs={"y": BYTES}, temporaries={"a": BYTES, "b": BYTES},
    )  # fmt: skip
    x, y = rig.buffer(ints(*range(N))), rig.buffer(BYTES)
    bound = graph.bind(x=x, y=y)
    rig.results(graph.row(*bound), graph.row(*bound))
    assert rig.ints_of(y) == [i + 10 + 10 * i for i in range(N)]


def test_a_temporary_that_is_counted_up_begins_as_zeros_in_every_launch(rig: Rig) -> None:
    graph = GraphRig(rig).graph(
        node("increment", "t"), node("increment", "t"), node("scale", "t", "y", scalars=[{"scalar": "k"}]),
        outputs={"y": BYTES}, temporaries={"t": BYTES}, scalars={"k": "int32"},
    )  # fmt: skip
    y = rig.buffer(BYTES)
    for k in (1, 5, 1):
        rig.results(graph.row(*graph.bind(y=y, scalars={"k": k})))
        assert rig.ints_of(y) == [2 * k] * N


def test_overlapping_memory_is_computed_in_the_order_sent(rig: Rig) -> None:
    """The same with a barrier before each node, and on memory apart."""
    nodes = [
        node("scale", "x", "a", scalars=[2]), node("increment", "a"), node("scale", "x", "b", scalars=[3]),
        node("increment", "b"),
    ]  # fmt: skip
    ends: dict[str, Any] = {"inputs": {"x": BYTES}, "outputs": {"a": BYTES, "b": BYTES}}
    x = ints(*range(N))
    for every in (False, True):
        graph = GraphRig(rig).graph(*nodes, every=every, **ends)
        one, two, three = rig.buffer(x), rig.buffer(x), rig.buffer(x)
        rig.results(graph.row(*graph.bind(x=one, a=two, b=three)))
        assert (rig.ints_of(two)[9], rig.ints_of(three)[9]) == (19, 28)
        rig.results(graph.row(*graph.bind(x=one, a=one, b=one)))
        assert rig.ints_of(one) == [(2 * i + 1) * 3 + 1 for i in range(N)]


def test_rule_04_what_a_graph_uses_may_be_freed_while_it_runs(rig: Rig) -> None:
    kit = GraphRig(rig)
    graph = pipeline_of_steps(kit)
    before = rig.backend.memory()["buffers"]
    x, y, z = rig.buffer(ints(*range(N))), rig.buffer(BYTES), rig.buffer(BYTES)
    kept = graph.bind(x=x, y=z)
    rig.results(graph.row(*kept))
    bound = graph.bind(x=x, y=y)
    flying = rig.submit(graph.row(*bound))
    rig.release(y)
    assert rig.backend.has_deferred
    rig.finish(flying)
    assert not rig.backend.has_deferred
    completion = rig.run(graph.row(*bound), graph.row(*kept))
    assert isinstance(error_of(completion, 0), NotFoundError)
    assert rig.ints_of(z) == [7 * (i + 2) for i in range(N)]
    pipeline = kit.pipelines["add"]
    rig.release(x, z, graph.arena, pipelines=(pipeline,))
    assert rig.backend.memory()["buffers"] == before
    assert isinstance(error_of(rig.run(graph.row(*kept)), 0), NotFoundError)


def test_an_instance_may_be_released_and_launched_again(rig: Rig, begun: list[int]) -> None:
    graph = pipeline_of_steps(GraphRig(rig))
    x, y = rig.buffer(BYTES), rig.buffer(BYTES)
    bound = graph.bind(x=x, y=y)
    flying = rig.submit(graph.row(*bound))
    rig.backend.release(Release(instances=(bound[0].id,)))
    begun.clear()
    rig.results(graph.row(*bound))
    assert len(begun) == 2
    rig.finish(flying)
    assert rig.ints_of(y) == [7] * N


def test_the_longest_unused_recording_makes_room(rig: Rig, begun: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MAX_RECORDINGS", 2)
    graph = pipeline_of_steps(GraphRig(rig))
    x, y = rig.buffer(BYTES), rig.buffer(BYTES)
    one, two, three = (graph.bind(x=x, y=y) for _ in range(3))
    rig.results(*(graph.row(*bound) for bound in (one, two, one, three)))
    begun.clear()
    rig.results(graph.row(*one), graph.row(*three))
    assert len(begun) == 1
    rig.results(graph.row(*two))
    assert len(begun) == 3
    assert rig.ints_of(y) == [7 * 6] * N


def test_times_of_a_graph(rig: Rig) -> None:
    graph = pipeline_of_steps(GraphRig(rig))
    x, y = rig.buffer(BYTES), rig.buffer(BYTES)
    completion = rig.run(graph.row(*graph.bind(x=x, y=y), options=Options(timing=True)), graph.row(x=x, y=y))
    assert completion.errors == {}
    assert set(completion.device_us) == {0}


def test_no_memory_for_an_arena_fails_the_launch_alone(rig: Rig) -> None:
    kit = GraphRig(rig)
    huge = 1 << 45
    graph = kit.graph({"fill": ["t", 0, 4]}, {"copy": [["t", 0, 4], "y"]}, outputs={"y": 4}, temporaries={"t": huge})
    small = kit.graph({"fill": "y", "value": 7}, outputs={"y": 4})
    y = rig.buffer(4)
    completion = rig.run(graph.row(y=y), small.row(y=y))
    assert error_of(completion, 0).code in ("out_of_memory", "too_large")
    assert rig.ints_of(y) == [7]


@pytest.mark.parametrize(("call", "nth"), [("vkQueueSubmit", 1), ("vkEndCommandBuffer", 1), ("vkEndCommandBuffer", 2)])
def test_an_arena_is_zeroed_whatever_failed_before(rig: Rig, call: str, nth: int) -> None:
    graph = GraphRig(rig).graph(
        {"fill": ["t", 0, 4], "value": 1}, {"copy": ["t", "y"]}, outputs={"y": BYTES}, temporaries={"t": BYTES}
    )
    y = rig.buffer(BYTES)
    others = [rig.buffer(b"\xff" * BYTES) for _ in range(4)]
    rig.release(*others)  # whose memory the arena may get
    bound = graph.bind(y=y)
    with binding.inject(call, "VK_ERROR_OUT_OF_DEVICE_MEMORY", nth=nth):
        completion = rig.run(graph.row(*bound))
    assert isinstance(error_of(completion, 0), OutOfDeviceMemoryError)
    rig.stream.reset()
    rig.results(graph.row(*bound))
    assert rig.ints_of(y) == [1] + [0] * (N - 1)


def test_a_launch_whose_results_find_no_room_has_not_run(open_rig: Callable[..., Rig]) -> None:
    rig = open_rig(memory="discrete", tuning=Tuning(staging_limit=1 << 20), external_memory_host=False)
    if rig.backend.info.direct_write_max:
        pytest.skip("the host sees this device's buffers")
    large = 2 << 20
    graph = GraphRig(rig).graph(
        node("increment", "x"), {"fill": "y", "value": 5}, inputs={"x": BYTES}, outputs={"y": large}
    )
    x = rig.buffer(ints(*range(N)))
    launch = graph.row(*graph.bind(x=x, y=("out", large)))
    assert isinstance(error_of(rig.run(launch), 0), OutOfDeviceMemoryError)
    assert rig.ints_of(x) == list(range(N))
