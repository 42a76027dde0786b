"""What shared memory is worth: copies between it and the device's own by `buffer.copy`, one request and one answer for
each, beside a C loop that does the same with one submission and one fence: one after the other, and two under way.

Ratios are what counts, of sides that are measured in turns; see `measure`.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from vkqueue.bench.limit import CopyLimit
from vkqueue.bench.window import DEPTHS, rate
from vkqueue.client.sync import connect
from vkqueue.client.sync_array import DeviceArray
from vkqueue.errors import InternalError

SIZE = 64 << 20
"""Bytes of one copy."""

WAYS = ("up", "down")
_COPIES = 16


def gb_per_s(source: DeviceArray, target: DeviceArray, *, under_way: int) -> float:
    """Of whole copies."""
    return source.nbytes * rate(lambda: target.submit_copy_from(source), under_way=under_way, count=_COPIES)[0] / 1e9


def compare(
    path: str, limit: CopyLimit | None, uuid: str, device: int = 0, *, repeats: int, size: int = SIZE
) -> dict[str, Any]:
    """Medians over `repeats`: GB/s of copies up and down, and of C's (one at a time), and the ratios of the two.

    Args:
        limit: None to leave it out.

    Raises:
        UnsupportedError: C cannot import memory on this device.
    """
    samples: dict[str, list[float]] = {}
    with connect(path, device=device) as gpu:
        shared, own = gpu.shared((size,), "u1"), gpu.empty((size,), "u1")
        memory = shared.numpy()
        memory[:] = np.random.default_rng().integers(0, 256, size, dtype=np.uint8)
        sum_before = int(memory.sum(dtype=np.uint64))
        for _ in range(repeats):
            if limit is not None:
                for way, rate in zip(WAYS, limit.run(uuid, size=size, copies=_COPIES), strict=True):
                    samples.setdefault(f"c_{way}_gb_per_s", []).append(rate)
            for name, under_way in DEPTHS.items():
                samples.setdefault(f"up{name}_gb_per_s", []).append(gb_per_s(shared, own, under_way=under_way))
            memory[:] = 0
            for name, under_way in DEPTHS.items():
                samples.setdefault(f"down{name}_gb_per_s", []).append(gb_per_s(own, shared, under_way=under_way))
        if int(memory.sum(dtype=np.uint64)) != sum_before:
            raise InternalError("the bytes that came back are not those that went")
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {
        f"{way}{name}": medians[f"{way}{name}_gb_per_s"] / medians[f"c_{way}_gb_per_s"]
        for way in WAYS
        for name in DEPTHS
        if limit is not None
    }
    return {"bytes": size, "medians": medians, "ratios": ratios}
