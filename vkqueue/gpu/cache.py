"""The driver's pipeline cache on disk: a header of our own, checked before a driver sees the rest.

A driver should check the data it is given, but not all survive data that is damaged or another driver's, so the file
names the device, the driver and their versions, and carries a checksum. A file that does not match is ignored.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from pathlib import Path

from vkqueue.errors import VkqueueError
from vkqueue.gpu import binding
from vkqueue.gpu.arena import Arena
from vkqueue.gpu.device import Device

log = logging.getLogger("vkqueue.gpu")

MAGIC = b"vkqueue pipelines 1\n"
_IDENTITY = struct.Struct("<IIII16s16s16s")  # vendor, device, driver version, index; cache, driver, device UUIDs
_TAIL = struct.Struct("<Q32s")  # payload bytes, SHA-256 of all that is before it and of the payload
HEADER_BYTES = len(MAGIC) + _IDENTITY.size + _TAIL.size
_VULKAN_HEADER = struct.Struct("<IIII16s")  # VkPipelineCacheHeaderVersionOne
MAX_BYTES = 1 << 30
"""Arbitrary; a larger file is foreign or damaged."""


class PipelineCache:
    """A VkPipelineCache that was filled from disk.

    Attributes:
        handle: the VkPipelineCache.
        built: pipelines built with it so far.
    """

    def __init__(self, device: Device, directory: Path | None) -> None:
        self._device = device
        physical = device.physical
        self._identity = MAGIC + _IDENTITY.pack(
            physical.vendor_id,
            physical.device_id,
            physical.driver_version,
            physical.index,
            physical.cache_uuid,
            physical.driver_uuid,
            bytes.fromhex(physical.info.uuid),
        )
        # The index too: one driver listed twice gives two devices with one UUID.
        name = f"pipelines-{physical.info.uuid}-{physical.index}.cache"
        self.path = directory / name if directory is not None else None
        self.built = 0
        self._saved = 0
        self._digest = b""
        self.handle = self._create(self._load())

    def save(self) -> None:
        """Write it if pipelines were built since the last time, by atomic rename. Never raises."""
        if self.path is None or self.built == self._saved:
            return
        try:
            payload = self._data()
            digest = hashlib.sha256(self._identity + payload).digest()
            if digest != self._digest:
                self._write(self.path, self._identity + _TAIL.pack(len(payload), digest) + payload)
                self._digest = digest
            self._saved = self.built
        except (OSError, VkqueueError) as error:
            log.warning("the pipeline cache was not saved to %s: %s", self.path, error)

    def close(self) -> None:
        """Destroy the VkPipelineCache."""
        self._device.destroy("VkPipelineCache", self.handle)
        self.handle = 0

    def _create(self, payload: bytes) -> int:
        try:
            return self._make(payload)
        except VkqueueError as error:
            if not payload:
                raise
            log.warning("the driver did not take the pipeline cache %s (%s); starting anew", self.path, error)
            return self._make(b"")

    def _make(self, payload: bytes) -> int:
        with Arena() as arena:
            info = arena.struct("VkPipelineCacheCreateInfo", initialDataSize=len(payload))
            if payload:
                info.pInitialData = arena.data(payload)
            return self._device.create("VkPipelineCache", info)

    def _load(self) -> bytes:
        if self.path is None:
            return b""
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return b""
        except OSError as error:
            log.warning("the pipeline cache %s cannot be read (%s); starting anew", self.path, error)
            return b""
        fault = self._fault(data)
        if fault:
            log.warning("the pipeline cache %s is ignored: %s", self.path, fault)
            return b""
        self._digest = data[HEADER_BYTES - 32 : HEADER_BYTES]
        return data[HEADER_BYTES:]

    def _fault(self, data: bytes) -> str:
        """What is wrong with a file's content, empty when it may be used."""
        if len(data) > MAX_BYTES or not data.startswith(MAGIC) or len(data) < HEADER_BYTES:
            return "it is not a pipeline cache of this program"
        if not data.startswith(self._identity):
            return "it was made by another device or driver version"
        size, digest = _TAIL.unpack_from(data, len(self._identity))
        payload = data[HEADER_BYTES:]
        if size != len(payload) or digest != hashlib.sha256(self._identity + payload).digest():
            return "it is damaged (length or checksum)"
        return self._driver_fault(payload)

    def _driver_fault(self, payload: bytes) -> str:
        physical = self._device.physical
        if len(payload) < _VULKAN_HEADER.size:
            return "the driver's part is too short"
        size, version, vendor, device, uuid = _VULKAN_HEADER.unpack_from(payload)
        if size < _VULKAN_HEADER.size or version != 1:
            return "the driver's part has an unknown header"
        if (vendor, device, uuid) != (physical.vendor_id, physical.device_id, physical.cache_uuid):
            return "the driver's part is of another device"
        return ""

    def _data(self) -> bytes:
        ffi, device = binding.ffi, self._device
        size = ffi.new("size_t *")
        while True:
            device.calls.vkGetPipelineCacheData(device.handle, self.handle, size, ffi.NULL)
            data = ffi.new("char[]", size[0])
            result = device.calls.vkGetPipelineCacheData(device.handle, self.handle, size, data)
            if result != binding.VK_INCOMPLETE:
                return bytes(ffi.buffer(data, size[0]))

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # One writer a path: the daemon that holds the socket. The process id keeps a second one's file apart.
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
