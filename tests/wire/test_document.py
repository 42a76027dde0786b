"""docs/protocol.md names all that there is, and its bytes are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.streams import decode, encode, ready, sent

from vkqueue.errors import BY_CODE
from vkqueue.wire.framing import Limits
from vkqueue.wire.messages import HANDLE_MAX, METHODS, PRIORITY_MAX
from vkqueue.wire.session import ClientConnection, ServerConnection

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under a heading, up to the next of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", TEXT, re.MULTILINE)
    assert found, f"no section {title!r}"
    rest = TEXT[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def hex_blocks() -> list[bytes]:
    """The bytes of the examples: hex pairs from the start of a line up to two spaces."""
    blocks = re.findall(r"^```hex\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    lines = ([re.match(r"\s*((?:[0-9a-f]{2} ?)+)", line) for line in block.splitlines()] for block in blocks)
    return [b"".join(bytes.fromhex(m[1]) for m in found if m) for found in lines]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_parameter_is_described(method: str) -> None:
    assert f"[`{method}`](#{method.replace('.', '')})" in section("Methods")
    text = section(method)
    for name in METHODS[method].parameters:
        assert re.search(rf"`{name}\b", text), f"{name} of {method}"
    for kind in METHODS[method].parameters.values():
        assert all(f'"{choice}"' in text for choice in kind.choices)


def test_every_error_code_is_described_and_no_other() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", section("Errors"), re.MULTILINE)) == set(BY_CODE)


def test_the_limits_are_those_of_the_code() -> None:
    limits, text = Limits(), section("Limits")
    for value in (limits.max_message_bytes, limits.max_depth, limits.max_items, limits.max_str_bytes):
        assert re.search(rf"\b{value}\b", text)
    assert str(HANDLE_MAX) in section("Handles")
    assert f"-{PRIORITY_MAX} to {PRIORITY_MAX}" in section("dispatch")


def test_links_lead_somewhere() -> None:
    titles = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]*)\)", TEXT)) <= anchors


def test_the_bytes_are_what_the_text_says() -> None:
    hello, create, dispatch, response, failure = hex_blocks()
    message: dict[str, Any] = {"module": 1, "args": [3, 2], "scalars": [64, 0.5], "grid": [1]}
    assert hello == encode([0, 1, "hello", [{"protocol": 1, "client": "demo"}]])
    assert create == encode([0, 3, "buffer.create", [{"size": 256, "as": 2}]])
    assert dispatch == encode([0, 4, "dispatch", [message]])
    assert decode(response) == [[1, 4, None, {"outputs": []}]]
    assert decode(failure) == [[1, 4, {"code": "not_found", "message": "no buffer 3"}, None]]


def test_the_bytes_work_between_both_ends() -> None:
    hello, create, dispatch, response, failure = hex_blocks()
    server = ServerConnection(Limits())
    assert [method for _, method, _ in server.receive_data(hello)] == ["hello"]
    server = ready()
    assert [m for m, _, _ in server.receive_data(create + dispatch)] == [3, 4]
    server.respond(4, {"outputs": []})
    assert sent(server) == response
    for answer in (response, failure):
        client = ClientConnection(Limits())
        for _ in range(4):
            client.request("ping")
        ((msgid, error, _),) = client.receive_data(answer)
        assert msgid == 4 and (error is None or error.code == "not_found")
