"""The public names, literally: a change of them is a change of the contract."""

from __future__ import annotations

import subprocess
import sys

import pytest

import vkqueue
import vkqueue.aio

PUBLIC = [
    "Binding", "Client", "CompileError", "ConnectionLostError", "DeniedError", "DependencyError", "Device",
    "DeviceArray", "DeviceLostError", "Future", "InternalError", "InvalidError", "JobCancelledError",
    "JobExpiredError", "JobTimeoutError", "Kernel", "Limits", "Module", "NotFoundError", "Out",
    "OutOfDeviceMemoryError", "OverloadedError", "ProtocolError", "QuotaError", "Saved", "Scalar",
    "ShuttingDownError", "Signature", "SpecConstant", "Timed", "Timing", "TooLargeError", "UnknownMethodError",
    "UnsupportedError", "VkqueueError", "__version__", "connect", "out",
]  # fmt: skip

PUBLIC_AIO = ["AsyncClient", "AsyncDeviceArray", "AsyncFuture", "AsyncKernel", "AsyncModule", "connect"]


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
    assert members(vkqueue.Client) == members(vkqueue.aio.AsyncClient)
    assert members(vkqueue.Module) == members(vkqueue.aio.AsyncModule)
    assert members(vkqueue.Kernel) == members(vkqueue.aio.AsyncKernel)
    assert members(vkqueue.DeviceArray) == members(vkqueue.aio.AsyncDeviceArray)
    # An asyncio future is awaited.
    assert members(vkqueue.Future) - members(vkqueue.aio.AsyncFuture) == {"result"}


def test_importing_loads_neither_numpy_nor_vulkan() -> None:
    program = "import sys, vkqueue; print(sorted({'numpy', 'vulkan', 'msgpack', 'anyio', 'asyncio'} & set(sys.modules)))"
    first = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert first.stdout.strip() == "[]"


def test_using_the_client_needs_no_vulkan_loader() -> None:
    program = "import sys, vkqueue.aio; vkqueue.connect; print('vulkan' in sys.modules)"
    second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert second.stdout.strip() == "False"
