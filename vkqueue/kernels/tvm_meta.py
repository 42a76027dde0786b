"""The metadata beside TVM's binary file: a JSON text that describes each kernel's arguments."""

from __future__ import annotations

import json
from typing import Any

from vkqueue.errors import InvalidError, brief
from vkqueue.kernels.tvm_format import (
    MAX_ARGUMENTS,
    MAX_FUNCTIONS,
    MAX_NAME,
    MAX_TAGS,
    Function,
    TvmModule,
    read_file_shaders,
)
from vkqueue.kernels.tvm_types import DataType

_VERSION = "0.1.0"  # what TVM writes, whatever its own version
_TAGS, _OLD_TAGS = "launch_param_tags", "thread_axis_tags"


def read_file(data: bytes, meta: str) -> TvmModule:
    """A module from its binary file and its metadata.

    Raises:
        InvalidError: one of them is broken, or they do not belong together.
        UnsupportedError: there is no kernel in it.
    """
    module = TvmModule(_read_meta(meta), read_file_shaders(data))
    module.check()
    return module


def write_meta(module: TvmModule) -> str:
    """The metadata of `write_file(module.shaders)`."""
    info: dict[str, Any] = {}
    for f in module.functions:
        name = "" if module.layout is not None and f.name == f.key else f.name
        info[f.key] = {"name": name, "arg_types": [str(t) for t in f.arg_types], _TAGS: f.launch_tags}
        if f.extra_tags is not None:
            info[f.key]["arg_extra_tags"] = f.extra_tags
    return json.dumps({"tvm_version": _VERSION, "func_info": info}, indent=2)


def _read_meta(text: str) -> list[Function]:
    try:
        doc = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"TVM metadata: this is no JSON: {str(error)[:200]}") from None
    info = doc.get("func_info") if isinstance(doc, dict) else None
    if not isinstance(info, dict):
        raise InvalidError("TVM metadata: expected an object with the object 'func_info' in it")
    if len(info) > MAX_FUNCTIONS:
        raise InvalidError(f"TVM metadata: {len(info)} functions; at most {MAX_FUNCTIONS} are taken")
    return [_read_function(key, value) for key, value in info.items()]


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidError(f"TVM metadata: {brief(key)} is there twice")
        found[key] = value
    return found


def _read_function(key: str, doc: Any) -> Function:
    what = f"TVM metadata: function {brief(key)}"
    if not isinstance(doc, dict):
        raise InvalidError(f"{what}: expected an object, got {brief(doc)}")
    name = doc.get("name", "")
    try:
        if not isinstance(name, str) or max(len(key.encode()), len(name.encode())) > MAX_NAME:
            raise InvalidError(f"its name has to be a string of at most {MAX_NAME} bytes")
        types = [DataType.from_text(t) for t in _list(doc, "arg_types", str, MAX_ARGUMENTS)]
        tags = _list(doc, _TAGS if _TAGS in doc else _OLD_TAGS, str, MAX_TAGS)
        extra = _list(doc, "arg_extra_tags", int, MAX_ARGUMENTS) if "arg_extra_tags" in doc else None
        "".join(tags).encode()
        if extra is not None and any(not -(2**31) <= tag < 2**31 for tag in extra):
            raise InvalidError("'arg_extra_tags' holds a number of more than 32 bits")
    except UnicodeEncodeError:
        raise InvalidError(f"{what}: a name with half a surrogate pair") from None
    except InvalidError as error:
        raise InvalidError(f"{what}: {error.message}") from None
    return Function(key, name, types, tags, extra)


def _list(doc: dict[str, Any], name: str, kind: type, most: int) -> list[Any]:
    value = doc.get(name)
    if not isinstance(value, list) or any(type(item) is not kind for item in value):
        raise InvalidError(f"expected {name!r} to be a list of {kind.__name__}, got {brief(value)}")
    if len(value) > most:
        raise InvalidError(f"{name!r} has {len(value)} entries; at most {most} are taken")
    return value
