"""The error tree: codes, the way over the wire, and values in messages."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from vkqueue import errors
from vkqueue.errors import BY_CODE, VkqueueError, brief, from_wire


def test_every_error_but_the_clients_own_has_a_code_of_its_own() -> None:
    leaves = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, VkqueueError)}
    assert leaves - set(BY_CODE.values()) == {VkqueueError, errors.ConnectionLostError}
    assert len(BY_CODE) == len(set(BY_CODE.values()))


@pytest.mark.parametrize("cls", BY_CODE.values(), ids=BY_CODE)
def test_an_error_comes_back_as_it_was_sent(cls: type[VkqueueError]) -> None:
    back = from_wire(cls("what, and what to do", {"limit": 3}).to_wire())
    assert type(back) is cls
    assert (back.code, back.message, back.data) == (cls.code, "what, and what to do", {"limit": 3})


def test_a_code_of_a_newer_daemon_is_kept() -> None:
    assert from_wire({"code": "brand_new", "message": "m"}).code == "brand_new"
    assert VkqueueError.code == "internal"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (-(2**63), "-9223372036854775808"),
        (1 << 20_000, "an integer of 20001 bits"),
        (1.5, "1.5"),
        ("a" * 60, repr("a" * 60)),
        ("a" * 61, "a string of 61 characters"),
        (b"1234", "a bin of 4 bytes"),
        (memoryview(array("I", [1, 2])), "a bin of 8 bytes"),
        ([1, "x", b"12"], "[1, 'x', a bin of 2 bytes]"),
        ([[1]], "a list of 1"),
        (range(3), "a range"),
        ({"a": 1}, "a map of 1"),
    ],
    ids=range(13),  # pytest cannot print the long integer either
)
def test_values_in_messages_are_short(value: Any, text: str) -> None:
    assert brief(value) == text
