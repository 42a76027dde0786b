"""Random programs of several connections, compared with plain bytes, in daemons that batch and bind in all ways.

The validation layers listen, and `support.watch` looks at every command. By default a few bursts of requests are sent;
`VKQUEUE_STRESS_SECONDS` is how long each way goes on with further seeds, `VKQUEUE_STRESS_SEED` the first one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemon import LAVAPIPE, Daemon, two_devices
from support.random_buffers import Mixture
from support.stress import stress

pytestmark = pytest.mark.gpu

SECONDS = float(os.environ.get("VKQUEUE_STRESS_SECONDS", "0"))
SEED = int(os.environ.get("VKQUEUE_STRESS_SEED", "1"))

FEW = "[batching]\nmax_batch_jobs = 3\nmax_batch_delay_us = 0\n"
WAYS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "sets, one batch at a time": {"config": f'descriptors = "sets"\n{FEW}batches_in_flight = 1\n'},
    "discrete, small batches": {"memory": "discrete", "config": f'descriptors = "sets"\nwaiter = "same"\n{FEW}'},
    "resizable BAR": {"memory": "resizable BAR", "config": "debug_labels = true\n"},
    "mirrored": {"config": f"external_memory_host = false\n{FEW}"},
    "not coherent": {"memory": "not coherent"},
    "without robustness2": {"memory": "discrete", "env": {"VKQUEUE_TEST_ROBUSTNESS2": "0"}, "config": FEW},
    "discrete, large": {"memory": "discrete", "mixture": Mixture(large=0.5)},
    "two devices": {"memory": "discrete", "clients": 4, "config": FEW},
    "many clients": {"clients": 8, "config": "[batching]\nmax_batch_jobs = 16\nmax_batch_gpu_ms = 2\n"},
    "undisturbed": {"mixture": Mixture(share=False, disturb=False)},
}
BRIEFLY = ("as it comes", "sets, one batch at a time", "discrete, small batches", "mirrored")


@pytest.mark.timeout(60 + 3 * SECONDS)
@pytest.mark.parametrize("way", WAYS if SECONDS else BRIEFLY)
def test_rules_11_and_43_any_program_has_the_result_of_one_request_after_the_other(
    start: Callable[..., Daemon], tmp_path: Path, way: str
) -> None:
    options = dict(WAYS[way])
    if way == "two devices":
        if not Path(LAVAPIPE).exists():
            pytest.skip("lavapipe is not installed here")
        twice = two_devices(tmp_path)
        options |= {**twice, "config": twice["config"] + options["config"]}
    clients, mixture = options.pop("clients", 2), options.pop("mixture", Mixture())
    daemon = start(**options, watch=True)
    until = time.monotonic() + SECONDS
    seed = SEED
    while True:
        done = stress(daemon, seed, mixture, clients=clients, bursts=60 if SECONDS else 10)
        assert done["done"] > 50
        assert not daemon.complaints(), f"seed {seed}"
        seed += 1
        if time.monotonic() >= until:
            break
