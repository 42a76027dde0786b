"""Random programs where something goes wrong: no memory, a lost device, clients that are killed in the middle."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.daemon import TESTS, Daemon
from support.random_buffers import Mixture
from support.rawclient import RemoteError
from support.reference import DeviceLost
from support.stress import stress

pytestmark = pytest.mark.gpu

SECONDS = float(os.environ.get("VKQUEUE_STRESS_SECONDS", "0"))
SEED = int(os.environ.get("VKQUEUE_STRESS_SEED", "1"))

FEW = "[batching]\nmax_batch_jobs = 4\nmax_batch_delay_us = 0\n"
NO_MEMORY = {
    # Every so many calls, so many times.
    "vkQueueSubmit": (15, 500), "vkBeginCommandBuffer": (31, 300), "vkEndCommandBuffer": (43, 300),
    "vkCreateBuffer": (11, 300), "vkBindBufferMemory": (9, 300), "vkAllocateMemory": (4, 100), "vkMapMemory": (6, 30),
    "vkAllocateCommandBuffers": (5, 100), "vkAllocateDescriptorSets": (7, 300), "vkCreateDescriptorPool": (3, 100),
    "vkCreateFence": (3, 4), "vkCreateCommandPool": (3, 4),
}  # fmt: skip
LOST = {
    "while pages are imported": "vkGetMemoryHostPointerPropertiesEXT 3",
    "at a submission": "vkQueueSubmit 90",
    "while it is waited for": "vkWaitForFences 70",
}


def nothing_left(daemon: Daemon) -> None:
    """Wait until the daemon holds nothing of any client's."""
    left: dict[str, Any] = {}
    with daemon.client() as client:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            stats = client.call("stats")
            device = stats["devices"][0]
            memory = device["memory"]
            if not device["working"]:  # it is being opened anew
                time.sleep(0.02)
                continue
            left = {
                "clients": stats["clients"] - 1, "jobs": stats["jobs_queued"], "batches": device["batches_in_flight"],
                "buffers": stats["buffers"], "shared": memory["shared_bytes"],
                "bytes": memory["bytes_used"] - memory["staging_bytes"],
            }  # fmt: skip
            if not any(left.values()):
                return
            # Frees are done when the device's thread next wakes; the memory of the last batches goes then.
            try:
                buffer = client.call("buffer.create", size=4)["buffer"]
            except RemoteError as error:  # one of the faults that nobody has met yet
                assert error.code == "out_of_memory"
                continue
            client.call("buffer.free", buffer=buffer)
    raise AssertionError(f"left: {left}")


@pytest.mark.timeout(60 + 3 * SECONDS)
@pytest.mark.parametrize("memory", ["", "discrete"])
def test_rule_21_requests_that_find_no_memory_change_nothing(start: Callable[..., Daemon], memory: str) -> None:
    faults = [
        f"{call} {every} VK_ERROR_OUT_OF_DEVICE_MEMORY"
        for call, (every, times) in NO_MEMORY.items()
        for _ in range(times)
    ]
    config = f'descriptors = "sets"\n{FEW}'
    daemon = start(memory=memory, watch=True, faults=",".join(faults), config=config)
    mixture = Mixture(large=0.4, tolerated=frozenset({"out_of_memory"}))
    done = stress(daemon, SEED, mixture, clients=2, bursts=15, seconds=SECONDS)
    assert done["out_of_memory"] > 5 and done["done"] > 50
    nothing_left(daemon)


@pytest.mark.parametrize("when", LOST)
def test_rule_35_a_device_lost_amid_large_payloads_works_again(start: Callable[..., Daemon], when: str) -> None:
    daemon = start(memory="discrete", watch=True, faults=f"{LOST[when]} VK_ERROR_DEVICE_LOST", config=FEW)
    with daemon.client() as client:
        if when == "while pages are imported" and not _imports(client.welcome):
            pytest.skip("the device cannot import memory")
    with pytest.raises(DeviceLost):
        stress(daemon, SEED, Mixture(large=0.7), clients=2, bursts=400)
    nothing_left(daemon)
    assert stress(daemon, SEED + 1, Mixture(large=0.5), clients=2, bursts=8)["done"] > 50
    nothing_left(daemon)


def _imports(welcome: Any) -> bool:
    return "minImportedHostPointerAlignment" in welcome["devices"][0]["limits"]


@pytest.mark.timeout(60 + 3 * SECONDS)
@pytest.mark.parametrize("memory", ["", "discrete"])
def test_rule_32_clients_killed_amid_large_payloads_leave_nothing(start: Callable[..., Daemon], memory: str) -> None:
    """Others are served rightly meanwhile."""
    daemon = start(memory=memory, watch=True, config=FEW)
    rng = random.Random(SEED)
    until = time.monotonic() + SECONDS
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])}
    seed = SEED
    while True:
        victims = [
            subprocess.Popen(
                [sys.executable, "-m", "support.doomed", str(daemon.path), str(100 * seed + number),
                 str(rng.randrange(1, rng.choice([10**5, 10**7, 6 * 10**7])))],
                env=env, stderr=subprocess.PIPE, text=True,
            )
            for number in range(3)
        ]  # fmt: skip
        try:
            done = stress(daemon, seed, Mixture(large=0.3), clients=1, bursts=15)
            assert done["done"] > 20
            for victim in victims:
                _, said = victim.communicate(timeout=60)
                assert victim.returncode == -9, said
        finally:
            for victim in victims:
                victim.kill()
                victim.communicate()
        nothing_left(daemon)
        seed += 1
        if time.monotonic() >= until:
            break
