"""How a version of a model gets ready: configuration, kernels, weights, warm-up. Nothing here blocks the loop.

ModelSource → Definition → modules (helper processes) → ModelGraphs (weights on the device) → warm-up → Serving
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vkqueue.daemon.model_graphs import ModelGraphs
from vkqueue.daemon.model_serving import Serving
from vkqueue.daemon.model_session import ModelSession
from vkqueue.daemon.model_statistics import ModelStatistics
from vkqueue.daemon.modules import Code
from vkqueue.daemon.session import Buffer, Session
from vkqueue.errors import InvalidError, TooLargeError, VkqueueError, brief
from vkqueue.model import READ, Token
from vkqueue.models.definition import Definition
from vkqueue.models.nodes import WEIGHTS
from vkqueue.models.source import KernelSource, ModelSource, Weight

if TYPE_CHECKING:
    from vkqueue.daemon.device import Device
    from vkqueue.daemon.service import Service

# A client's buffer is read in pieces of this, one at a time. Arbitrary.
_PIECE_BYTES = 16 << 20


async def load(
    service: Service, definition: Definition, source: ModelSource, device: Device, statistics: ModelStatistics
) -> Serving:
    """Get a version ready.

    Args:
        definition, source: of an ensemble flattened.

    Raises:
        VkqueueError: it cannot be loaded; nothing is left of it.
    """
    service.check_working(device)
    most = service.config.limits.max_graph_nodes
    if len(definition.nodes) > most:
        raise TooLargeError(
            f"node: {len(definition.nodes)} are over max_graph_nodes ({most})",
            {"nodes": len(definition.nodes), "max_graph_nodes": most},
        )
    weights = {name: source.weights[name] for name in _used(definition, source.weights)}
    codes = await _codes(service, definition, source)
    graphs = ModelGraphs(service, device, definition, codes)
    try:
        await graphs.upload(weights)
        serving = Serving(service, source.version, graphs, statistics)
        for batch, group in warmups(definition):
            await serving.warm_up(batch, group)
    except BaseException:
        graphs.close()
        raise
    return serving


def _used(definition: Definition, there: Mapping[str, Any]) -> list[str]:
    """The weights that nodes name, of those that are there.

    Raises:
        InvalidError: one is not there.
    """
    found: dict[str, None] = {}
    for index, node in enumerate(definition.nodes):
        for operand in node.operands:
            name = operand.name.removeprefix(WEIGHTS)
            if not operand.name.startswith(WEIGHTS) or name in found:
                continue
            if name not in there:
                near = difflib.get_close_matches(name, there, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InvalidError(
                    f"node[{index}]: {operand.name}: no weight is called {brief(name)}; there are {len(there)}{hint}"
                )
            found[name] = None
    return list(found)


def warmups(definition: Definition) -> list[tuple[int, tuple[int, ...]]]:
    """The shapes to run first: as configured, else one sample and a full batch of the smallest buckets.

    Raises:
        InvalidError: one is no shape of the model (of an ensemble that is known only when it is flattened).
    """
    dimensions = definition.dimensions
    smallest = {name: dimension.smallest for name, dimension in dimensions.items()}
    if definition.warmup is None:
        asked = [(size, smallest) for size in sorted({1, definition.max_batch_size or 1})]
    else:
        asked = [(item.batch_size, {**smallest, **item.dimensions}) for item in definition.warmup]
    found = []
    most = definition.max_batch_size or 1
    for batch, sizes in asked:
        group = tuple(dimensions[name].bucket(sizes[name]) for name in dimensions)
        if None in group or batch > most or not sizes.keys() <= dimensions.keys():
            allowed = (
                ", ".join(f"{name} {dimension.allowed}" for name, dimension in dimensions.items()) or "no dimensions"
            )
            raise InvalidError(
                f"model_warmup: {batch} samples of {brief(sizes)}: this model takes up to {most}, and {allowed}"
            )
        if (batch, group) not in found:
            found.append((batch, group))
    return found  # type: ignore[return-value]  # None is in no group


async def _codes(service: Service, definition: Definition, source: ModelSource) -> dict[str, tuple[Code, str]]:
    """Each kernel's module, compiled and analysed, and its entry point."""
    names = {node.kernel: None for node in definition.nodes if node.kernel}
    for name in names:
        if name not in source.kernels:
            raise InvalidError(
                f"kernels: {brief(name)} is missing: the configuration names it, and no code came for it"
            )
    found = await asyncio.gather(*(_code(service, source.kernels[name]) for name in names))
    return dict(zip(names, found, strict=True))


