"""Many launches of a kernel in one call, from its arguments to the parameters of `dispatch_many`.

An argument is shared by all launches, or it differs: device arrays as `each(…)` or a list of them, scalars and
extents as NumPy arrays with an element for each launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vkqueue.client.arguments import Bound, bind_one
from vkqueue.client.each import Each, each, packed
from vkqueue.client.launch import Launch, LaunchPlan, extents, set_options, spill
from vkqueue.client.signature import Binding, Scalar
from vkqueue.errors import InvalidError, UnsupportedError, brief

_DTYPES = {
    "int8": "i1", "uint8": "u1", "int16": "<i2", "uint16": "<u2", "int32": "<i4", "uint32": "<u4", "int64": "<i8",
    "uint64": "<u8", "float16": "<f2", "float32": "<f4", "float64": "<f8", "bool32": "<u4",
}  # fmt: skip


class ManyLaunch(Launch):
    """Many launches, ready to be sent."""

    method = "dispatch_many"

    def outputs(self, result: Mapping[str, Any]) -> Iterator[Any]:
        """Nothing: they write device arrays."""
        return iter(())


class ManyPlan:
    """Prepares one call.

    Args:
        plan: of the kernel.
        most: launches that the daemon takes at once; 0 if it takes none.
        count: launches, where no argument tells.
    """

    def __init__(self, plan: LaunchPlan, most: int, count: int | None) -> None:
        self._plan = plan
        self._most = most
        self._count = count
        self._told = "count" if count is not None else ""  # who told how many

    def prepare(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> ManyLaunch:
        """The launches from the arguments of a call.

        Raises:
            InvalidError: an argument is missing, unknown, or does not fit; or is for another number of launches.
            UnsupportedError: this device cannot run the kernel; this daemon does not have dispatch_many.
        """
        plan = self._plan
        signature = plan.signature
        if signature.unsupported:
            raise UnsupportedError(f"kernel {signature.name!r} cannot run here: {signature.unsupported}")
        if not self._most:
            raise UnsupportedError("this daemon does not take many launches at once; call the kernel for each")
        plan.module.check(f"the module of kernel {signature.name!r}")
        options, scalars, named = plan.sort(keywords, len(args))
        if options.get("inplace"):
            raise InvalidError("inplace=… is for single launches; many launches write device arrays")
        bound = self._bind(plan.in_order(args, named))
        params: dict[str, Any] = {"module": plan.module.id, "kernel": signature.name, "args": bound.args}
        launch = ManyLaunch(params, bound, timing=bool(options.get("timing")))
        fields = self._scalars(scalars, options.get("scalars"))
        if fields:
            params["scalars"] = fields
        self._set_grid(params, options)
        set_options(launch, options)
        params["count"] = self._checked_count()
        launch.spilled = spill(bound.hosts, plan.max_bytes)
        return launch

    def _differs(self, count: int, what: str) -> None:
        """An argument is for so many launches."""
        if self._count is None:
            self._count, self._told = count, what
        elif self._count != count:
            raise InvalidError(
                f"{what} is for {count} launches, {self._told} for {self._count}; both must be the same",
                {"expected": self._count, "got": count},
            )

    def _checked_count(self) -> int:
        count = self._count
        if count is None:
            raise InvalidError("no argument differs from launch to launch; say how many by count=…")
        if not isinstance(count, (int, np.integer)) or not 0 < count <= self._most:
            raise InvalidError(
                f"{brief(count)} launches: one call takes 1 to {self._most} (max_many_launches); make several calls",
                {"max_many_launches": self._most},
            )
        return int(count)

    # Arguments

    def _bind(self, values: Sequence[Any]) -> Bound:
        bound = Bound()
        for binding, value in zip(self._plan.signature.bindings, values, strict=True):
            if binding.count == 1:
                self._bind_one(binding, value, bound, bound.args)
                continue
            if not isinstance(value, (list, tuple)) or len(value) != binding.count:
                raise InvalidError(
                    f"{binding.label} is an array of {binding.count} descriptors: expected a list of so many "
                    f"arguments, got {brief(value)}",
                    {"expected": binding.count},
                )
            elements: list[Any] = []
            for element in value:
                self._bind_one(binding, element, bound, elements)
            bound.args.append({"array": elements})
        return bound

    def _bind_one(self, binding: Binding, value: Any, bound: Bound, place: list[Any]) -> None:
        if isinstance(value, (list, tuple)):
            value = each(value)
        if isinstance(value, Each):
            self._differs(value.count, binding.label)
            place.append(value.wire(binding, self._plan.rules))
            bound.arrays += value.arrays
            return
        before = len(bound.hosts)
        bind_one(binding, value, bound, place, self._plan.rules, inplace=False)
        if len(bound.hosts) > before and bound.hosts[-1].output is not None:
            raise InvalidError(
                f"{binding.label}: the kernel writes it, and many launches return nothing; give a device array, or "
                "vkqueue.each(…)"
            )

    # Scalars

    def _scalars(self, named: dict[str, Any], given: Any) -> Any:
        packer = self._plan.scalars
        if given is not None:
            if named:
                raise InvalidError(f"give scalars by keyword ({', '.join(named)}) or as scalars=…, not both")
            if not isinstance(given, Mapping):
                return packer.from_values(given)
            named = dict(given)
        members = {m.name: m for m in self._plan.signature.scalars}
        columns = {name: value for name, value in named.items() if name in members and _is_column(members[name], value)}
        if not columns:
            return packer.from_names(named)
        for name, value in columns.items():
            self._differs(len(value), f"scalar {name}")
        # What is shared is checked as ever, with any good value in the place of what is not.
        packer.from_names(named | {name: _stand_in(members[name]) for name in columns})
        assert self._count is not None
        return {"columns": {m.name: _column(m, named[m.name], self._count) for m in members.values()}}

    # Extents

    def _set_grid(self, params: dict[str, Any], options: Mapping[str, Any]) -> None:
        given = [name for name in ("grid", "elements", "launch") if options.get(name) is not None]
        if len(given) != 1:
            raise InvalidError(
                f"kernel {self._plan.signature.name!r}: give one of grid=(x, y, z) in work groups and "
                f"elements=(x, y, z) in invocations, got {' and '.join(given) if given else 'neither'}"
            )
        [name] = given
        value = options[name]
        if name == "launch":
            params["launch"] = extents(value, "launch", most=16)
            return
        sizes = self._plan.local_size(options.get("specialization")) if name == "elements" else (1, 1, 1)
        if not isinstance(value, np.ndarray):
            params["grid"] = [-(-n // size) for n, size in zip(extents(value, name), sizes, strict=False)]
            return
        columns = value[:, None] if value.ndim == 1 else value
        if columns.ndim != 2 or not 1 <= columns.shape[1] <= 3 or value.dtype.kind not in "iu":
            raise InvalidError(
                f"{name}: an array of extents has one to three integers for each launch, got {value.dtype} of shape "
                f"{value.shape}; extents that all launches share are a tuple"
            )
        self._differs(len(columns), name)
        grids = np.ones((len(columns), 3), np.int64)
        grids[:, : columns.shape[1]] = -(-columns.astype(np.int64) // np.array(sizes[: columns.shape[1]]))
        if len(grids) and (grids.min() < 0 or grids.max() >= 1 << 32):
            launch = int(((grids < 0) | (grids >= 1 << 32)).any(axis=1).argmax())
            raise InvalidError(f"{name}: launch {launch}: {columns[launch].tolist()} is no extent", {"launch": launch})
        params["grid"] = {"grids": packed(grids, "<u4")}


def _is_column(member: Scalar, value: Any) -> bool:
    """Whether a scalar has a value for each launch: an array of one dimension more than one launch takes."""
    return isinstance(value, np.ndarray) and value.ndim == (1 if member.count is None else 2)


def _stand_in(member: Scalar) -> Any:
    return 0 if member.count is None else [0] * member.count


def _column(member: Scalar, value: Any, count: int) -> memoryview | bytes:
    """A scalar's values for all launches, as they travel.

    Raises:
        InvalidError: one is of the wrong kind or out of range; the message names the launch.
    """
    dtype = np.dtype(_DTYPES[member.type])
    width = 1 if member.count is None else member.count
    array = np.asarray(value)
    if not _is_column(member, value):
        array = np.broadcast_to(array.reshape(width), (count, width))
    rows = array.reshape(count, -1)
    if rows.shape[1] != width:
        raise InvalidError(f"scalar {member}: expected {width} values for each launch, got {rows.shape[1]}")
    if rows.dtype.kind not in ("iub" if dtype.kind in "iu" else "iubf"):
        raise InvalidError(f"scalar {member}: values of {rows.dtype} are not of this type")
    with np.errstate(over="ignore", invalid="ignore"):
        converted = rows.astype(dtype)
    if member.type == "bool32":
        wrong = (rows != 0) & (rows != 1)
    elif dtype.kind == "f":
        wrong = np.isfinite(rows) & ~np.isfinite(converted)
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        wrong = np.zeros(rows.shape, np.bool_) if np.can_cast(rows.dtype, dtype) else (rows < low) | (rows > high)
    if wrong.any():
        launch = int(wrong.any(axis=1).argmax())
        raise InvalidError(
            f"scalar {member}: launch {launch}: {rows[launch].tolist()} is not of this type", {"launch": launch}
        )
    return packed(converted, dtype)
