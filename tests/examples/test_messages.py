"""docs/troubleshooting.md quotes messages as the daemon says them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.daemon import Daemon
from support.rawclient import RemoteError

from .conftest import EXAMPLES, ROOT

pytestmark = pytest.mark.gpu

# Quoted pieces between asterisks; an ellipsis stands for anything.
QUOTES = [
    re.compile(".*".join(map(re.escape, quote.strip('"').split("…"))), re.DOTALL)
    for quote in re.findall(r"(?<!\*)\*([^*\n]{12,})\*(?!\*)", (ROOT / "docs/troubleshooting.md").read_text())
]
AXPY = (EXAMPLES / "axpy/axpy.spv").read_bytes()


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("dispatch", {"args": [2, [2, 4, 8]]}, "invalid"),
        ("dispatch", {"args": [{"out": 4}, 2]}, "invalid"),
        ("dispatch", {"args": [2, 5]}, "invalid"),
        ("dispatch", {"args": [2, 2], "grid": [70_000]}, "invalid"),
        ("dispatch", {"args": [2, 3]}, "not_found"),
        ("dispatch", {"args": [2, 2], "kernel": "add"}, "not_found"),
        ("module.load", {"spirv": bytes(9573), "as": 9}, "invalid"),
        ("module.load", {"spirv": AXPY.ljust(9573, b"\0"), "as": 9}, "invalid"),
        ("graph.make", {}, "unknown_method"),
    ],
)
def test_a_quoted_message(daemon: Daemon, method: str, params: dict[str, Any], code: str) -> None:
    with daemon.client() as client:
        if client.welcome["devices"][0]["limits"]["maxStorageBufferRange"] != 128 << 20:
            pytest.skip("the document quotes lavapipe's limits")
        client.call("module.load", spirv=AXPY, **{"as": 1})
        client.call("buffer.create", size=4096, **{"as": 2})
        client.call("buffer.create", size=200 << 20, **{"as": 5})
        launch = {"module": 1, "scalars": [4, 1.0], "grid": [1]} if method == "dispatch" else {}
        with pytest.raises(RemoteError) as failed:
            client.call(method, **{**launch, **params})
    assert failed.value.code == code
    assert [quote for quote in QUOTES if quote.match(failed.value.message)], failed.value.message
