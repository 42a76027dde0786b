"""A stream of requests to models with some bad ones, cancellations and clients that are killed: every good one right,
none lost, and the daemon's statistics those that the clients' own logs add up to.

VKQUEUE_TEST_STREAM_SECONDS says how long each stream lasts: 2 seconds if it is not set; 600 for a long look. What
was counted is then in `counts.txt` in the test's folder (`--basetemp`).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.affine import W, ensemble, first, kernels, load
from support.daemon import TESTS, Daemon
from support.rawclient import RawClient
from support.stream_client import MODELS
from support.stream_log import Tally

pytestmark = pytest.mark.gpu

SECONDS = float(os.environ.get("VKQUEUE_TEST_STREAM_SECONDS", "2"))

_SETTINGS: dict[str, dict[str, Any]] = {
    "as they come": {"dynamic_batching": {"default_queue_policy": {"allow_timeout_override": True}}},
    "ordered, bounded, with levels": {
        "max_batch_gpu_ms": 0.3,
        "dynamic_batching": {
            "preserve_ordering": True,
            "preferred_batch_size": [4, 6],
            "max_queue_delay_microseconds": 300,
            "priority_levels": 3,
            "default_priority_level": 2,
            "default_queue_policy": {"allow_timeout_override": True},
            "priority_queue_policy": {"3": {"allow_timeout_override": True, "timeout_action": "DELAY"}},
        },
    },
}


class Crowd:
    """Clients, of which some are killed and replaced."""

    def __init__(self, daemon: Daemon, folder: Path, seed: int, until: float) -> None:
        self.daemon = daemon
        self.folder = folder
        self.rng = random.Random(seed)
        self.until = until
        self.logs: list[Path] = []
        self.running: list[subprocess.Popen[bytes]] = []
        self.killed = 0

    def start(self) -> None:
        log = self.folder / f"client{len(self.logs)}.txt"
        self.logs.append(log)
        seconds = max(self.until - time.monotonic(), 0.1)
        words = [str(self.daemon.path), str(log), str(self.rng.randrange(2**31)), str(seconds)]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        run = [sys.executable, "-m", "support.stream_client", *words]
        self.running.append(subprocess.Popen(run, env=environment, cwd=TESTS.parent))

    def kill(self) -> None:
        """One at random, in the middle of whatever it does; another takes its place."""
        victim = self.running.pop(self.rng.randrange(len(self.running)))
        assert victim.poll() is None, "a client ended before its time"
        victim.kill()
        victim.wait()
        self.killed += 1
        self.start()

    def begun(self) -> bool:
        """Whether all of those that run have sent something."""
        return all(log.exists() and log.stat().st_size > 1000 for log in self.logs[-len(self.running) :])

    def pause(self, seconds: float) -> None:
        """Wait, but not for one that has failed."""
        try:
            self.running[0].wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def finish(self) -> None:
        for client in self.running:
            client.wait(120)

    def stop(self) -> None:
        for client in self.running:
            client.kill()
            client.wait()


def fragile(**changes: Any) -> dict[str, Any]:
    """As the model of `affine`, without a graph where seq is 8."""
    return {
        "dynamic_batching": {},
        "temporary": [{"name": "copy", "size": "batch * seq * 4 + 0 // (8 - seq)"}],
        **changes,
    }


class Loader:
    """Loads the models, and loads them anew under way."""

    def __init__(self, client: RawClient, settings: dict[str, Any], rng: random.Random) -> None:
        self.client = client
        self.settings = settings
        self.rng = rng
        self.loads = 0
        for number in (1, 2):
            self.reload_m(number)
        self.client.call("model.load", name="plain", **self._first(max_batch_size=0))
        load(self.client, "fragile", **fragile(model_warmup=[{"batch_size": 1, "dimensions": {"seq": 4}}]))
        load(self.client, "second")
        self.client.call("model.load", name="first", **self._first())
        self.reload_ensemble()

    @staticmethod
    def _first(**changes: Any) -> dict[str, Any]:
        two = np.array([2], np.float32).tobytes()
        return {"config": first(**changes), "kernels": kernels()[:1], "weights": {"w": two}}

    def reload_m(self, version: int) -> None:
        load(self.client, "m", version=version, w=W * version, **self.settings)
        self.loads += 1

    def reload_ensemble(self) -> None:
        self.client.call("model.load", name="both", config=ensemble())
        self.loads += 1

    def come_and_go(self) -> None:
        load(self.client, "transient")
        self.client.call("model.unload", name="transient")
        self.loads += 1

    def anything(self) -> None:
        kind = self.rng.randrange(4)
        if kind == 0:
            self.reload_ensemble()
        elif kind == 1:
            self.come_and_go()
        else:
            self.reload_m(kind - 1)


def quiet(client: RawClient) -> dict[str, Any]:
    """`stats` once nobody else is connected and nothing is on its way."""
    while True:
        stats: dict[str, Any] = client.call("stats")
        moving = any(device["batches_in_flight"] for device in stats["devices"])
        if stats["clients"] == 1 and not stats["jobs_queued"] and not moving:
            if not any(version["queued"] for version in client.call("model.statistics")):
                return stats


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("settings", _SETTINGS)
def test_a_stream(start: Callable[..., Daemon], tmp_path: Path, settings: str) -> None:
    seed = 7
    rng = random.Random(seed)
    daemon = start()
    with daemon.client(timeout=120) as client:
        loader = Loader(client, _SETTINGS[settings], rng)
        before = client.call("stats")
        crowd = Crowd(daemon, tmp_path, seed, time.monotonic() + SECONDS)
        try:
            for _ in range(3):
                crowd.start()
            while time.monotonic() < crowd.until - 0.3:
                crowd.pause(rng.random() * 0.5)
                loader.anything()
                if rng.random() < 0.3 and crowd.begun():
                    crowd.kill()
            crowd.finish()
        finally:
            crowd.stop()
        stats = quiet(client)
        tally = Tally()
        for log in crowd.logs:
            tally.add(log)
        assert not tally.wrong, tally.wrong
        assert tally.ended == 3
        assert tally.known["m", "ok"]
        assert tally.known["m", "refused"]
        found = client.call("model.statistics")
        for name in MODELS:
            tally.check_model(name, [version for version in found if version["name"] == name])
        launches = stats["launches"] - before["launches"]
        known = tally.known["dispatch", "ok"]
        assert known <= launches <= known + tally.unknown["dispatch"]
        closed = {name: sum(v["closed"][name] for v in found) for name in found[0]["closed"]}
        counts = {"clients": len(crowd.logs), "killed": crowd.killed, "loads": loader.loads, "closed": closed}
        (tmp_path / "counts.txt").write_text(f"{counts}\n{tally}\n")
        for name in sorted({version["name"] for version in client.call("model.list")}):
            client.call("model.unload", name=name)
        while (after := quiet(client))["buffers"]:  # given back behind what was submitted
            time.sleep(0.01)
        assert after["memory_bytes"] == sum(device["memory"]["staging_bytes"] for device in after["devices"])
        assert client.call("model.list") == []
