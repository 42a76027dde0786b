"""Many launches in a call, to the parameters of `dispatch_many`: pure, no connection."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from client.fake_kernels import KERNELS, reflection, scalar, storage

import vkqueue
from vkqueue.client.arguments import Rules
from vkqueue.client.array import BaseDeviceArray, Handle
from vkqueue.client.each import each
from vkqueue.client.info import Limits
from vkqueue.client.launch import LaunchPlan
from vkqueue.client.many import ManyLaunch, ManyPlan
from vkqueue.client.signature import Signature
from vkqueue.errors import InvalidError, QuotaError, UnsupportedError
from vkqueue.kernels.many import Checker
from vkqueue.kernels.plan import LayoutTable, Plan

F32 = np.dtype("float32")
LIMITS = {
    "minUniformBufferOffsetAlignment": 64,
    "minStorageBufferOffsetAlignment": 16,
    "maxUniformBufferRange": 1 << 16,
    "maxStorageBufferRange": 1 << 20,
    "maxComputeWorkGroupCount": [65535] * 3,
}


def handle(number: int, size: int, owner: object = "here") -> Handle:
    return Handle(owner, number, size, ("buffer.free", "buffer"), deque())


def array(number: int, *shape: int, offset: int = 0, size: int = 0, **more: Any) -> BaseDeviceArray:
    count = 4 * int(np.prod(shape))
    return BaseDeviceArray(handle(number, size or count, **more), shape, F32, offset)


def prepare(kernel: str, *args: Any, count: int | None = None, most: int = 1000, **keywords: Any) -> ManyLaunch:
    signature = Signature.from_wire(kernel, KERNELS[kernel][0])
    plan = LaunchPlan(signature, handle(1, 0), Rules("here", 16, 64), 1 << 20)
    return ManyPlan(plan, most, count).prepare(args, keywords)


def sent(kernel: str, *args: Any, **keywords: Any) -> dict[str, Any]:
    params = prepare(kernel, *args, **keywords).params
    return {name: value for name, value in params.items() if name not in ("module", "kernel")}


def launches(kernel: str, params: dict[str, Any], sizes: dict[int, int]) -> list[Any]:
    """What the daemon makes of it: (descriptors, constants, grid) of each launch."""

    class Buffer:
        def __init__(self, number: int) -> None:
            self.id, self.size = number, sizes[number]

    known = {number: Buffer(number) for number in sizes}
    plan = Plan(kernel, KERNELS[kernel][0], LIMITS, LayoutTable())
    many = Checker(plan, params, lambda h, what: known[h], lambda hs: [known.get(h) for h in hs]).check()
    return [(many.entries(i), many.constants_of(i), many.grid_of(i)) for i in range(many.count)]


X, ROWS = array(7, 64), array(8, 5, 64)


def test_rows_arrays_and_numbers_come_to_what_calls_come_to() -> None:
    a = np.arange(5, dtype=np.float64)
    params = sent("axpy", X, each(ROWS), n=64, a=a, elements=(64,))
    struct = np.dtype([("n", "<u4"), ("a", "<f4")])
    expected = [
        (((7, 0, 256), (8, 256 * i, 256)), np.array((64, i), struct).tobytes(), (1, 1, 1)) for i in range(5)
    ]
    assert launches("axpy", params, {7: 256, 8: 1280}) == expected
    several = [array(20 + i, 64) for i in range(5)]
    params = sent("axpy", x=X, y=several, scalars={"n": 64, "a": a}, grid=np.ones(5, int))
    expected = [(((7, 0, 256), (20 + i, 0, 256)), pushed, grid) for i, (_, pushed, grid) in enumerate(expected)]
    assert launches("axpy", params, {7: 256, **{20 + i: 256 for i in range(5)}}) == expected


def test_views_starts_and_lengths() -> None:
    views = [array(20, 16, offset=64, size=256), array(21, 8)]
    params = sent("copy", each(views), each(ROWS, [1, 3], [1, 2]), grid=np.array([[1, 2, 3], [4, 5, 0]]))
    assert launches("copy", params, {20: 256, 21: 32, 8: 1280}) == [
        (((20, 64, 64), (8, 256, 256)), b"", (1, 2, 3)),
        (((21, 0, 32), (8, 768, 512)), b"", (4, 5, 0)),
    ]
    params = sent("copy", X, each(ROWS, np.array([4, 0]), 1), elements=np.array([[100, 2], [64, 1]]))
    assert [grid for _, _, grid in launches("copy", params, {7: 256, 8: 1280})] == [(2, 2, 1), (1, 1, 1)]
    assert params["args"][1]["size"] == 256


def test_every_kind_of_scalar() -> None:
    values = {
        "big": np.array([-(2**40), 2**40]), "on": np.array([True, False]), "v": np.array([[1, 2, 3], [4, 5, 6]]),
        "h": np.array([0.5, 2]), "small": np.array([0, 255], np.uint8),
    }  # fmt: skip
    signature = Signature.from_wire("mixed", KERNELS["mixed"][0])
    single = LaunchPlan(signature, handle(1, 0), Rules("here"), 1 << 20).scalars
    for shared in ("", *values):
        given: dict[str, Any] = {name: v[0].tolist() if name == shared else v for name, v in values.items()}
        params = sent("mixed", each([X, X]), grid=1, **given)
        for i, (_, constants, _) in enumerate(launches("mixed", params, {7: 256})):
            packed = single.from_names({name: v if name == shared else v[i].tolist() for name, v in given.items()})
            assert isinstance(packed, bytes) and constants[: len(packed)] == packed
    assert isinstance(sent("axpy", X, each(ROWS), n=1, a=2, grid=1)["scalars"], bytes)


def test_count_options_and_shared_data() -> None:
    launch = prepare("axpy", np.ones(64, F32), X, n=64, a=np.ones(3), grid=1, priority=3, deadline=0.5, label="l",
                     timing=True)  # fmt: skip
    params = launch.params
    assert (params["count"], params["priority"], params["deadline_ms"], params["label"]) == (3, 3, 500, "l")
    assert params["timing"] is True and launch.timing and launch.method == "dispatch_many"
    assert params["args"][0]["in"] == np.ones(64, F32).tobytes()
    times = {"queued_us": 1, "device_us": 2, "total_us": 3}
    value = launch.value({"count": 3, "timing": times, "device": 0}, {})
    assert value.value is None and value.timing.total_us == 3
    assert prepare("axpy", X, X, n=1, a=1, grid=1, count=17).params["count"] == 17
    arrays = prepare("copy", each([X, X]), each(ROWS, [0, 1]), grid=1).bound.arrays
    assert arrays == [X, X, ROWS]


def test_large_data_goes_through_a_buffer() -> None:
    plan = LaunchPlan(Signature.from_wire("copy", KERNELS["copy"][0]), handle(1, 0), Rules("here"), 1000)
    launch = ManyPlan(plan, 9, None).prepare((np.zeros(300, F32), each(ROWS)), {"grid": 1})
    assert [entry.nbytes for entry in launch.spilled] == [1200]


def test_descriptor_arrays() -> None:
    params = sent("pick", X, [X, each(ROWS), X, X], which=0, grid=1)
    first = launches("pick", params, {7: 256, 8: 1280})[4][0]
    assert first == ((7, 0, 256), (7, 0, 256), (8, 1024, 256), (7, 0, 256), (7, 0, 256))


BAD = np.zeros(3, F32)


@pytest.mark.parametrize(
    ("says", "kernel", "args", "keywords"),
    [
        ("scalar a is for 4 launches, argument 'y' .* for 5", "axpy", (X, each(ROWS)), {"n": 1, "a": np.ones(4)}),
        ("grid is for 3 launches", "copy", (X, each(ROWS)), {"grid": np.ones((3, 3), int)}),
        ("no argument differs", "copy", (X, X), {}),
        ("launches: one call takes 1 to 1000", "copy", (X, X), {"count": 1001}),
        ("launches: one call takes 1 to 1000", "copy", (X, X), {"count": 0}),
        ("launches: one call takes 1 to 1000", "copy", (X, X), {"count": 1.5}),
        ("many launches return nothing", "copy", (X, np.zeros(64, F32)), {"count": 2}),
        ("many launches return nothing", "copy", (X, vkqueue.out(64, "float32")), {"count": 2}),
        ("inplace", "copy", (X, X), {"count": 2, "inplace": True}),
        ("takes no 'q'", "copy", (X, X), {"count": 2, "q": 1}),
        ("needs the scalar n", "axpy", (X, each(ROWS)), {"a": np.ones(5)}),
        ("scalar a: .*launch 2: .* not of this type", "axpy", (X, each(ROWS)),
         {"n": 1, "a": np.array([1, 2, 1e300, 4, 5])}),
        ("scalar n: uint32: launch 1", "axpy", (X, each(ROWS)), {"n": np.array([1, -1, 3, 4, 5]), "a": 1}),
        ("scalar n: uint32: values of float64", "axpy", (X, each(ROWS)), {"n": np.ones(5), "a": 1}),
        ("scalar on: bool32: launch 1", "mixed", (X,), {"scalars": {"on": np.array([1, 2]), "big": 0, "v": [0] * 3,
                                                                     "h": 0, "small": 0}}),
        ("expected 3 values for each launch, got 2", "mixed", (X,), {"v": np.ones((2, 2), int), "on": 1, "big": 0,
                                                                     "h": 0, "small": 0}),
        ("by keyword .* or as scalars=", "axpy", (X, each(ROWS)), {"n": 1, "scalars": [1, 2]}),
        ("one of grid=", "copy", (X, each(ROWS)), {"grid": None}),
        ("one to three integers for each launch", "copy", (X, each(ROWS)), {"grid": np.ones((5, 4), int)}),
        ("one to three integers for each launch", "copy", (X, each(ROWS)), {"grid": np.ones(5)}),
        ("grid: launch 1: .*-1.* is no extent", "copy", (X, each(ROWS)), {"grid": np.array([1, -1, 0, 0, 0])}),
        ("another connection", "copy", (X, each([array(9, 64, owner="there")] * 2)), {}),
        ("launch 1 starts at byte 4 .* multiples of 16", "copy",
         (X, each([X, array(9, 8, offset=4, size=64)])), {}),
        ("expected a list of so many", "pick", (X, [X]), {"which": 0, "count": 2}),
        ("each: expected device arrays", "copy", (X, [X, BAD]), {}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_before_anything_is_sent(
    says: str, kernel: str, args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    with pytest.raises(InvalidError, match=says):
        prepare(kernel, *args, **({"grid": 1} | keywords))


def test_freed_and_failed_arrays_are_told() -> None:
    freed, failed = array(30, 64), array(31, 64)
    ours = each([freed, failed])
    freed.handle.bury()
    with pytest.raises(InvalidError, match="was freed"):
        prepare("copy", X, ours, grid=1)
    failed.handle.failed(QuotaError("no memory"))
    with pytest.raises(QuotaError):
        prepare("copy", X, each([X, failed]), grid=1)


def test_elements_of_a_wrong_size_are_told() -> None:
    doubles = BaseDeviceArray(handle(40, 512), (2, 32), np.dtype("float64"))
    with pytest.raises(InvalidError, match="float64"):
        prepare("copy", X, each(doubles), grid=1)
    kernel = reflection([storage(0, "write", size=300)], [scalar("n", "uint32", 0)])
    plan = LaunchPlan(Signature.from_wire("k", kernel), handle(1, 0), Rules("here"), 1000)
    with pytest.raises(InvalidError, match="at least 300"):
        ManyPlan(plan, 9, None).prepare((each(ROWS),), {"n": 1, "grid": 1})


@pytest.mark.parametrize(
    ("says", "args"),
    [
        ("expected device arrays", ([],)),
        ("expected device arrays", ([X, 3],)),
        ("slice the arrays of a list", ([X], [0])),
        ("has no rows", (array(9),)),
        ("has no rows", (array(9, 0, 4),)),
        ("launch 1 gets 1 rows from 5 on, the array has 5", (ROWS, [0, 5])),
        ("launch 0 gets 1 rows from -1 on", (ROWS, [-1])),
        ("launch 1 gets 9 rows", (ROWS, [0, 1], [1, 9])),
        ("launch 0 gets -1 rows", (ROWS, [0], [-1])),
        ("not one for each launch", (ROWS, [0, 1, 2], [1, 1])),
        ("not one for each launch", (ROWS, [[0, 1]])),
        ("not one for each launch", (ROWS, np.zeros(0, int))),
        ("starts: expected integers", (ROWS, [0.5])),
        ("length: expected integers", (ROWS, [0], 0.5)),
    ],
)
def test_each_takes_rows_that_are_there(says: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidError, match=says):
        each(*args)


def test_each_has_a_length_and_a_name() -> None:
    assert len(each(ROWS)) == 5 and repr(each([X, X])) == "<vkqueue.each: 2 launches>"


def test_an_older_daemon_and_a_kernel_that_cannot_run() -> None:
    with pytest.raises(UnsupportedError, match="does not take many"):
        prepare("copy", X, each(ROWS), grid=1, most=0)
    wire = {**KERNELS["copy"][0], "unsupported": "no float64"}
    plan = LaunchPlan(Signature.from_wire("k", wire), handle(1, 0), Rules("here"), 1000)
    with pytest.raises(UnsupportedError, match="no float64"):
        ManyPlan(plan, 9, 1).prepare((X, X), {"grid": 1})
    assert Limits(1, 2, 3, 4).max_many_launches == 0
