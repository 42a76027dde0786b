"""The public names, literally: a change of them is a change of the contract."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vkqueue
import vkqueue.aio
from vkqueue.errors import BY_CODE

PUBLIC = [
    "Binding", "Client", "CompileError", "ConnectionLostError", "DeniedError", "DependencyError", "Device",
    "DeviceArray", "DeviceLostError", "Each", "Future", "Graph", "InferTiming", "Inferred", "InternalError",
    "InvalidError", "JobCancelledError", "JobExpiredError", "JobTimeoutError", "Kernel", "Limits", "Model", "ModelInfo",
    "ModelTensor", "Module", "NotFoundError", "Out",
    "OutOfDeviceMemoryError", "OverloadedError", "ProtocolError", "QuotaError", "Saved", "Scalar",
    "SharedArray", "ShuttingDownError", "Signature", "SpecConstant", "Timed", "Timing", "TooLargeError",
    "UnknownMethodError", "UnsupportedError", "VkqueueError", "__version__", "connect", "each", "out",
]  # fmt: skip

PUBLIC_AIO = [
    "AsyncClient", "AsyncDeviceArray", "AsyncFuture", "AsyncGraph",
    "AsyncKernel", "AsyncModel", "AsyncModule", "AsyncSharedArray", "connect",
]  # fmt: skip


def members(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_names() -> None:
    assert sorted(vkqueue.__all__) == PUBLIC
    assert sorted(vkqueue.aio.__all__) == PUBLIC_AIO
    for name in PUBLIC:
        assert getattr(vkqueue, name) is not None
        assert name in dir(vkqueue)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = vkqueue.conect  # type: ignore[attr-defined]


def test_both_clients_offer_the_same() -> None:
    # What one pass of the loop starts leaves together anyway, and anything awaited can be given a time limit.
    assert members(vkqueue.Client) - members(vkqueue.aio.AsyncClient) == {"batch", "timeout"}
    assert members(vkqueue.aio.AsyncClient) <= members(vkqueue.Client)
    assert members(vkqueue.Model) == members(vkqueue.aio.AsyncModel)
    assert members(vkqueue.Module) == members(vkqueue.aio.AsyncModule)
    assert members(vkqueue.Kernel) == members(vkqueue.aio.AsyncKernel)
    assert members(vkqueue.Graph) == members(vkqueue.aio.AsyncGraph)
    assert members(vkqueue.DeviceArray) == members(vkqueue.aio.AsyncDeviceArray)
    assert members(vkqueue.SharedArray) == members(vkqueue.aio.AsyncSharedArray)
    # An asyncio future is awaited.
    assert members(vkqueue.Future) - members(vkqueue.aio.AsyncFuture) == {"result"}


def test_every_error_of_the_protocol_is_public() -> None:
    assert {error.__name__ for error in BY_CODE.values()} <= set(PUBLIC)


def loaded_by(code: str) -> set[str]:
    """Modules that are loaded after `code` in a fresh interpreter."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    run = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return set(subprocess.run(run, env=environ, capture_output=True, check=True, timeout=30, text=True).stdout.split())


def test_the_package_alone_is_light() -> None:
    """The daemon imports it too."""
    assert not {"numpy", "msgpack", "vulkan", "anyio", "asyncio"} & loaded_by("import vkqueue")


def test_a_client_needs_no_part_of_the_daemon() -> None:
    """Rule 33: neither Vulkan nor what only the daemon uses is imported with the library."""
    loaded = loaded_by("import vkqueue; [getattr(vkqueue, name) for name in vkqueue.__all__]")
    assert not {"vulkan", "anyio", "asyncio"} & loaded
    loaded |= loaded_by("import vkqueue.aio")
    ours = {name.split(".")[1] for name in loaded if name.startswith("vkqueue.")}
    assert not ours & {"gpu", "daemon", "jobs", "worker", "config", "cli"}
    assert "vulkan" not in loaded
