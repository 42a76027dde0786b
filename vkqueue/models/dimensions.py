"""Dimensions of an ensemble: those of its steps, made one where tensors join them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vkqueue.errors import InvalidError, brief
from vkqueue.models.definition import Definition
from vkqueue.models.tensors import Dimension

Key = tuple[int, str]
"""(step, its name there); -1 is the ensemble itself."""


class Joined:
    """Sets of dimensions that are one.

    Attributes:
        dimensions: what they have become, by their new names; after `resolve`.
    """

    def __init__(self, ensemble: Definition, members: Sequence[Definition], prefixes: Sequence[str]) -> None:
        self._name = ensemble.name
        self._prefixes = prefixes
        self._known: dict[Key, Dimension] = {(-1, n): d for n, d in ensemble.dimensions.items()}
        for index, member in enumerate(members):
            self._known |= {(index, n): d for n, d in member.dimensions.items()}
        self._parent: dict[Key, Key] = {}
        self._fixed: dict[Key, tuple[int, str]] = {}  # root → its length, and who says so
        for key in self._known:
            self._root(key)
        for tensors in (ensemble.inputs, ensemble.outputs):
            for tensor in tensors.values():
                for dim in tensor.dims:
                    if type(dim) is str:
                        self._root((-1, dim))
        self.dimensions: dict[str, Dimension] = {}

    def _root(self, key: Key) -> Key:
        parent = self._parent.setdefault(key, key)
        if parent != key:
            parent = self._parent[key] = self._root(parent)
        return parent

    def unite(self, one: tuple[int, int | str], other: tuple[int, int | str], said: str) -> None:
        """Two dims, each with its step, are the same.

        Args:
            said: which they are, for messages.

        Raises:
            InvalidError: they are numbers and differ.
        """
        keys = [(scope, dim) for scope, dim in (one, other) if type(dim) is str]
        numbers = [dim for _, dim in (one, other) if type(dim) is int]
        if len(numbers) == 2:
            if numbers[0] != numbers[1]:
                raise InvalidError(f"{said}: these lengths differ")
        elif len(numbers) == 1:
            self._fix(self._root(keys[0]), numbers[0], said)
        else:
            first, second = self._root(keys[0]), self._root(keys[1])
            if first != second:
                self._parent[second] = first
                if second in self._fixed:
                    self._fix(first, *self._fixed.pop(second))

    def _fix(self, root: Key, length: int, said: str) -> None:
        known = self._fixed.setdefault(root, (length, said))
        if known[0] != length:
            raise InvalidError(f"{said}: but this dimension is {known[0]} elsewhere ({known[1]})")

    def resolve(self) -> dict[int, dict[str, str]]:
        """For each step, and -1, what its dimensions are called now: names, or numbers.

        Raises:
            InvalidError: no length fits all that are one.
        """
        sets: dict[Key, list[Key]] = {}
        for key in list(self._parent):
            sets.setdefault(self._root(key), []).append(key)
        names: dict[int, dict[str, str]] = {scope: {} for scope in range(-1, len(self._prefixes))}
        for root, keys in sets.items():
            new = self._resolved(root, sorted(keys))
            for scope, name in keys:
                names[scope][name] = new
        return names

    def _resolved(self, root: Key, keys: list[Key]) -> str:
        known = [(key, self._known[key]) for key in keys if key in self._known]
        listed = ", ".join(f"{self._called(key)} {_allowed(dimension)}" for key, dimension in known)
        if root in self._fixed:
            length, said = self._fixed[root]
            if any(dimension.bucket(length) != length for _, dimension in known):
                raise InvalidError(f"{said}: {length} is no length of {listed}")
            return str(length)
        if not known:
            raise InvalidError(
                f"ensemble {self._name!r}: dimension {brief(keys[0][1])} is in no [dimensions], neither the ensemble's "
                "nor a step's"
            )
        low, high = max(d.low for _, d in known), min(d.high for _, d in known)
        lists = [set(d.buckets) for _, d in known if d.buckets]
        buckets = tuple(sorted(b for b in set.intersection(*lists) if low <= b <= high)) if lists else ()
        if low > high or (lists and not buckets):
            raise InvalidError(f"ensemble {self._name!r}: no length fits all of {listed}, which are one dimension")
        name = self._new_name(keys)
        self.dimensions[name] = Dimension(name, buckets, low, buckets[-1] if buckets else high)
        return name

    def _called(self, key: Key) -> str:
        return key[1] if key[0] < 0 else self._prefixes[key[0]] + key[1]

    def _new_name(self, keys: list[Key]) -> str:
        """The ensemble's own name, if it has one."""
        own = [name for scope, name in keys if scope < 0]
        if own:
            return own[0]
        name = re.sub(r"[^A-Za-z0-9_]", "_", self._called(keys[0]))
        name = name if re.match(r"[A-Za-z_]", name) else f"_{name}"
        taken = {name for scope, name in self._parent if scope < 0} | self.dimensions.keys()
        while name in taken:
            name += "_"
        return name


def _allowed(dimension: Dimension) -> str:
    return str(list(dimension.buckets)) if dimension.buckets else f"({dimension.allowed})"


__all__ = ["Joined"]
