"""The figures of many clients and buffers, and of two devices: the same driver listed twice."""

from __future__ import annotations

from typing import Any

import pytest

from vkqueue.bench import devices, scale


def test_what_many_cost_is_compared_with_what_few_cost() -> None:
    asked: list[dict[str, Any]] = []

    def load(**options: Any) -> dict[str, float]:
        asked.append(options)
        many = options["clients"] == 1000 or options["buffers"] == 10_000
        return {"jobs_per_s": 50.0 if many else 100.0, "cpu_us_per_job": 3.0 if many else 2.0}

    report = scale.compare(load, repeats=2, seconds=0.1)
    assert report["ratios"] == {"clients": 1.5, "clients_time": 2.0, "buffers": 1.5, "buffers_time": 2.0}
    assert [(o["clients"], o["buffers"]) for o in asked] == 2 * [(1, 4), (1000, 4), (1, 10), (1, 10_000)]
    assert asked[0]["window"] == asked[1]["window"]


def test_two_devices_work_at_once() -> None:
    def load(**options: Any) -> dict[str, float]:
        return {"jobs_per_s": 10.0 + options["device"]}

    report = devices.compare(load, (0, 1), repeats=1, seconds=0.1)
    assert report["medians"] == {"one_jobs_per_s": 10.0, "two_jobs_per_s": 21.0}
    assert report["ratio"] == pytest.approx(2.1)
