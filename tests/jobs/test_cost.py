"""What rows take on the device: which batches are timed, what is learned of them, what a batch has room for."""

from __future__ import annotations

from typing import Any

import pytest
from support.jobs import launch, token, write

from vkqueue.jobs.cost import Costs
from vkqueue.jobs.scheduler import Scheduler
from vkqueue.model import DISPATCH, GRAPH, Batch, Completion, GraphInstance, GraphNode, Options, Row

MS, US = 1_000_000, 1_000
JOBS = 100
FAST, SLOW = 3, 4


def row(pipeline: int = FAST, msgid: int = 0, *, groups: int = 1, session: int = 1, options: Any = None) -> Row:
    return (session, msgid, DISPATCH, token(), pipeline, b"", (groups, 1, 1), None, 0, options)


def graph(id: int, nodes: tuple[GraphNode, ...]) -> Row:
    return (1, id, GRAPH, token(), GraphInstance(id, nodes, ()), b"", None, None, 0, None)


def over(costs: Costs, rows: list[Row], *ns: int, errors: Any = ()) -> None:
    """A timed batch came back."""
    batch = Batch(1, rows, [0] * len(rows), [-1] * len(rows), timed=True)
    completion = Completion(batch, spent_ns=dict(enumerate(ns)), errors=dict.fromkeys(errors, Exception()))
    costs.finished(completion, sum(ns))


def learned(bound_ms: float = 10, slow_ns: int = 2 * MS) -> Costs:
    """Of FAST that it takes a microsecond, of SLOW that it takes two milliseconds."""
    costs = Costs(bound_ms, JOBS)
    over(costs, [row(FAST), row(SLOW)], US, slow_ns)
    return costs


# Which batches are timed


def test_the_first_batch_is_timed_and_one_in_so_many() -> None:
    costs = Costs(10, JOBS)
    assert [number for number in range(200) if costs.wants_times()] == [0, 64, 128, 192]


def test_without_a_bound_nothing_is_learned_of_batches_that_are_timed_for_another_reason() -> None:
    costs = Costs(0, JOBS)
    over(costs, [row(FAST), row(SLOW)], US, 2 * MS)
    assert not costs.slow and costs.row_ns(row(SLOW)) == 0 and not costs.wants_times()


def test_the_one_behind_a_long_one_is_timed() -> None:
    costs = Costs(10, JOBS)
    costs.wants_times()
    costs.finished(Completion(Batch(1, [], [], [])), 4 * MS)
    assert not costs.wants_times()
    costs.finished(Completion(Batch(1, [], [], [])), 6 * MS)
    assert [costs.wants_times() for _ in range(2)] == [True, False]


def test_one_with_a_slow_kernel_is_timed() -> None:
    costs = learned()
    costs.wants_times()
    costs.row_ns(row(FAST))
    assert not costs.wants_times()
    costs.row_ns(row(SLOW))
    assert costs.wants_times()


def test_after_one_without_launches_another_is_timed() -> None:
    costs = Costs(10, JOBS)
    costs.wants_times()
    over(costs, [write((1, 0, 64))], 1000)
    assert [costs.wants_times() for _ in range(2)] == [True, False]


def test_after_one_that_the_host_did_another_is_timed() -> None:
    costs = Costs(10, JOBS)
    for submits in (0, 0, 1):
        assert costs.wants_times()
        costs.finished(Completion(Batch(1, [], [], [], timed=True), submits=submits), 1000)
    assert not costs.wants_times()


def test_without_a_bound_none_is() -> None:
    assert not any(Costs(0, JOBS).wants_times() for _ in range(1000))


# What is learned


def test_a_kernel_is_slow_if_a_batch_of_it_would_pass_the_bound() -> None:
    costs = Costs(10, JOBS)
    over(costs, [row(FAST), row(SLOW)], 99 * US, 101 * US)
    assert costs.slow == {SLOW}
    assert costs.row_ns(row(FAST)) == 0
    assert costs.row_ns(row(SLOW)) == 101 * US


def test_equal_launches_of_a_batch_are_learned_as_one() -> None:
    costs = Costs(10, JOBS)
    over(costs, [row(SLOW)] * 3, 1 * MS, 2 * MS, 3 * MS)
    assert costs.row_ns(row(SLOW)) == 2 * MS


