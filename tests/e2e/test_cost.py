"""Batches bounded by what their kernels were measured to take, on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.daemon import Daemon
from support.e2e import create, load

pytestmark = pytest.mark.gpu

N = 1 << 16


def test_batches_close_before_they_would_pass_the_bound(start: Callable[..., Daemon]) -> None:
    # What a batch of 256 jobs may take at 4 µs each: on lavapipe every launch takes longer.
    daemon = start(config="[batching]\nmax_batch_gpu_ms = 1.0\nmax_batch_delay_us = 0\nbatches_in_flight = 1\n")
    with daemon.client() as client:
        module = load(client, "axpy")
        x, y = create(client, [1.0] * N), create(client, [0.0] * N)
        launch = {"module": module, "args": [x, y], "scalars": [N, 0.0], "grid": [N // 64]}

        def batches() -> int:
            return int(client.call("stats")["devices"][0]["batches"])

        for _ in range(3):  # so that the kernel is known
            for msgid in [client.send("dispatch", **launch) for _ in range(8)]:
                client.wait(msgid)
        before = batches()
        for msgid in [client.send("dispatch", **launch) for _ in range(300)]:
            client.wait(msgid)
        told = client.call("stats")["devices"][0]["gpu_time"]
        if not client.welcome["devices"][0]["type"] == "cpu":
            pytest.skip("a device on which nothing is slow")
        assert told["slow_kernels"] == 1
        assert told["batches_bounded"] > 0
        assert told["predictions"] > 0
        assert batches() - before > 300 // 128
