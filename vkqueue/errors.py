"""The error tree: one class for one situation, each with the stable wire code of docs/protocol.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class VkqueueError(Exception):
    """Base of every error that vkqueue raises or sends.

    Attributes:
        code: stable wire code; a client may branch on it.
        message: one or two sentences: what was wrong, what was expected, what to do.
        data: machine-readable details (numbers, names), or None.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = dict(data) if data else None

    def to_wire(self) -> dict[str, Any]:
        """The error as the map that travels in a response: {code, message, data?}."""
        wire: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            wire["data"] = self.data
        return wire


class ProtocolError(VkqueueError):
    """Not a valid message, a msgid still in use, or a request before `hello`."""

    code = "protocol"


class UnknownMethodError(VkqueueError):
    """The daemon has no method of this name."""

    code = "unknown_method"


class InvalidError(VkqueueError):
    """A parameter or a module is wrong."""

    code = "invalid"


class NotFoundError(VkqueueError):
    """No such handle on this connection, or no such kernel or entry point in the module."""

    code = "not_found"


class UnsupportedError(VkqueueError):
    """Well formed, but the device or the daemon cannot do it."""

    code = "unsupported"


class CompileError(VkqueueError):
    """Source or pipeline did not build; the message carries the compiler's text."""

    code = "compile"


class TooLargeError(VkqueueError):
    """Over a message or allocation limit."""

    code = "too_large"


class QuotaError(VkqueueError):
    """Over this client's share; the message names the quota."""

    code = "quota"


class OverloadedError(VkqueueError):
    """This client's queue is full; try again once answers have come."""

    code = "overloaded"


class DependencyError(VkqueueError):
    """A request named in `after` failed."""

    code = "dependency"


class JobCancelledError(VkqueueError):
    """Cancelled before it was submitted to the device."""

    code = "cancelled"


class JobExpiredError(VkqueueError):
    """Its deadline passed before it was submitted to the device."""

    code = "expired"


class JobTimeoutError(VkqueueError):
    """Submitted, and not known to be finished within the batch's time limit."""

    code = "timeout"


class DeviceLostError(VkqueueError):
    """The device was lost after the job was submitted; its outcome is unknown."""

    code = "device_lost"


class OutOfDeviceMemoryError(VkqueueError):
    """No memory for it on the device or the host; the message says how much was asked and is left."""

    code = "out_of_memory"


class ShuttingDownError(VkqueueError):
    """The daemon takes no new work."""

    code = "shutting_down"


class DeniedError(VkqueueError):
    """This client may not do that."""

    code = "denied"


class InternalError(VkqueueError):
    """A fault of the daemon's own."""

    code = "internal"


class ConnectionLostError(VkqueueError):
    """Client side only: the connection ended while answers were outstanding, or was never there."""

    code = "connection_lost"


BY_CODE: dict[str, type[VkqueueError]] = {
    cls.code: cls
    for cls in (
        ProtocolError, UnknownMethodError, InvalidError, NotFoundError, UnsupportedError, CompileError,
        TooLargeError, QuotaError, OverloadedError, DependencyError, JobCancelledError, JobExpiredError,
        JobTimeoutError, DeviceLostError, OutOfDeviceMemoryError, ShuttingDownError, DeniedError,
        InternalError,
    )
}  # fmt: skip


def from_wire(wire: Mapping[str, Any]) -> VkqueueError:
    """Rebuild the error that a response carried; an unknown code becomes a plain VkqueueError with it."""
    code = str(wire.get("code", "internal"))
    error = BY_CODE.get(code, VkqueueError)(str(wire.get("message", "")), wire.get("data"))
    if error.code != code:
        error.code = code  # type: ignore[misc]  # a newer daemon's code, kept for the caller to see
    return error


def brief(value: object) -> str:
    """A value for an error message: short whatever its size (a bin is named by its length, not printed)."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"a bin of {memoryview(value).nbytes} bytes"
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"a string of {len(value)} characters"
    if isinstance(value, (list, tuple)):
        if len(value) > 4 or any(isinstance(v, (list, tuple, dict)) for v in value):
            return f"a list of {len(value)}"
        return "[" + ", ".join(map(brief, value)) + "]"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print those of over 4,300 digits
    return repr(value) if isinstance(value, (int, float, bool, type(None))) else f"a {type(value).__name__}"
