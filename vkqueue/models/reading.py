"""Reading a configuration's maps: values by their kinds; an error names the key, what was expected and what came."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from vkqueue.errors import InvalidError, brief
from vkqueue.models.expression import Expression

_SHOWN = 60  # characters of a key that a message repeats
_REQUIRED: Any = object()
MAX_NAME = 256
"""Characters of a name; arbitrary."""


class Table:
    """A map of the configuration.

    Args:
        path: where it stands, such as "input[0]"; empty for the whole.
        keys: those that there are.

    Raises:
        InvalidError: it is no map, or has other keys.
    """

    def __init__(self, value: Any, path: str, keys: Iterable[str]) -> None:
        self._path = path
        if not isinstance(value, Mapping):
            raise InvalidError(f"config: {path or 'the whole'}: expected a map, got {brief(value)}")
        self._keys = tuple(keys)
        for key in value:
            if key not in self._keys:
                raise self.error(str(key)[:_SHOWN], f"no such key{self._suggestion(key)}")
        self._value = {key: item for key, item in value.items() if item is not None}

    def _suggestion(self, key: Any) -> str:
        near = difflib.get_close_matches(key, self._keys, n=1) if type(key) is str and len(key) <= _SHOWN else []
        return f'; did you mean "{near[0]}"?' if near else f"; there are {', '.join(self._keys)}"

    def error(self, key: str, text: str) -> InvalidError:
        """What is wrong with a key of this map."""
        where = f"{self._path}.{key}" if self._path and key else self._path or key
        return InvalidError(f"config: {where}: {text}", {"key": where})

    def where(self, key: str) -> str:
        """The path of a key."""
        return f"{self._path}.{key}" if self._path else key

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """A value of any kind."""
        if key in self._value:
            return self._value[key]
        if default is _REQUIRED:
            raise self.error(key, "is missing")
        return default

    def integer(self, key: str, default: Any = _REQUIRED, low: int = 0, high: int = 2**63 - 1) -> int:
        """An integer in a range."""
        value = self.get(key, default)
        if key in self._value and (type(value) is not int or not low <= value <= high):
            bounds = f"of at least {low}" if high == 2**63 - 1 else f"from {low} to {high}"
            raise self.error(key, f"expected an integer {bounds}, got {brief(value)}")
        return int(value)

    def text(self, key: str, default: Any = _REQUIRED, choices: Iterable[str] = ()) -> str:
        """A string that is not empty, or one of `choices`."""
        value = self.get(key, default)
        if key not in self._value:
            return str(value)
        allowed = tuple(choices)
        if type(value) is not str or (allowed and value not in allowed):
            near = difflib.get_close_matches(value, allowed, n=1) if type(value) is str else []
            wanted = f"one of {', '.join(allowed)}" if allowed else "a string"
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise self.error(key, f"expected {wanted}, got {brief(value)}{hint}")
        if not value or len(value) > MAX_NAME:
            raise self.error(key, f"expected 1 to {MAX_NAME} characters, got {len(value)}")
        return value

    def list(self, key: str, default: Any = _REQUIRED, most: int = 65_536) -> list[Any]:
        """A list."""
        value = self.get(key, default)
        if type(value) is tuple:
            value = list(value)
        if type(value) is not list:
            raise self.error(key, f"expected a list, got {brief(value)}")
        if len(value) > most:
            raise self.error(key, f"{len(value)} entries are over the limit of {most}")
        return value

    def map(self, key: str, default: Any = _REQUIRED) -> dict[str, Any]:
        """A map with any strings as keys."""
        value = self.get(key, default)
        if not isinstance(value, Mapping) or any(type(k) is not str for k in value):
            raise self.error(key, f"expected a map, got {brief(value)}")
        return dict(value)


class Numbers:
    """Reads expressions over the dimensions of a model.

    Args:
        names: the dimensions, and `batch`; None where they are not known yet.
    """

    def __init__(self, names: Iterable[str] | None) -> None:
        self._names = None if names is None else frozenset(names)
        self._known: dict[str, Expression] = {}

    def read(self, value: Any, path: str) -> Expression | int:
        """An integer, or an expression in a string.

        Raises:
            InvalidError: it is neither, does not parse, or names no dimension.
        """
        if type(value) is int:
            return value
        if type(value) is not str:
            raise InvalidError(f"config: {path}: expected an integer or an expression, got {brief(value)}")
        known = self._known.get(value)
        if known is not None:
            return known
        try:
            expression = Expression(value)
        except InvalidError as error:
            raise InvalidError(f"config: {path}: {error.message}", error.data) from error
        unknown = expression.names - self._names if self._names is not None else frozenset()
        if unknown:
            name, there = min(unknown), sorted(self._names or ())
            near = difflib.get_close_matches(name, there, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise InvalidError(
                f"config: {path}: expression {brief(value)}: no dimension is called {name!r}; there are "
                f"{', '.join(there)}{hint}"
            )
        self._known[value] = expression
        return expression


def shown(value: Expression | int | float) -> Any:
    """A number as the configuration has it."""
    return value.text if isinstance(value, Expression) else value


__all__ = ["MAX_NAME", "Numbers", "Table", "shown"]
