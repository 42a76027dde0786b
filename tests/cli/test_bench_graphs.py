"""What the bench measures of graphs, never how fast."""

from __future__ import annotations

import pytest
from support.daemon import Daemon

from vkqueue.bench.graphs import NODES, GraphBench
from vkqueue.cli.demo_client import kernel_bytes

pytestmark = pytest.mark.gpu


def test_figures_of_a_daemon_without_the_c_limit(daemon: Daemon) -> None:
    with daemon.client() as client:
        uuid = client.welcome["devices"][0]["uuid"]
    bench = GraphBench(str(daemon.path), None, str(daemon.path), kernel_bytes("axpy"), None, 0, uuid)
    report = bench.run(repeats=1, seconds=0.1)
    assert report["nodes"] == NODES
    assert set(report["medians"]) == {
        "launch_us", "pipelined_us", "pipelined_jobs_per_batch", "pipelined_submits_per_job", "eager_us", "elided_us",
        "every_us",
    }  # fmt: skip
    assert set(report["ratios"]) == {"over_eager", "over_every"}
    assert all(value > 0 for value in report["medians"].values())
    with daemon.client() as client:
        assert client.call("stats")["jobs_failed"] == 0