async def _code(service: Service, kernel: KernelSource) -> tuple[Code, str]:
    size, most = len(kernel.code) + sum(map(len, kernel.includes.values())), service.config.limits.max_module_bytes
    if size > most:
        raise TooLargeError(
            f"kernel {kernel.name!r} ({kernel.path}): {size} bytes are over max_module_bytes ({most})",
            {"size": size, "max_module_bytes": most},
        )
    if kernel.language == "spirv":
        result = await called_back(partial(service.modules.load, "spirv", bytes(kernel.code), None))
    else:
        how: dict[str, Any] = {"language": kernel.language, "target_env": service.requests.target_env()}
        if kernel.entry is not None:
            how["entry"] = kernel.entry
        if kernel.includes:
            how["includes"] = dict(kernel.includes)
        try:
            text = bytes(kernel.code).decode()
        except UnicodeDecodeError as error:
            raise InvalidError(f"kernel {kernel.name!r} ({kernel.path}): the source is no UTF-8: {error}") from error
        result = await called_back(partial(service.modules.load_source, text, how))
    if isinstance(result, VkqueueError):
        raise type(result)(f"kernel {kernel.name!r} ({kernel.path}): {result.message}", result.data) from result
    return result, _entry_of(result, kernel.name, kernel.entry)


def _entry_of(code: Code, name: str, entry: str | None) -> str:
    """The entry point of a model's kernel.

    Raises:
        InvalidError: there is none of the name, or several and no name.
    """
    there = code.analysis["kernels"]
    if entry is not None:
        if entry not in there:
            raise InvalidError(f"kernel {name!r}: no entry point {entry!r}; there are {', '.join(sorted(there))}")
        return entry
    if len(there) != 1:
        raise InvalidError(f"kernel {name!r}: entry: the module has several, name one of {', '.join(sorted(there))}")
    return str(next(iter(there)))


