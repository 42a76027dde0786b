"""Choosing devices."""

from __future__ import annotations

import pytest

from vkqueue.config import ConfigError
from vkqueue.daemon.selection import select_devices

UUID = "00112233445566778899aabbccddeeff"
H200 = {"index": 0, "uuid": UUID, "name": "NVIDIA H200", "type": "discrete", "error": None}
OTHER = {"index": 1, "uuid": "ff" * 16, "name": "NVIDIA H200", "type": "discrete", "error": None}
BROKEN = {"index": 2, "uuid": "11" * 16, "name": "Intel Arc", "type": "integrated", "error": "no memory"}
LAVAPIPE = {"index": 3, "uuid": "22" * 16, "name": "llvmpipe (LLVM 15)", "type": "cpu", "error": None}
FOUND = [H200, OTHER, BROKEN, LAVAPIPE]


@pytest.mark.parametrize(
    ("wanted", "found", "indices"),
    [
        (("auto",), FOUND, [0, 1]),
        (("auto",), [BROKEN, LAVAPIPE], [3]),
        (("auto",), [], []),
        (("all",), FOUND, [0, 1, 3]),
        ((3, 0), FOUND, [3, 0]),
        (("h200",), FOUND, [0, 1]),
        (("llvmpipe", 3), FOUND, [3]),
        ((UUID.upper(),), FOUND, [0]),
        (("00112233-4455-6677-8899-aabbccddeeff",), FOUND, [0]),
    ],
)
def test_selection(wanted: tuple[int | str, ...], found: list[dict[str, object]], indices: list[int]) -> None:
    assert select_devices(wanted, found) == indices


def test_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(ConfigError) as caught:
        select_devices((7, "Radeon", "Arc"), FOUND)
    assert [problem.partition(" is ")[0] for problem in caught.value.problems] == [
        "device.select: 7", "device.select: 'Radeon'", "device.select: 'Arc', which",
    ]  # fmt: skip
    assert "0: NVIDIA H200" in caught.value.message
    assert "does not open: no memory" in caught.value.message
