"""Arguments as they are written on a command line, turned into arrays and numbers.

A buffer:

    data.npy                 an array from a file
    @data.bin                a file's bytes
    0:100    0:1:0.01        a range: start, end (not in it), step
    1,2,3                    these numbers
    zeros:SHAPE  ones:SHAPE  full:SHAPE:NUMBER
    random:SHAPE             numbers between low=0 and high (1, of integers 100), from seed=0
    out:SHAPE                a result, zeros at first; nothing is sent
    {"n": 3}                 a uniform block by its members, as JSON
    [a.npy;zeros:4]          an array of descriptors

SHAPE is 100 or 4x25. A dtype may follow all but files: `0:100:uint32`, `random:4x4:float32:seed=7:high=9`; else it is
that of the kernel's elements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from vkqueue.client.array import Array, out
from vkqueue.client.signature import Binding
from vkqueue.errors import InvalidError

FORMS = (
    "FILE.npy, @FILE, START:END[:STEP], NUMBER,NUMBER,…, zeros:SHAPE, ones:SHAPE, full:SHAPE:NUMBER, random:SHAPE, "
    "out:SHAPE (each with :DTYPE after it), {JSON} for a uniform block, [VALUE;VALUE] for an array of descriptors"
)

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::({_NUMBER}))?")
_LIST = re.compile(rf"(?:{_NUMBER}|inf|-inf|nan)(?:,(?:{_NUMBER}|inf|-inf|nan))*")
_SHAPE = re.compile(r"\d+(?:x\d+)*")
_DTYPE = re.compile(r"(?:u?int(?:8|16|32|64)|float(?:16|32|64))")


def buffer_value(text: str, dtype: str | None, binding: Binding) -> Any:
    """What the client takes as this binding's argument.

    Args:
        dtype: of the kernel's elements, where it is known.

    Raises:
        InvalidError: it is written wrong, or does not fit the dtype.
        OSError: the file cannot be read.
    """
    if text.startswith("[") and text.endswith("]"):
        return [buffer_value(part, dtype, binding) for part in text[1:-1].split(";")]
    if text.startswith("{"):
        return _block(text)
    return array_value(text, dtype, binding.label)


def array_value(text: str, dtype: str | None, label: str) -> Any:
    """An array from a file, or one that is described; `out` is one too.

    Args:
        dtype: where the text names none.
        label: what it is for, in messages.

    Raises:
        InvalidError, OSError: as `buffer_value`.
    """
    if text.startswith("@"):
        return np.fromfile(text[1:], np.uint8)
    if text.endswith(".npy"):
        return _file(text)
    head, named = text, None
    for field in text.split(":")[1:]:
        if _DTYPE.fullmatch(field):
            named = field
            head = head.replace(f":{field}", "", 1)
    return _made(text, head, named or dtype, label)


def _block(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidError(f"{text}: no JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidError(f"{text}: expected a JSON object")
    return values


def _file(path: str) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise InvalidError(f"{path}: no array can be read from it: {error}") from None
    return array


def _made(text: str, head: str, dtype: str | None, label: str) -> Any:
    """An array that is described. `head` is the text without its dtype."""
    word, *fields = head.split(":")
    form: Callable[..., Any] | None = _MAKERS.get(word)
    ranged = _RANGE.fullmatch(head)
    if form is None and ranged is None and not _LIST.fullmatch(head):
        raise InvalidError(f"cannot read {text!r} as an argument; it can be {FORMS}")
    if dtype is None:
        raise InvalidError(
            f"{text!r} needs a dtype, such as {text}:float32: {label} holds numbers of more than one type"
        )
    kind = np.dtype(dtype)
    try:
        if form is not None:
            if len(fields) > 1 and form not in (_full, _random):
                raise ValueError(f"there is too much after the shape: {':'.join(fields[1:])}")
            return form(kind, *fields)
        if ranged is not None:
            start, end, step = (_number(field, kind) for field in (*ranged.groups()[:2], ranged[3] or "1"))
            return _cast(np.arange(start, end, step), kind)
        return _cast(np.array([_number(field, kind) for field in head.split(",")]), kind)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise InvalidError(f"{text!r}: {error}") from None


def _number(text: str, kind: np.dtype[Any]) -> int | float:
    return float(text) if kind.kind == "f" else _integer(text)


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"expected an integer, got {text!r}") from None


def _cast(values: Array, kind: np.dtype[Any]) -> Array:
    """The values as this dtype. Raises ValueError for integers that do not fit."""
    if kind.kind != "f" and values.size:
        bounds = np.iinfo(kind)
        if int(values.min()) < bounds.min or int(values.max()) > bounds.max:
            raise ValueError(f"values from {values.min()} to {values.max()} do not fit {kind}")
    return values.astype(kind)


def _shape(text: str = "") -> tuple[int, ...]:
    if not _SHAPE.fullmatch(text):
        raise ValueError(f"expected a shape such as 100 or 4x25, got {text!r}")
    return tuple(map(int, text.split("x")))


def _zeros(kind: np.dtype[Any], shape: str = "") -> Array:
    return np.zeros(_shape(shape), kind)


def _full(kind: np.dtype[Any], shape: str = "", number: str = "", *more: str) -> Array:
    if more or not number:
        raise ValueError("expected full:SHAPE:NUMBER")
    return np.broadcast_to(_cast(np.array([_number(number, kind)]), kind), _shape(shape)).copy()


def _ones(kind: np.dtype[Any], shape: str = "") -> Array:
    return _full(kind, shape, "1")


def _out(kind: np.dtype[Any], shape: str = "") -> Any:
    return out(_shape(shape), kind)


def _random(kind: np.dtype[Any], shape: str = "", *settings: str) -> Array:
    known = {"seed": "0", "low": "0", "high": "1" if kind.kind == "f" else "100"}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in known:
            raise ValueError(f"expected seed=, low= or high=, got {setting!r}")
        known[name] = value
    generator = np.random.default_rng(_integer(known["seed"]))
    if kind.kind == "f":
        return generator.uniform(float(known["low"]), float(known["high"]), _shape(shape)).astype(kind)
    return generator.integers(_integer(known["low"]), _integer(known["high"]), _shape(shape), kind)


_MAKERS: dict[str, Callable[..., Any]] = {
    "zeros": _zeros, "ones": _ones, "full": _full, "random": _random, "out": _out,
}  # fmt: skip


def scalar_value(text: str, type_: str, count: int | None) -> Any:
    """A number, or numbers with commas between them, of a reflected type.

    Raises:
        ValueError: it is none of that type.
    """
    if count is not None:
        return [_scalar(part, type_) for part in text.split(",")]
    return _scalar(text, type_)


def _scalar(text: str, type_: str) -> int | float | bool:
    words = {"true": True, "false": False, "1": True, "0": False}
    if type_ in ("bool32", "bool"):
        if text.lower() not in words:
            raise ValueError(f"expected true or false, got {text!r}")
        return words[text.lower()]
    return float(text) if type_.startswith("float") else _integer(text)


def extents(text: str, most: int = 3) -> tuple[int, ...]:
    """Sizes, mostly along x, y and z: 100, 4x4 or 4,4,1.

    Raises:
        ValueError: not one to `most` integers.
    """
    parts = re.split("[x,]", text)
    if len(parts) > most or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"expected one to {most} sizes, such as 100 or 4x4, got {text!r}")
    return tuple(map(int, parts))
