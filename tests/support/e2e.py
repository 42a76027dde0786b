"""What the end-to-end tests share: their kernels, and requests that nearly all of them make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.rawclient import RawClient, RemoteError

_TESTS = Path(__file__).resolve().parent.parent
_CLI_KERNELS = _TESTS.parent / "vkqueue" / "cli" / "kernels"


def kernel(name: str) -> bytes:
    """A module of tests/e2e/kernels, or of those that the command line brings along."""
    own = _TESTS / "e2e" / "kernels" / f"{name}.spv"
    return (own if own.exists() else _CLI_KERNELS / f"{name}.spv").read_bytes()


def load(client: RawClient, name: str, **params: Any) -> int:
    """The handle of a kernel's module."""
    return int(client.call("module.load", spirv=kernel(name), **params)["module"])


def create(client: RawClient, content: Any, **params: Any) -> int:
    """The handle of a buffer: of so many zeros, or with these bytes or numbers."""
    if isinstance(content, int):
        return int(client.call("buffer.create", size=content, **params)["buffer"])
    data = content if isinstance(content, bytes) else np.asarray(content).tobytes()
    return int(client.call("buffer.create", data=data, **params)["buffer"])


def read(client: RawClient, buffer: int, dtype: Any = np.uint8, **params: Any) -> Any:
    """A buffer's content as an array."""
    return np.frombuffer(client.call("buffer.read", buffer=buffer, **params)["data"], dtype)


def refused(client: RawClient, method: str, /, **params: Any) -> RemoteError:
    """The error of a request that must fail; the connection goes on."""
    with pytest.raises(RemoteError) as error:
        client.call(method, **params)
    assert client.call("ping") == {}
    return error.value


def code(client: RawClient, msgid: int) -> str | None:
    """The code of the error that a request is answered with; None for a success."""
    try:
        client.wait(msgid)
    except RemoteError as error:
        return error.code
    return None


def device(client: RawClient) -> dict[str, Any]:
    """The connection's device, as `hello` told of it."""
    found: dict[str, Any] = next(d for d in client.welcome["devices"] if d["index"] == client.welcome["device"])
    return found


def limit(client: RawClient, name: str) -> int:
    """A limit of the connection's device."""
    return int(device(client)["limits"][name])


SLOW = [65535, 16]
"""A grid that takes lavapipe about a quarter of a second with `fill` or `axpy`; a GPU takes no time at all."""
