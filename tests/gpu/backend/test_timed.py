"""Batches whose rows are timed: each row's share of what the batch took."""

from __future__ import annotations

import pytest
from support.gpu_rig import Rig, ints
from support.graph_rig import GraphRig

from vkqueue.gpu import frame
from vkqueue.model import Completion, Row

pytestmark = pytest.mark.gpu

N = 64


def timed(rig: Rig, *rows: Row) -> Completion:
    """Run rows as one timed batch."""
    batch = rig.batch(rows)
    batch.timed = True
    completion = rig.finish(rig.backend.submit(batch))
    assert completion.errors == {}
    return completion


@pytest.fixture(autouse=True)
def _with_timestamps(rig: Rig) -> None:
    if not rig.backend.info.timestamps:
        pytest.skip("this device has no timestamps")


def test_each_row_has_its_share(rig: Rig) -> None:
    y = rig.buffer(ints(*[1] * N))
    rows = [rig.dispatch("increment", [y]) for _ in range(5)]
    completion = timed(rig, *rows)
    assert list(completion.spent_ns) == [0, 1, 2, 3, 4]
    assert min(completion.spent_ns.values()) >= 0
    assert sum(completion.spent_ns.values()) > 0
    assert rig.ints_of(y) == [6] * N


def test_other_batches_are_not_timed(rig: Rig) -> None:
    y = rig.buffer(ints(*[1] * N))
    timed(rig, rig.dispatch("increment", [y]))
    assert rig.run(rig.dispatch("increment", [y])).spent_ns == {}


def test_more_rows_than_a_pool_has_queries(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "QUERIES", 4)
    y = rig.buffer(ints(*[1] * N))
    for count in (3, 4, 9, 2):
        assert len(timed(rig, *[rig.dispatch("increment", [y]) for _ in range(count)]).spent_ns) == count


def test_graphs_and_transfers_among_them(rig: Rig) -> None:
    x = rig.buffer(4 * N)
    graph = GraphRig(rig).graph({"fill": "y", "value": 7}, outputs={"y": 4 * N})
    completion = timed(rig, graph.row(y=x), rig.dispatch("increment", [x]), rig.fill(x, 3, 0, 4), rig.read(x))
    assert set(completion.spent_ns) >= {0, 1, 2}
    assert rig.ints_of(x) == [3] + [8] * (N - 1)
