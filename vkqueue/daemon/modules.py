"""Modules by content: analysed once whoever loads them, and turned into kernels per device on first use.

    source text → (compiler, in the helper process)
    bytes → Code (analysis of the helper process) → variant (with specialization values) → DeviceKernel (plan, pipeline)

A SPIR-V module is one shader with all its kernels; in one of TVM's forms each kernel has a shader of its own, a range
of the module's bytes.

Compilations, analyses, variants and pipelines are each made once however many clients ask at once; all callbacks run
on the loop.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from vkqueue.errors import InvalidError, VkqueueError, brief
from vkqueue.kernels.plan import Plan
from vkqueue.kernels.scalars import pack_value, value_error
from vkqueue.kernels.tvm_format import TvmModule
from vkqueue.kernels.tvm_save import from_spirv, unpacked

Done = Callable[[Any], None]
SpecKey = tuple[tuple[int, bytes], ...]

# Arbitrary bounds on what is kept for modules that no connection holds any more.
_KEEP_CODES = 256
_KEEP_BYTES = 64 * 2**20
_KEEP_VARIANTS = 4096
_KEEP_SOURCES = 4096


class Helper(Protocol):
    """The helper processes (`worker.helper.HelperPool`)."""

    def submit(self, kind: str, payload: bytes, args: dict[str, Any], on_done: Done) -> None: ...


class Code:
    """A module's bytes and what its analysis says.

    Attributes:
        form: the parameter of `module.load` that it came in ("spirv", "tvm", "tvm_file", "tvm_library").
        meta: the metadata of a `tvm_file`.
    """

    __slots__ = ("analysis", "data", "digest", "form", "meta", "users", "variants")

    def __init__(self, digest: str, form: str, data: bytes, meta: str | None, analysis: dict[str, Any]) -> None:
        self.digest = digest
        self.form = form
        self.data = data
        self.meta = meta
        self.analysis = analysis
        self.users = 0
        self.variants: dict[Any, dict[str, Any] | VkqueueError] = {}

    def shader(self, kernel: str) -> bytes:
        """The SPIR-V that holds a kernel."""
        if self.form == "spirv":
            return self.data
        start, size = self.analysis["kernels"][kernel]["tvm"]["shader"]
        return self.data[start : start + size]

    def tvm(self, kernels: Mapping[str, Any]) -> TvmModule:
        """The module with these of its kernels as TVM has modules.

        Raises:
            UnsupportedError: a kernel takes what TVM cannot pass.
        """
        if self.form == "spirv":
            return from_spirv(kernels, len(self.data))
        module = unpacked(self.analysis["module"])
        return module if len(kernels) == len(module.functions) else module.only(kernels)


class DeviceKernel:
    """A kernel on a device: its plan and its pipeline.

    `pipeline` is the id of the pipeline that is ready or being built, 0 for none; `error` says why it cannot be. While
    `pinned` is not 0 graphs name the pipeline, so it stays.
    """

    __slots__ = ("code", "entry", "error", "key", "last_used", "pinned", "pipeline", "plan", "ready", "spec", "users")

    def __init__(self, key: tuple[str, str, SpecKey], code: Code, entry: str, plan: Plan, spec: SpecKey) -> None:
        self.key = key
        self.code = code
        self.entry = entry
        self.plan = plan
        self.spec = spec
        self.pipeline = 0
        self.ready = False
        self.error: VkqueueError | None = None
        self.users = 0
        self.pinned = 0
        self.last_used = 0


class ModuleTable:
    """Every module that the daemon knows, by the hash of its bytes.

    Args:
        validate_for: gives the API version that modules have to be valid for by spirv-val; None where it only advises.
    """

    def __init__(self, helper: Helper, validate_for: Callable[[], str] | None = None) -> None:
        self._helper = helper
        self._validate_for = validate_for
        self._codes: OrderedDict[str, Code] = OrderedDict()
        self._sources: OrderedDict[str, str] = OrderedDict()  # hash of a source and all it is compiled with → of a Code
        self._waiting: dict[Any, list[Done]] = {}

    def load(self, form: str, data: bytes, meta: str | None, on_done: Done) -> None:
        """Analyse a module; `on_done` gets its Code or the error, at once when it is known."""
        digest = _digest(form, data, meta)
        code = self._codes.get(digest)
        if code is not None:
            self._codes.move_to_end(digest)
            on_done(code)
            return

        def analysed(result: Any) -> None:
            if isinstance(result, VkqueueError):
                self._answer(digest, result)
            else:
                self._validate(Code(digest, form, data, meta, result), keep)

        def keep(result: Any) -> None:
            if isinstance(result, Code):
                self._codes[digest] = result
                self._trim()
            self._answer(digest, result)

        if self._join(digest, on_done):
            if form == "spirv":
                self._helper.submit("analyse", data, {}, analysed)
            else:
                self._helper.submit("analyse_tvm", data, {"form": form, "meta": meta}, analysed)

    def load_source(self, text: str, how: dict[str, Any], on_done: Done) -> None:
        """Compile source text and analyse the outcome; `on_done` as for `load`.

        Args:
            how: the other arguments of `kernels.source.compile_source`, by name.
        """
        source = _source_digest(text, how)
        code = self._codes.get(self._sources.get(source, ""))
        if code is not None:
            self._codes.move_to_end(code.digest)
            self._sources.move_to_end(source)
            on_done(code)
            return

        def compiled(result: Any) -> None:
            if isinstance(result, VkqueueError):
                self._answer(source, result)
                return
            spirv = base64.b64decode(result["spirv"])
            code = Code(_digest("spirv", spirv, None), "spirv", spirv, None, result["analysis"])
            self._validate(self._codes.get(code.digest, code), keep)

        def keep(result: Any) -> None:
            if isinstance(result, Code):
                self._sources[source] = result.digest
                if len(self._sources) > _KEEP_SOURCES:
                    self._sources.popitem(last=False)
                result = self._codes.setdefault(result.digest, result)
                self._trim()
            self._answer(source, result)

        if self._join(source, on_done):
            self._helper.submit("source", text.encode(), how, compiled)

    def _validate(self, code: Code, on_done: Done) -> None:
        """Where spirv-val is binding, ask it; `on_done` gets the code or what is wrong with it."""
        if self._validate_for is None:
            on_done(code)
            return
        ranges = [[0, len(code.data)]]
        if code.form != "spirv":
            ranges = [kernel["tvm"]["shader"] for kernel in code.analysis["kernels"].values()]
        arguments = {"shaders": ranges, "api_version": self._validate_for()}
        self._helper.submit("validate", code.data, arguments, lambda result: on_done(result or code))

    def variant(self, code: Code, name: str, spec: SpecKey, values: dict[int, Any], on_done: Done) -> None:
        """A kernel under these specialization values: `on_done` gets a map by name with it in, or the error."""
        # The kernels of a SPIR-V module share their constants, those of TVM's shaders do not.
        under = spec if code.form == "spirv" else (name, spec)
        known = code.analysis["kernels"] if not spec else code.variants.get(under)
        if known is not None:
            on_done(known)
            return
        key = (code.digest, under)

        def analysed(result: Any) -> None:
            if not isinstance(result, VkqueueError):
                result = result["kernels"]
            if not isinstance(result, VkqueueError) or result.code in ("invalid", "unsupported"):
                # Any other error (the helper died, the daemon stops) says nothing of the module.
                if len(code.variants) >= _KEEP_VARIANTS:
                    code.variants.pop(next(iter(code.variants)))
                code.variants[under] = result
            self._answer(key, result)

        if self._join(key, on_done):
            args: dict[str, Any] = {"specialization": {str(id): value for id, value in values.items()}}
            if code.form == "spirv":
                self._helper.submit("analyse", code.data, args, analysed)
            else:
                args |= {"form": code.form, "meta": code.meta, "kernel": name}
                self._helper.submit("analyse_tvm", code.data, args, analysed)

    def disassemble(self, code: Code, kernels: Mapping[str, Any], on_done: Done) -> None:
        """`on_done` gets the listing (a string) of a module, of TVM's of these of its kernels, or the error."""
        if code.form == "spirv":
            self._helper.submit("disassemble", code.data, {}, on_done)
        else:
            parts = [[name, *kernel["tvm"]["shader"]] for name, kernel in kernels.items()]
            self._helper.submit("disassemble_all", code.data, {"parts": parts}, on_done)

    def _join(self, key: Any, on_done: Done) -> bool:
        """Whether the caller is the first to ask for `key` and has to start the work."""
        waiting = self._waiting.setdefault(key, [])
        waiting.append(on_done)
        return len(waiting) == 1

    def _answer(self, key: Any, result: Any) -> None:
        for on_done in self._waiting.pop(key, ()):
            on_done(result)

    def _trim(self) -> None:
        """Forget the longest unused modules that no connection holds, past the bounds above."""
        idle = [code for code in self._codes.values() if code.users == 0]
        total = sum(len(code.data) for code in idle)
        for code in idle[:-1]:
            if len(idle) <= _KEEP_CODES and total <= _KEEP_BYTES:
                break
            del self._codes[code.digest]
            idle = idle[1:]
            total -= len(code.data)


