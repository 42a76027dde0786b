"""The pipeline cache on disk: used when it fits, ignored with a warning when not, never half written (rule 16)."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu.rig import layout_of
from support.cases import by_name

from vkqueue.gpu import binding, cache
from vkqueue.gpu.cache import HEADER_BYTES, PipelineCache
from vkqueue.gpu.device import Device
from vkqueue.gpu.pipeline import PipelineTable
from vkqueue.model import PipelineSpec

pytestmark = pytest.mark.gpu

CASE = by_name("glsl_axpy_10")
SPEC = PipelineSpec(1, layout_of(CASE), CASE.spirv, CASE.entry)


def saved(device: Device, directory: Path) -> Path:
    """Build a pipeline, save, close; the cache's file."""
    table = PipelineTable(device, directory)
    table.build(SPEC)
    table.save_cache()
    table.close()
    (file,) = directory.iterdir()
    return file


def loaded(device: Device, directory: Path) -> list[bytes]:
    """What the driver is given of the file: the payload, or nothing."""
    given: list[bytes] = []
    create = device.create

    def spy(kind: str, info: Any) -> int:
        if kind == "VkPipelineCache":
            data = binding.ffi.buffer(info.pInitialData, info.initialDataSize) if info.initialDataSize else b""
            given.append(bytes(data))
        return create(kind, info)

    device.create = spy  # type: ignore[method-assign]
    try:
        PipelineCache(device, directory).close()
    finally:
        device.create = create  # type: ignore[method-assign]
    return given


def test_what_was_saved_is_given_to_the_driver_again(device: Device, tmp_path: Path) -> None:
    file = saved(device, tmp_path / "deep" / "cache")
    assert file.stat().st_mode & 0o077 == file.parent.stat().st_mode & 0o077 == 0
    payload = file.read_bytes()[HEADER_BYTES:]
    assert len(payload) >= 32
    assert loaded(device, file.parent) == [payload]


def test_a_pipeline_built_from_it_works(device: Device, tmp_path: Path) -> None:
    saved(device, tmp_path)
    table = PipelineTable(device, tmp_path)
    table.build(SPEC)
    assert table.get(1) is not None
    table.close()


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the header": lambda data: data[: HEADER_BYTES - 1],
    "cut in the payload": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "a bit of the payload": lambda data: flip(data, len(data) - 1),
    "a bit of the checksum": lambda data: flip(data, HEADER_BYTES - 1),
    "a bit of the driver version": lambda data: flip(data, len(cache.MAGIC) + 8),
    "another program's": lambda data: b"\x7fELF" + data[4:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_file_is_ignored_with_a_warning_and_replaced(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    file = saved(device, tmp_path)
    good = file.read_bytes()
    file.write_bytes(DAMAGE[damage](good))
    with caplog.at_level(logging.WARNING):
        assert loaded(device, tmp_path) == [b""]
    assert "ignored" in caplog.text
    assert str(file) in caplog.text
    saved(device, tmp_path)
    assert loaded(device, tmp_path) != [b""]


def test_a_payload_of_another_device_under_a_right_checksum_never_reaches_the_driver(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = saved(device, tmp_path)
    data = file.read_bytes()
    payload = flip(data[HEADER_BYTES:], 9)  # its vendor
    identity = data[: HEADER_BYTES - 40]
    tail = data[HEADER_BYTES - 40 : HEADER_BYTES - 32] + hashlib.sha256(identity + payload).digest()
    file.write_bytes(identity + tail + payload)
    with caplog.at_level(logging.WARNING):
        assert loaded(device, tmp_path) == [b""]
    assert "another device" in caplog.text


def test_a_driver_update_makes_it_foreign(device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(device, tmp_path)
    device.physical = dataclasses.replace(device.physical, driver_version=device.physical.driver_version + 1)
    with caplog.at_level(logging.WARNING):
        assert loaded(device, tmp_path) == [b""]
    assert "another device or driver version" in caplog.text


def test_two_devices_with_one_uuid_have_two_files(device: Device, tmp_path: Path) -> None:
    saved(device, tmp_path)
    device.physical = dataclasses.replace(device.physical, index=device.physical.index + 1)
    table = PipelineTable(device, tmp_path)
    table.build(SPEC)
    table.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_the_driver_itself_refuses(device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(device, tmp_path)
    with binding.inject("vkCreatePipelineCache", "VK_ERROR_UNKNOWN"), caplog.at_level(logging.WARNING):
        assert len(loaded(device, tmp_path)) == 2
    assert "did not take" in caplog.text


class TestSaving:
    def test_nothing_is_written_when_nothing_was_built(self, device: Device, tmp_path: Path) -> None:
        table = PipelineTable(device, tmp_path)
        table.save_cache()
        table.close()
        assert list(tmp_path.iterdir()) == []

    def test_equal_content_is_not_written_again(self, device: Device, tmp_path: Path) -> None:
        file = saved(device, tmp_path)
        os.utime(file, ns=(1, 1))
        opened = PipelineCache(device, tmp_path)
        opened.built += 1
        opened.save()
        opened.close()
        assert file.stat().st_mtime_ns == 1

    def test_a_failed_write_warns_keeps_the_old_file_and_leaves_no_other(
        self,
        device: Device,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        file = saved(device, tmp_path)
        old = flip(file.read_bytes(), HEADER_BYTES - 1)
        file.write_bytes(old)  # so that there is something new to write

        def full(*args: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache.os, "replace", full)
        table = PipelineTable(device, tmp_path)
        table.build(SPEC)
        with caplog.at_level(logging.WARNING):
            table.save_cache()
        assert "No space left" in caplog.text
        assert [f.read_bytes() for f in tmp_path.iterdir()] == [old]
        table.close()

    def test_a_driver_that_does_not_give_its_data_only_warns(
        self, device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        table = PipelineTable(device, tmp_path)
        table.build(SPEC)
        with (
            binding.inject("vkGetPipelineCacheData", "VK_ERROR_OUT_OF_HOST_MEMORY"),
            caplog.at_level(logging.WARNING),
        ):
            table.save_cache()
        assert "was not saved" in caplog.text
        table.close()

    def test_without_a_directory_nothing_is_kept(self, device: Device) -> None:
        table = PipelineTable(device, None)
        table.build(SPEC)
        table.save_cache()
        table.close()
