"""What a launch binds to the inputs and outputs of a graph: buffers, or data that comes and leaves with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.graph import Graph
from vkqueue.daemon.session import Buffer, Session
from vkqueue.errors import InvalidError, brief
from vkqueue.jobs.graph import Where
from vkqueue.kernels.graph_plan import OUTPUT, Place
from vkqueue.kernels.plan import check_reply

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device

Payload = tuple[tuple[str, Any], ...]


def on_device(buffer: Buffer, device: Device, label: str) -> Buffer:
    """The buffer, if it is on the graph's device.

    Raises:
        InvalidError
    """
    if buffer.device is not device:
        raise InvalidError(
            f"{label}: buffer {buffer.handle} is on device {buffer.device.index}, the graph on {device.index}"
        )
    return buffer


def bound_by(
    session: Session, graph: Graph, given: Mapping[str, Any], max_message_bytes: int
) -> tuple[dict[int, Where], list[tuple[int, str]], Payload]:
    """Where the launch's buffers lie, what is inline, and its data.

    Args:
        given: the parameter `buffers`.
        max_message_bytes: of the connection; the results have to fit.

    Raises:
        VkqueueError: something is missing, unknown, or does not fit; the message has its name.
    """
    buffers: dict[int, Where] = {}
    inline: list[tuple[int, str]] = []
    payload: list[tuple[str, Any]] = []
    for number, handle in graph.fixed:
        buffers[number] = (session.buffer(handle, "a node of the graph").id, 0)
    matched = 0
    for name, (number, place) in graph.ends.items():
        entry = given.get(name)
        matched += name in given
        if entry is None:
            if place.role != OUTPUT:
                raise InvalidError(f"buffers: {place.label} ({place.size} bytes) is missing")
            entry = {"out": place.size}
        if type(entry) is dict:
            kind, value = _inline_entry(place, entry)
            inline.append((number, kind))
            payload.append((kind, value))
        else:
            buffers[number] = _buffer(session, graph, place, entry)
    if matched != len(given):
        extra = next(name for name in given if name not in graph.ends)
        raise InvalidError(
            f"buffers: the graph has no input or output {brief(extra)}; it has {', '.join(graph.ends) or 'none'}"
        )
    outputs = [(place.size, len(name)) for name, place in _results(graph, inline)]
    if outputs:
        names = sum(5 + 4 * length for _, length in outputs)  # of characters, of up to four bytes
        check_reply(sum(size for size, _ in outputs) + names, len(outputs), max_message_bytes)
    return buffers, inline, tuple(payload)


def _buffer(session: Session, graph: Graph, place: Place, entry: Any) -> Where:
    label = f"buffers: {place.name}"
    handle, offset, size = entry, 0, place.size
    if type(entry) is list:
        if len(entry) != 3 or any(type(v) is not int for v in entry):
            raise InvalidError(f"{label}: a range is [buffer, offset, size], three integers; got {brief(entry)}")
        handle, offset, size = entry
    if type(handle) is not int:
        raise InvalidError(
            f"{label}: expected a buffer handle, [buffer, offset, size], {{'in': bin}}, {{'inout': bin}} or "
            f"{{'out': size}}; got {brief(entry)}"
        )
    buffer = on_device(session.buffer(handle, label), graph.device, label)
    if size != place.size or offset < 0 or offset + size > buffer.size:
        raise InvalidError(
            f"{label}: the graph uses {place.size} bytes; given were {size} from {offset} on of a buffer of "
            f"{buffer.size}",
            {"expected": place.size, "offset": offset, "size": size, "buffer_size": buffer.size},
        )
    if offset % place.align:
        raise InvalidError(
            f"{label}: offset {offset} is no multiple of {place.align}, which its kernels' bindings need on this "
            "device",
            {"offset": offset, "alignment": place.align},
        )
    return buffer.id, offset


def _results(graph: Graph, inline: list[tuple[int, str]]) -> list[tuple[str, Place]]:
    kinds = dict(inline)
    return [(name, place) for name, (number, place) in graph.ends.items() if kinds.get(number, "in") != "in"]


def _inline_entry(place: Place, entry: dict[str, Any]) -> tuple[str, Any]:
    """(kind, value) of an entry of `buffers` that brings or takes bytes."""
    label = f"buffers: {place.name}"
    [(kind, value)] = entry.items() if len(entry) == 1 else [(None, None)]
    if kind in ("in", "inout") and isinstance(value, (bytes, bytearray, memoryview)):
        size = len(value)
    elif kind == "out" and type(value) is int:
        size = value
    else:
        raise InvalidError(
            f"{label}: expected {{'in': bin}}, {{'inout': bin}} or {{'out': size}}, got a map of {brief(list(entry))}"
        )
    if kind != "in" and place.writes is None:
        raise InvalidError(f"{label}: {kind!r} on an input that no node writes; use 'in'")
    if kind != "inout" and (kind == "in") == (place.role == OUTPUT):
        raise InvalidError(f"{label}: {kind!r} is not for an {place.role}")
    if size != place.size:
        raise InvalidError(
            f"{label}: the graph uses {place.size} bytes, got {size}", {"expected": place.size, "size": size}
        )
    return kind, value
