"""What can be asked: every method with its parameters, as a table, and the check of a request against it.

The check covers all that can be said without knowing the daemon's state: names, types, ranges, which parameters
exclude or need one another. Whether a handle exists, an offset is aligned or a grid fits the device is found out
where those are known.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from vkqueue.errors import InvalidError, UnknownMethodError, UnsupportedError

PROTOCOL_VERSION = 1

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
I64_MAX = 2**63 - 1
I64_MIN = -(2**63)
HANDLE_MAX = 2**31 - 1
"""Largest handle that a client may choose."""

PRIORITY_MAX = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value must be.

    Attributes:
        text: for messages: "an integer from 0 to 3".
        types: Python types as they are decoded; compared exactly, so that a boolean is no integer.
        low, high: bounds of an integer, or of the length of a list.
        choices: the only values allowed, for a string.
        element: what each entry of a list, or each value of a map, must be.
    """

    text: str
    types: tuple[type, ...]
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    element: Kind | None = None


def _integer(low: int, high: int) -> Kind:
    if (low, high) == (I64_MIN, U64_MAX):
        return Kind("an integer", (int,))
    if high == I64_MAX:
        return Kind(f"an integer of at least {low}", (int,), low, high)
    return Kind(f"an integer from {low} to {high}", (int,), low, high)


def _one_of(*choices: str) -> Kind:
    return Kind("one of " + ", ".join(f'"{choice}"' for choice in choices), (str,), choices=choices)


BOOLEAN = Kind("a boolean", (bool,))
STRING = Kind("a string", (str,))
BIN = Kind("bytes (a bin)", (bytes, memoryview, bytearray))
HANDLE = _integer(I64_MIN, U64_MAX)  # one that cannot exist is as unknown as one that does not: not_found
OWN_HANDLE = _integer(1, HANDLE_MAX)
DEVICE = _integer(0, HANDLE_MAX)
SIZE = _integer(0, I64_MAX)
MSGID = _integer(0, U32_MAX)
U32 = _integer(0, U32_MAX)
VERSION = _integer(1, HANDLE_MAX)
NUMBER = Kind("a number or a boolean", (int, float, bool))
TEXTS = Kind("a map of name to text", (dict,), element=STRING)
SIZES = Kind("a map of name to size", (dict,), element=SIZE)


