"""Run compute kernels on Vulkan devices that a daemon shares between programs.

    import vkqueue

    with vkqueue.connect() as gpu:
        saxpy = gpu.load("saxpy.spv").kernel
        y = saxpy(x, y, a=2.0, n=len(x), elements=len(x))

`vkqueue.aio` is the same for asyncio. Every error is a `VkqueueError` with a stable `code`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vkqueue.errors import (
    CompileError,
    ConnectionLostError,
    DeniedError,
    DependencyError,
    DeviceLostError,
    InternalError,
    InvalidError,
    JobCancelledError,
    JobExpiredError,
    JobTimeoutError,
    NotFoundError,
    OutOfDeviceMemoryError,
    OverloadedError,
    ProtocolError,
    QuotaError,
    ShuttingDownError,
    TooLargeError,
    UnknownMethodError,
    UnsupportedError,
    VkqueueError,
)

if TYPE_CHECKING:
    from vkqueue.client.array import Out, out
    from vkqueue.client.each import Each, each
    from vkqueue.client.future import Future
    from vkqueue.client.info import Device, Limits
    from vkqueue.client.launch import Timed, Timing
    from vkqueue.client.model import Inferred, InferTiming, ModelInfo, ModelTensor
    from vkqueue.client.module import Saved
    from vkqueue.client.signature import Binding, Scalar, Signature, SpecConstant
    from vkqueue.client.sync import Client, Kernel, Module, connect
    from vkqueue.client.sync_array import DeviceArray, SharedArray
    from vkqueue.client.sync_graph import Graph
    from vkqueue.client.sync_models import Model
    from vkqueue.version import __version__

__all__ = [
    # Connections and what they give.
    "connect", "Client", "Module", "Kernel", "Graph", "Model", "ModelInfo", "ModelTensor",
    "DeviceArray", "SharedArray", "Future", "Device", "Limits", "Saved",
    # Arguments and results.
    "out", "Out", "each", "Each", "Timed", "Timing", "Inferred", "InferTiming",
    # Reflection.
    "Signature", "Binding", "Scalar", "SpecConstant",
    # Errors.
    "VkqueueError", "CompileError", "ConnectionLostError", "DeniedError", "DependencyError", "DeviceLostError",
    "InternalError", "InvalidError", "JobCancelledError", "JobExpiredError", "JobTimeoutError", "NotFoundError",
    "OutOfDeviceMemoryError", "OverloadedError", "ProtocolError", "QuotaError", "ShuttingDownError", "TooLargeError",
    "UnknownMethodError", "UnsupportedError",
    "__version__",
]  # fmt: skip

_HOMES = {
    "Out": "vkqueue.client.array",
    "out": "vkqueue.client.array",
    "Each": "vkqueue.client.each",
    "each": "vkqueue.client.each",
    "Future": "vkqueue.client.future",
    "Device": "vkqueue.client.info",
    "Limits": "vkqueue.client.info",
    "Timed": "vkqueue.client.launch",
    "Timing": "vkqueue.client.launch",
    "InferTiming": "vkqueue.client.model",
    "Inferred": "vkqueue.client.model",
    "ModelInfo": "vkqueue.client.model",
    "ModelTensor": "vkqueue.client.model",
    "Saved": "vkqueue.client.module",
    "Binding": "vkqueue.client.signature",
    "Scalar": "vkqueue.client.signature",
    "Signature": "vkqueue.client.signature",
    "SpecConstant": "vkqueue.client.signature",
    "Client": "vkqueue.client.sync",
    "DeviceArray": "vkqueue.client.sync_array",
    "SharedArray": "vkqueue.client.sync_array",
    "Graph": "vkqueue.client.sync_graph",
    "Model": "vkqueue.client.sync_models",
    "Kernel": "vkqueue.client.sync",
    "Module": "vkqueue.client.sync",
    "connect": "vkqueue.client.sync",
    "__version__": "vkqueue.version",
}


def __getattr__(name: str) -> Any:
    """Import the client when it is first used: the daemon and its processes are of this package too, and have no use
    for NumPy.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'vkqueue' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
