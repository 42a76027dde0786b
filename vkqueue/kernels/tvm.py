"""TVM's kernels: what TVM says of their arguments, brought together with what reflection finds in their shaders.

TVM's one list of arguments is buffers, then scalars, then launch values. Buffer i is binding i of set 0. Scalar i is
the 8-byte word i of the push constants, or of a uniform buffer behind the last buffer, whose bytes the daemon
provides: so that buffer is none of the kernel's `bindings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vkqueue.errors import InvalidError, UnsupportedError, brief
from vkqueue.kernels.disasm import disassemble
from vkqueue.kernels.launch import LaunchTags
from vkqueue.kernels.reflect import analyse
from vkqueue.kernels.scalars import TYPES, type_size
from vkqueue.kernels.tvm_format import (
    USES_UNIFORM,
    Function,
    Shader,
    TvmModule,
    read_bytes,
)
from vkqueue.kernels.tvm_library import read_library
from vkqueue.kernels.tvm_meta import read_file
from vkqueue.kernels.tvm_save import SCALARS, WORD, packed
from vkqueue.kernels.tvm_types import HANDLE, DataType
from vkqueue.model import STORAGE, UNIFORM

_MAX_LISTING = 4 << 20  # characters; the listings of all kernels have to fit into one message


def read(payload: bytes, form: str, meta: str | None = None) -> TvmModule:
    """A module in one of TVM's forms, named as the parameters of `module.load`.

    Raises:
        InvalidError, UnsupportedError
    """
    if form == "tvm_file":
        return read_file(payload, meta or "")
    return read_library(payload) if form == "tvm_library" else read_bytes(payload)


def analyse_tvm(
    payload: bytes,
    form: str,
    meta: str | None = None,
    specialization: Mapping[int, Any] | None = None,
    kernel: str | None = None,
) -> dict[str, Any]:
    """As `reflect.analyse`, of all kernels of a TVM module, or of one under specialization values.

    Returns:
        {kernels: {name: reflection, with `launch_param_tags`, and `tvm`: {shader: [start, size] in the payload,
        uniform: the binding of the buffer for scalars, or None}}, module: what `unpacked` takes}.

    Raises:
        InvalidError: broken; a kernel's arguments are in no order that TVM writes, or its shader uses others.
        UnsupportedError: there is no kernel for Vulkan in it.
    """
    module = read(payload, form, meta)
    shaders = {s.key: s for s in module.shaders}
    known: dict[bytes, Any] = {}

    def reflected(spirv: bytes) -> Any:
        """Kernels by entry point, or why there are none; once for equal shaders."""
        if spirv not in known:
            try:
                known[spirv] = analyse(spirv, specialization)["kernels"]
            except UnsupportedError as error:
                known[spirv] = error
        return known[spirv]

    kernels = {
        f.key: _kernel(f, shaders[f.key], payload, reflected) for f in module.functions if kernel in (None, f.key)
    }
    return {"kernels": kernels, "module": packed(module)}


def _kernel(function: Function, shader: Shader, payload: bytes, reflected: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        buffers, scalars = split_arguments(function)
        LaunchTags(function.launch_tags)
        found = reflected(payload[shader.start : shader.start + shader.size])
        if isinstance(found, UnsupportedError):
            kernel = _nothing(found.message)
        elif function.key in found:
            kernel = dict(found[function.key])
        else:
            have = ", ".join(brief(name) for name in list(found)[:8])
            raise InvalidError(f"its shader has no compute entry point of that name; it has {have}")
        uniform = buffers if shader.flag & USES_UNIFORM else None
        kernel["bindings"], block = _split_bindings(kernel["bindings"], buffers, uniform)
        _set_scalars(kernel, scalars, uniform is not None, block)
        if uniform is not None and scalars:  # there also where the shader does not look at it
            limits = {**kernel["needs"]["limits"], "uniform_buffers": 1}
            kernel["needs"] = {**kernel["needs"], "limits": limits}
    except InvalidError as error:
        raise InvalidError(f"TVM kernel {brief(function.key)}: {error.message}", error.data) from None
    kernel["launch_param_tags"] = function.launch_tags
    kernel["tvm"] = {"shader": [shader.start, shader.size], "uniform": uniform if scalars else None}
    return kernel


def split_arguments(function: Function) -> tuple[int, list[DataType]]:
    """How many buffers, and the scalars' types.

    Raises:
        InvalidError: a buffer after a scalar, or one of another shape than TVM's.
    """
    types = function.arg_types
    buffers = sum(t.is_handle for t in types)
    for place, type_ in enumerate(types):
        if type_.is_handle and place >= buffers:
            raise InvalidError(
                f"argument {place} is a handle after a scalar; device function need to be organized: buffers first, "
                "then scalars"
            )
        if type_.is_handle and type_ != HANDLE:
            raise InvalidError(
                f"argument {place} is a handle of {type_.bits} bits and {type_.lanes} lanes; expected 64 bits, one lane"
            )
    extra = function.extra_tags
    if extra and len(extra) != len(types):
        raise InvalidError(f"{len(extra)} extra tags for {len(types)} arguments; one for each is expected")
    return buffers, types[buffers:]


def _nothing(reason: str) -> dict[str, Any]:
    """The reflection of a kernel whose shader cannot be used by any device."""
    needs = {"refuse": [], "reason": reason, "spirv_version": [1, 0], "extensions": [], "limits": {}}
    return {"local_size": [1, 1, 1], "bindings": [], "scalars": [], "push_constant_bytes": 0, "specialization": [],
            "capabilities": [], "needs": needs}  # fmt: skip


def _split_bindings(
    bindings: Iterable[Mapping[str, Any]], buffers: int, uniform: int | None
) -> tuple[list[Mapping[str, Any]], Mapping[str, Any] | None]:
    """(the buffers, the uniform buffer for scalars where the shader uses it).

    Raises:
        InvalidError: the shader uses others than TVM binds.
    """
    kept: list[Mapping[str, Any]] = []
    block: Mapping[str, Any] | None = None
    for b in bindings:
        place = f"set {b['set']}, binding {b['binding']}"
        if b["set"] == 0 and b["binding"] == uniform and b["kind"] == UNIFORM and b["count"] == 1:
            block = b
        elif b["set"] or b["binding"] >= buffers:
            raise InvalidError(f"its shader uses {place}; TVM binds its {buffers} buffers in set 0, from binding 0 on"
                               + ("" if uniform is None else f", and a uniform buffer at {uniform}"))  # fmt: skip
        elif b["kind"] != STORAGE or b["count"] != 1:
            raise InvalidError(f"its shader has a {b['kind']} buffer ({b['count']} descriptors) at {place}; TVM binds "
                               "one storage buffer there")  # fmt: skip
        else:
            kept.append(b)
    return kept, block


def _set_scalars(kernel: dict[str, Any], types: list[DataType], uniform: bool, block: Mapping[str, Any] | None) -> None:
    """Put TVM's words in the place of what the shader says of its scalars; only names are taken from there."""
    room = WORD * len(types)
    used = kernel["push_constant_bytes"]
    if uniform and used:
        raise InvalidError(f"its shader reads {used} bytes of push constants; its flag says that the scalars are in a "
                           "uniform buffer")  # fmt: skip
    used = used if block is None else block["size"]
    if used > room:
        raise InvalidError(
            f"its shader reads {used} bytes of scalars; its arguments have {len(types)} of {WORD} bytes each",
            {"size": used, "maximum": room},
        )
    members = kernel["scalars"] if block is None else block.get("members") or ()
    names = {m["offset"]: m["name"] for m in members}
    texts = [str(type_) for type_ in types]
    kernel["push_constant_bytes"] = room
    kernel["scalars"] = []
    if other := [text for text in texts if text not in SCALARS]:
        refuse = f"a scalar argument of type {other[0]}; TVM's words hold {', '.join(SCALARS)} only"
        kernel["needs"] = {**kernel["needs"], "refuse": [*kernel["needs"]["refuse"], refuse]}
    if all(text in TYPES for text in texts):
        kernel["scalars"] = [
            {
                "name": names.get(WORD * i) or f"m{i}",
                "type": text,
                "offset": WORD * i,
                "size": type_size(text),
                "where": "uniform" if uniform else "push",
            }
            for i, text in enumerate(texts)
        ]
    else:
        kernel["push_constant_bytes"] = 0


def disassemble_all(payload: bytes, parts: Iterable[tuple[str, int, int]]) -> str:
    """The listings of several shaders, (name, start, size) in the payload, one after the other.

    Raises:
        InvalidError, UnsupportedError: as `disassemble`.
    """
    listings: list[str] = []
    length = 0
    for name, start, size in parts:
        if length > _MAX_LISTING:
            listings.append(f"; kernel {name} and those after it are left out\n")
            break
        listings.append(f"; kernel {name}\n{disassemble(payload[start : start + size])}")
        length += len(listings[-1])
    return "\n".join(listings)