def test_sizes_are_told_apart() -> None:
    costs = Costs(10, JOBS)
    over(costs, [row(SLOW, groups=10), row(SLOW, groups=1000)], 20 * US, 2 * MS)
    assert costs.row_ns(row(SLOW, groups=10)) == 20 * US
    assert costs.row_ns(row(SLOW, groups=500)) == pytest.approx(1 * MS, rel=0.02)


def test_a_kernel_that_is_fast_now_is_slow_no_more() -> None:
    costs = learned()
    for _ in range(40):
        over(costs, [row(SLOW)], US)
    assert costs.slow == set()


def test_of_rows_that_failed_and_of_transfers_nothing_is_learned() -> None:
    costs = Costs(10, JOBS)
    over(costs, [row(SLOW), write((1, 0, 64))], 5 * MS, 5 * MS, errors=[0])
    assert costs.slow == set()


def test_instances_of_one_graph_are_one() -> None:
    costs = Costs(10, JOBS)
    mine, other = (GraphNode(DISPATCH, (), (), ()),), (GraphNode(DISPATCH, (), (), ()),)
    over(costs, [graph(1, mine)], 5 * MS)
    assert costs.row_ns(graph(2, mine)) == 5 * MS
    assert costs.row_ns(graph(3, other)) == 0


def test_predictions_and_their_errors_are_told() -> None:
    costs = learned(slow_ns=2 * MS)
    over(costs, [row(SLOW)], 4 * MS)
    assert costs.stats() == {
        "max_batch_gpu_ms": 10,
        "batches_bounded": 0,
        "slow_kernels": 1,
        "predictions": 1,
        "mean_absolute_error": 0.5,
        "bias": -0.5,
    }


# What a batch has room for


class Rig(Scheduler):
    """A scheduler that speaks of rows by msgid, with two connections."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(8, costs)
        self.costs = costs
        for id in (1, 2):
            self.add_session(id)

    def put(self, pipelines: list[int], session: int = 1, first: int = 0, **options: Any) -> None:
        for number, pipeline in enumerate(pipelines):
            made = row(pipeline, first + number, session=session, options=Options(**options) if options else None)
            self.submit(made, 0)

    def taken(self, most: int = JOBS) -> list[int]:
        return [row[1] for row in self.take(most, 0)]


def test_a_batch_closes_before_it_would_pass_the_bound() -> None:
    rig = Rig(learned(bound_ms=10))
    rig.put([SLOW] * 12)
    assert [rig.taken() for _ in range(3)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert rig.costs.bounded == 2
    assert (rig.queued, rig.ready, rig.launches) == (0, 0, 0)


def test_fast_rows_fill_it_up() -> None:
    rig = Rig(learned(bound_ms=4))
    rig.put([SLOW, FAST, SLOW, FAST, FAST, SLOW, FAST])
    assert rig.taken() == [0, 1, 2, 3, 4]
    assert rig.taken() == [5, 6]


def test_one_that_takes_longer_than_the_bound_goes_without_other_slow_ones() -> None:
    rig = Rig(learned(bound_ms=1))
    rig.put([FAST, SLOW, SLOW])
    rig.put([FAST, FAST], session=2, first=10)
    assert rig.taken() == [0, 1, 10, 11]
    assert rig.taken() == [2]


def test_who_did_not_get_room_comes_first_next_time() -> None:
    rig = Rig(learned(bound_ms=4))
    rig.put([SLOW] * 4)
    rig.put([SLOW] * 4, session=2, first=10)
    assert [rig.taken() for _ in range(4)] == [[0, 1], [10, 11], [2, 3], [12, 13]]


def test_rows_with_options_are_bounded_too() -> None:
    rig = Rig(learned(bound_ms=4))
    rig.put([SLOW] * 3)
    rig.put([SLOW] * 2, first=10, priority=1)
    assert [rig.taken() for _ in range(3)] == [[10, 11], [0, 1], [2]]


def test_while_nothing_slow_is_queued_rows_leave_as_ever() -> None:
    rig = Rig(learned())
    rig.put([FAST] * 200)
    assert rig.taken() == list(range(JOBS))
    assert rig.costs.bounded == 0


def test_without_costs_nothing_is_bounded() -> None:
    scheduler = Scheduler(8)
    scheduler.add_session(1)
    for msgid in range(5):
        scheduler.submit(launch(token(), msgid), 0)
    assert len(scheduler.take(JOBS, 0)) == 5