@dataclass(frozen=True, slots=True)
class Method:
    """One method's parameters.

    Attributes:
        parameters: name -> kind, in the order of the documentation.
        required: those that must be there.
        forms: groups that exclude one another; exactly one must be there, and all of it.
        only_with: a parameter -> (another, value): it makes sense only when the other one has that value, or, where
            the value is None, is there at all.
    """

    parameters: Mapping[str, Kind]
    required: tuple[str, ...] = ()
    forms: tuple[tuple[str, ...], ...] = ()
    only_with: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "hello": Method(
            {"protocol": _integer(0, U32_MAX), "client": STRING, "device": DEVICE},
            required=("protocol", "client"),
        ),
        "ping": Method({}),
        "devices": Method({}),
        "module.load": Method(
            {
                "spirv": BIN,
                "tvm": BIN,
                "tvm_file": BIN,
                "tvm_meta": STRING,
                "tvm_library": BIN,
                "source": STRING,
                "language": _one_of("glsl", "hlsl", "slang"),
                "defines": Kind("a map of name to value", (dict,), element=Kind(
                    "a string, a number or a boolean", (str, int, float, bool))),
                "includes": TEXTS,
                "target_env": STRING,
                "entry": STRING,
                "name": STRING,
                "as": OWN_HANDLE,
            },
            forms=(("spirv",), ("tvm",), ("tvm_file", "tvm_meta"), ("tvm_library",), ("source", "language")),
            only_with={"defines": ("source", None), "includes": ("source", None), "target_env": ("source", None)},
        ),
        "module.unload": Method({"module": HANDLE}, required=("module",)),
        "module.inspect": Method(
            {"module": HANDLE, "format": _one_of("spirv-asm", "json")}, required=("module", "format")
        ),
        "module.save": Method(
            {
                "module": HANDLE,
                "format": _one_of("tvm", "tvm_file"),
                "layout": _one_of("0.20", "0.21", "0.24"),
            },
            required=("module", "format"),
            only_with={"layout": ("format", "tvm")},
        ),
        "buffer.create": Method(
            {"size": SIZE, "data": BIN, "device": DEVICE, "as": OWN_HANDLE},
            forms=(("size",), ("data",)),
        ),
        "buffer.share": Method({"size": SIZE, "device": DEVICE, "as": OWN_HANDLE}, required=("size",)),
        "buffer.copy": Method(
            {"source": HANDLE, "target": HANDLE, "source_offset": SIZE, "target_offset": SIZE, "size": SIZE},
            required=("source", "target"),
        ),
        "buffer.write": Method({"buffer": HANDLE, "data": BIN, "offset": SIZE}, required=("buffer", "data")),
        "buffer.read": Method({"buffer": HANDLE, "offset": SIZE, "size": SIZE}, required=("buffer",)),
        "buffer.free": Method({"buffer": HANDLE}, required=("buffer",)),
        "dispatch": Method(
            {
                "module": HANDLE,
                "kernel": STRING,
                "args": Kind("a list with one entry for each binding", (list,)),
                "scalars": Kind("a list, a map or a bin", (list, dict, bytes, memoryview, bytearray)),
                "grid": Kind("a list of one to three integers", (list,), 1, 3, element=U32),
                "launch": Kind("a list of integers", (list,), element=U32),
                "specialization": Kind("a map of constant to value", (dict,), element=NUMBER),
                "priority": _integer(-PRIORITY_MAX, PRIORITY_MAX),
                "deadline_ms": _integer(1, I64_MAX),
                "after": Kind("a list of msgids", (list,), element=MSGID),
                "timing": BOOLEAN,
                "device": DEVICE,
                "label": STRING,
            },
            required=("module", "args"),
            forms=(("grid",), ("launch",)),
        ),
        "dispatch_many": Method(
            {
                "module": HANDLE,
                "kernel": STRING,
                "count": _integer(1, U32_MAX),
                "args": Kind("a list with one entry for each binding", (list,)),
                "scalars": Kind("a list, a map or a bin", (list, dict, bytes, memoryview, bytearray)),
                "grid": Kind("a list of one to three integers, or a map", (list, dict)),
                "launch": Kind("a list of integers", (list,), element=U32),
                "specialization": Kind("a map of constant to value", (dict,), element=NUMBER),
                "priority": _integer(-PRIORITY_MAX, PRIORITY_MAX),
                "deadline_ms": _integer(1, I64_MAX),
                "after": Kind("a list of msgids", (list,), element=MSGID),
                "timing": BOOLEAN,
                "device": DEVICE,
                "label": STRING,
            },
            required=("module", "count", "args"),
            forms=(("grid",), ("launch",)),
        ),
        "graph.create": Method(
            {
                "nodes": Kind("a list of nodes (maps)", (list,), element=Kind("a map", (dict,))),
                "inputs": SIZES,
                "outputs": SIZES,
                "temporaries": SIZES,
                "scalars": Kind("a map of name to type", (dict,), element=STRING),
                "device": DEVICE,
                "as": OWN_HANDLE,
            },
            required=("nodes",),
        ),
        "graph.launch": Method(
            {
                "graph": HANDLE,
                "buffers": Kind("a map of name to what is bound there", (dict,)),
                "scalars": Kind("a map of name to value", (dict,), element=NUMBER),
                "priority": _integer(-PRIORITY_MAX, PRIORITY_MAX),
                "deadline_ms": _integer(1, I64_MAX),
                "after": Kind("a list of msgids", (list,), element=MSGID),
                "timing": BOOLEAN,
                "label": STRING,
            },
            required=("graph",),
        ),
        "graph.free": Method({"graph": HANDLE}, required=("graph",)),
        "model.load": Method(
            {
                "name": STRING,
                "version": VERSION,
                "config": Kind("a map", (dict,)),
                "kernels": Kind("a list of kernels (maps)", (list,), element=Kind("a map", (dict,))),
                "weights": Kind("a map of name to bin, buffer or [buffer, offset, size]", (dict,)),
                "device": DEVICE,
            },
            required=("name",),
            only_with={"kernels": ("config", None), "weights": ("config", None)},
        ),
        "model.unload": Method({"name": STRING, "version": VERSION}, required=("name",)),
        "model.infer": Method(
            {
                "name": STRING,
                "version": VERSION,
                "inputs": Kind("a map of name to tensor", (dict,), element=Kind("a map", (dict,))),
                "outputs": Kind("a list of names, or a map of name to where it goes", (list, dict)),
                "priority": U32,
                "timeout_us": SIZE,
                "timing": BOOLEAN,
            },
            required=("name", "inputs"),
        ),
        "model.list": Method({}),
        "model.config": Method({"name": STRING, "version": VERSION}, required=("name",)),
        "model.statistics": Method({"name": STRING, "version": VERSION}),
        "cancel": Method({"msgid": MSGID}, required=("msgid",)),
        "stats": Method({}),
    }
)  # fmt: skip

WITH_FILE = frozenset({"buffer.share"})
"""Methods whose requests come with a file descriptor."""

PARAMETER_NAMES = frozenset(name for method in METHODS.values() for name in method.parameters)
"""All names of all methods: a map with no other keys has no key that is not a string."""


