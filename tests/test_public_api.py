"""The public names, as a literal list: adding or losing one is a decision, not an accident."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import vkqueue
from vkqueue.errors import BY_CODE

PUBLIC = [
    "Binding", "Client", "CompileError", "ConnectionLostError", "DeniedError", "DependencyError", "Device",
    "DeviceArray", "DeviceLostError", "Future", "InternalError", "InvalidError", "JobCancelledError",
    "JobExpiredError", "JobTimeoutError", "Kernel", "Limits", "Module", "NotFoundError", "Out",
    "OutOfDeviceMemoryError", "OverloadedError", "ProtocolError", "QuotaError", "Saved", "Scalar",
    "ShuttingDownError", "Signature", "SpecConstant", "Timed", "Timing", "TooLargeError", "UnknownMethodError",
    "UnsupportedError", "VkqueueError", "__version__", "connect", "out",
]  # fmt: skip


def test_the_names_are_these() -> None:
    assert sorted(vkqueue.__all__) == PUBLIC


def test_every_name_is_there_and_says_it_is_public() -> None:
    for name in PUBLIC:
        assert getattr(vkqueue, name) is not None
        assert name in dir(vkqueue)


def test_every_error_of_the_protocol_is_public() -> None:
    assert {error.__name__ for error in BY_CODE.values()} <= set(PUBLIC)


def test_a_client_needs_no_part_of_the_daemon() -> None:
    """Rule 33: neither Vulkan nor what only the daemon uses is imported with the library."""
    code = "import sys, vkqueue; [getattr(vkqueue, name) for name in vkqueue.__all__]; print(*sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    run = [sys.executable, "-c", code]
    loaded = subprocess.run(run, env=environ, capture_output=True, check=True, timeout=30, text=True).stdout.split()
    ours = {name.split(".")[1] for name in loaded if name.startswith("vkqueue.")}
    assert not ours & {"gpu", "daemon", "jobs", "worker", "config", "cli"}
    assert not {"vulkan", "anyio", "asyncio"} & set(loaded)