async def called_back(call: Callable[[Callable[[Any], None]], None]) -> Any:
    """What a function hands to its callback."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    call(lambda result: None if future.done() else future.set_result(result))
    return await future


# What a client sends


def client_kernels(given: list[Mapping[str, Any]]) -> dict[str, KernelSource | tuple[str, int, str | None]]:
    """`kernels` of `model.load` by name: with their code, or (name, module's handle, entry).

    Raises:
        InvalidError
    """
    found: dict[str, KernelSource | tuple[str, int, str | None]] = {}
    keys = ("name", "code", "module", "language", "entry", "includes")
    for index, item in enumerate(given):
        where = f"kernels[{index}]"
        for key in item:
            if key not in keys:
                raise InvalidError(f"{where}: no key {brief(key)}; there are {', '.join(keys)}")
        name, code, module, entry = (item.get(key) for key in ("name", "code", "module", "entry"))
        if type(name) is not str or not name or name in found:
            raise InvalidError(f"{where}.name: expected a string that no other has, got {brief(name)}")
        if entry is not None and type(entry) is not str:
            raise InvalidError(f"{where}.entry: expected a string, got {brief(entry)}")
        if (code is None) == (module is None):
            raise InvalidError(f"{where}: give one of code (SPIR-V in a bin, or source text) and module (a handle)")
        if module is not None:
            if type(module) is not int:
                raise InvalidError(f"{where}.module: expected a module's handle, got {brief(module)}")
            found[name] = (name, module, entry)
        else:
            found[name] = _sent_kernel(where, name, code, item, entry)
    return found


def _sent_kernel(where: str, name: str, code: Any, item: Mapping[str, Any], entry: str | None) -> KernelSource:
    language = item.get("language")
    includes = item.get("includes") or {}
    if isinstance(code, str):
        if language not in ("glsl", "hlsl", "slang"):
            raise InvalidError(f"{where}.language: source needs glsl, hlsl or slang, got {brief(language)}")
        code = code.encode()
    elif not isinstance(code, (bytes, bytearray, memoryview)):
        raise InvalidError(f"{where}.code: expected SPIR-V in a bin, or source text, got {brief(code)}")
    elif language not in (None, "spirv", "glsl", "hlsl", "slang"):
        raise InvalidError(f"{where}.language: expected spirv, glsl, hlsl or slang, got {brief(language)}")
    if type(includes) is not dict or any(type(text) is not str for text in includes.values()):
        raise InvalidError(f"{where}.includes: expected a map of name to text, got {brief(includes)}")
    return KernelSource(name, bytes(code), language or "spirv", entry, f"of {where}", includes)


class WeightReader:
    """Brings weights of a client, some of which may be in its buffers, to the host. These are held until `let_go`.

    Args:
        given: tensor → bytes-like, a buffer's handle, or [handle, offset, size] in bytes.

    Raises:
        NotFoundError: the connection has no such buffer.
        InvalidError: a value is none of these, or a range lies outside its buffer.
    """

    def __init__(self, service: Service, session: Session, given: Mapping[str, Any]) -> None:
        self._service = service
        self._found: dict[str, Any] = {}
        for name, value in given.items():
            if isinstance(value, (bytes, bytearray, memoryview)):
                self._found[name] = value
            else:
                self._found[name] = self._range(session, name, value)
        for value in self._found.values():
            if type(value) is tuple:
                value[0].holders += 1

    @staticmethod
    def _range(session: Session, name: str, value: Any) -> tuple[Buffer, int, int]:
        label = f"weights: {name}"
        handle, offset, size = value, 0, None
        if type(value) is list:
            if len(value) != 3 or any(type(v) is not int for v in value):
                raise InvalidError(f"{label}: expected a bin, a buffer or [buffer, offset, size], got {brief(value)}")
            handle, offset, size = value
        buffer = session.buffer(handle, label)
        size = buffer.size - offset if size is None else size
        if offset < 0 or size < 0 or offset + size > buffer.size:
            raise InvalidError(f"{label}: {offset} + {size} bytes lie outside buffer {handle} of {buffer.size}")
        return buffer, offset, size

    def let_go(self) -> None:
        """The buffers are not needed any more. To be called once, whatever becomes of the load."""
        for value in self._found.values():
            if type(value) is tuple:
                value[0].device.let_go(value[0])

    async def read(self, config: Any, name: str, device: Device) -> dict[str, Weight]:
        """Those that the configuration's nodes name: a range of a buffer may have many names, and each is a copy.

        Raises:
            VkqueueError: the configuration is wrong; they are larger than the device's memory; a buffer is gone, with
                its device.
        """
        self._service.check_working(device)
        assert device.info is not None
        definition = await asyncio.to_thread(Definition.from_map, config, name)
        used = {name: self._found[name] for name in _used(definition, self._found)}
        total = sum(value[2] if type(value) is tuple else len(value) for value in used.values())
        if total > device.info.memory_bytes:
            raise TooLargeError(
                f"weights: {total} bytes are over the device's memory of {device.info.memory_bytes}",
                {"size": total, "memory_bytes": device.info.memory_bytes},
            )
        weights = {}
        loader: ModelSession = self._service.open_internal(ModelSession)  # type: ignore[assignment]
        try:
            for name, value in used.items():
                data = await self._content(loader, *value) if type(value) is tuple else value
                weights[name] = Weight("U8", (len(data),), data)
        finally:
            self._service.close_session(loader)
        return weights

    async def _content(self, loader: ModelSession, buffer: Buffer, offset: int, size: int) -> bytes:
        pieces = []
        for first in range(offset, offset + size, _PIECE_BYTES):
            end = min(first + _PIECE_BYTES, offset + size)
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

            def answer(result: Any, error: VkqueueError | None, future: asyncio.Future[bytes] = future) -> None:
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result["data"])

            token = Token(self._service.new_id(), None, (), ((buffer.id, first, end),), (), cached=False)
            row = (
                loader.id,
                loader.calls.new(answer),
                READ,
                token,
                buffer.id,
                b"",
                None,
                None,
                time.monotonic_ns(),
                None,
            )
            self._service.check_working(buffer.device)
            self._service.queue(loader, buffer.device, row)
            self._service.settle()
            pieces.append(await future)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


__all__ = ["WeightReader", "called_back", "client_kernels", "load", "warmups"]