def check(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Check a request against the table.

    Returns:
        The parameters without those that are nil, which is the same as leaving them out. Bins stay as they came
        (bytes or memoryview); the entries of `args` and of `scalars` are not looked at.

    Raises:
        UnknownMethodError: there is no such method.
        UnsupportedError: `hello` with another version of the protocol.
        InvalidError: a parameter is unknown, missing, of a wrong type or out of range, or does not go with another.
    """
    spec = METHODS.get(method)
    if spec is None:
        raise UnknownMethodError(
            f"there is no method {_short(method)}{_suggestion(method, METHODS)}", {"method": method[:_SHOWN]}
        )
    if method == "hello":
        _check_version(params.get("protocol"))
    given: dict[str, Any] = {}
    for name, value in params.items():
        kind = spec.parameters.get(name)
        if kind is None:
            raise _unknown(method, spec, name)
        if value is not None:
            _check_value(method, name, value, kind)
            given[name] = value
    _check_presence(method, spec, given)
    return given


def _check_version(version: object) -> None:
    if type(version) is int and version != PROTOCOL_VERSION:
        raise UnsupportedError(
            f"this daemon speaks version {PROTOCOL_VERSION} of the protocol, not {version}",
            {"protocol": PROTOCOL_VERSION},
        )


def _check_value(method: str, name: str, value: Any, kind: Kind) -> None:
    if type(value) not in kind.types or not _in_range(value, kind):
        raise InvalidError(
            f'"{name}" of {method} must be {kind.text}, not {describe(value)}', {"parameter": name.partition("[")[0]}
        )
    if kind.element is None:
        return
    if type(value) is list:
        for index, item in enumerate(value):
            _check_value(method, f"{name}[{index}]", item, kind.element)
    elif type(value) is dict:
        for key, item in value.items():
            _check_value(method, f"{name}[{_short(key)}]", item, kind.element)


def _in_range(value: Any, kind: Kind) -> bool:
    if kind.choices:
        return value in kind.choices
    if kind.low is None or kind.high is None:
        return True
    return kind.low <= (len(value) if type(value) is list else value) <= kind.high


def _check_presence(method: str, spec: Method, given: Mapping[str, Any]) -> None:
    for name in spec.required:
        if name not in given:
            raise InvalidError(
                f'{method} needs the parameter "{name}" ({spec.parameters[name].text}); it is missing or nil',
                {"parameter": name},
            )
    if spec.forms:
        _check_forms(method, spec, given)
    for name, (other, value) in spec.only_with.items():
        if name in given and (other not in given or (value is not None and given[other] != value)):
            wanted = f'"{other}"' if value is None else f'"{other}": "{value}"'
            raise InvalidError(f'the parameter "{name}" of {method} goes with {wanted} only', {"parameter": name})


def _check_forms(method: str, spec: Method, given: Mapping[str, Any]) -> None:
    present = [form for form in spec.forms if any(name in given for name in form)]
    if len(present) != 1:
        forms = "; ".join(" with ".join(f'"{name}"' for name in form) for form in spec.forms)
        came = [name for form in present for name in form if name in given]
        found = "none of them" if not came else " and ".join(f'"{name}"' for name in came)
        raise InvalidError(f"{method} takes exactly one of {forms}; it came with {found}")
    missing = [name for name in present[0] if name not in given]
    if missing:
        there = next(name for name in present[0] if name in given)
        raise InvalidError(
            f'"{there}" of {method} needs "{missing[0]}" ({spec.parameters[missing[0]].text}) beside it',
            {"parameter": missing[0]},
        )


def _unknown(method: str, spec: Method, name: str) -> InvalidError:
    takes = ", ".join(spec.parameters) or "none"
    return InvalidError(
        f"{method} has no parameter {_short(name)}{_suggestion(name, spec.parameters)}; its parameters: {takes}",
        {"parameter": name[:_SHOWN]},
    )


_SHOWN = 60  # characters of a name or value that a message repeats: enough to find it, no echo of megabytes

_NAMES: dict[type, str] = {bool: "the boolean", int: "the integer", float: "the float", str: "the string"}


def describe(value: object) -> str:
    """A value from a message, in a few words for an error message."""
    if value is None:
        return "nil"
    name = _NAMES.get(type(value))
    if name is not None:
        return f"{name} {_short(value) if isinstance(value, str) else str(value).lower()}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"a bin of {len(value)} bytes"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    return "a MessagePack extension value"


def _short(text: str) -> str:
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[:_SHOWN]}…"'


def _suggestion(name: str, known: Iterable[str]) -> str:
    # Comparing costs the product of the lengths, so what is no typing error is not compared.
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6) if len(name) <= _SHOWN else []
    return f'; did you mean "{near[0]}"?' if near else ""