def wire_reflection(kernel: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel's reflection as it travels: without what only the daemon needs."""
    return {key: value for key, value in kernel.items() if key not in ("needs", "tvm")}


def _digest(form: str, data: bytes, meta: str | None) -> str:
    """What names a module: the hash of SPIR-V, of other forms of all that they consist of."""
    digest = hashlib.sha256(data)
    if form != "spirv":
        digest.update(f"{len(data)} {form} {meta or ''}".encode())
    return digest.hexdigest()


def _source_digest(text: str, how: Mapping[str, Any]) -> str:
    """The hash of a text and of everything that its compilation depends on."""
    digest = hashlib.sha256()
    small = {name: value for name, value in how.items() if name != "includes"}
    parts = [json.dumps(small, sort_keys=True), text]
    for name, include in sorted(how.get("includes", {}).items()):
        parts += [name, include]
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return "source " + digest.hexdigest()


def specialization(kernel: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[SpecKey, dict[int, Any]]:
    """Resolve a message's `specialization` to ids: the key of the variant, and values by id.

    Raises:
        InvalidError: no constant of that id or name, a value of the wrong type, one constant given twice.
    """
    constants = kernel["specialization"]
    values: dict[int, Any] = {}
    packed: dict[int, bytes] = {}
    for key, value in given.items():
        number = (key.lstrip("0") or "0") if key.isascii() and key.isdecimal() else None
        matches = [c for c in constants if (str(c["id"]) == number if number else key and c["name"] == key)]
        if not matches:
            names = ", ".join(f"{c['id']}" + (f" ({c['name']})" if c["name"] else "") for c in constants[:16])
            raise InvalidError(f"specialization: no constant {brief(key)}; the module has {names or 'none'}")
        constant = matches[0]
        fault = value_error(f"constant {key}", constant["type"], value)
        if fault is not None:
            raise InvalidError(f"specialization: {fault}")
        if constant["id"] in values:
            raise InvalidError(f"specialization: constant {constant['id']} is given twice, by id and by name")
        values[constant["id"]] = value
        try:
            packed[constant["id"]] = pack_value(constant["type"], value)
        except struct.error as error:
            raise InvalidError(f"specialization: constant {key}: {error}") from error
    return tuple(sorted(packed.items())), values
