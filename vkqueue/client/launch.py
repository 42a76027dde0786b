"""One launch of a kernel, from a call's arguments to the parameters of `dispatch`.

A call with device arrays, scalars by name and a grid, made before with the same arrays, takes the short way
(`LaunchPlan.packed`): its parameters are put together from parts that were packed before. Any other call goes
through `LaunchPlan.prepare`.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vkqueue.client.arguments import Bound, HostEntry, Rules, bind, plain
from vkqueue.client.array import BaseDeviceArray, Handle
from vkqueue.client.call import Call
from vkqueue.client.scalars import ScalarPacker
from vkqueue.client.signature import OPTIONS, Signature, suggestion
from vkqueue.errors import InvalidError, UnsupportedError, brief
from vkqueue.wire.codec import pack

# Arbitrary: a program that makes new arrays for each call fills the table with entries that never hit again.
_MAX_CACHED = 256


class Timing(NamedTuple):
    """Times of one launch in microseconds; `device_us` is None where the device has no timestamps."""

    queued_us: int
    device_us: int | None
    total_us: int
    device: int | None


class Timed(NamedTuple):
    """What a call with `timing=True` returns: its usual result, and the times."""

    value: Any
    timing: Timing


@dataclass(slots=True)
class Launch:
    """A launch ready to be sent.

    Attributes:
        params: of `dispatch`, or another `method`.
        bound: its arguments; `params["args"]` is `bound.args`.
        spilled: entries too large for one message: they go through temporary buffers.
        after: calls that must have succeeded.
    """

    params: dict[str, Any]
    bound: Bound
    spilled: list[HostEntry] = field(default_factory=list)
    after: tuple[Call[Any], ...] = ()
    timing: bool = False

    method = "dispatch"

    def outputs(self, result: Mapping[str, Any]) -> Iterator[Any]:
        """What came back, in the order of the entries in `bound.hosts` that it is for, but for those spilled."""
        return iter(result["outputs"])

    def value(self, result: Mapping[str, Any], spilled: Mapping[int, Any]) -> Any:
        """What the call returns: None, an array, or a tuple of them in the order of the arguments.

        Args:
            result: the daemon's answer.
            spilled: bytes read back, by place in `bound.hosts`.
        """
        inline = self.outputs(result)
        arrays = [
            entry.output.collect(spilled[i] if i in spilled else next(inline))
            for i, entry in enumerate(self.bound.hosts)
            if entry.output is not None
        ]
        value = None if not arrays else arrays[0] if len(arrays) == 1 else tuple(arrays)
        if not self.timing:
            return value
        times = result["timing"]
        timing = Timing(times["queued_us"], times["device_us"], times["total_us"], result.get("device"))
        return Timed(value, timing)


class LaunchPlan:
    """Prepares launches of one kernel.

    Args:
        signature: what the kernel takes.
        module: its handle.
        rules: what arguments must agree with.
        max_bytes: how many bytes of arguments, or of results, one message may carry.

    Attributes:
        scalars: packs what is pushed.
    """

    def __init__(self, signature: Signature, module: Handle, rules: Rules, max_bytes: int) -> None:
        self.signature = signature
        self.module = module
        self.scalars = ScalarPacker(signature)
        self.rules = rules
        self.max_bytes = max_bytes
        self._bindings = {b.name: i for i, b in reversed(list(enumerate(signature.bindings))) if b.name}
        self._names = frozenset(self.scalars.names)
        self._max_keywords = len(self.scalars.names) + 1
        self._head = pack("module") + pack(module.id) + pack("kernel") + pack(signature.name) + pack("args")
        self._short = not self.scalars.names or self.scalars.pack_named is not None
        self._args: dict[tuple[int, ...], bytes] = {}
        self._grids: dict[str, dict[Any, bytes]] = {"grid": {}, "elements": {}}

    def packed(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> bytes | None:
        """The packed parameters of a call whose parts are known, None for any other."""
        if len(keywords) != self._max_keywords or not self.module.usable:
            return None
        try:
            key = []
            for array in args:
                if not array.handle.usable:
                    return None
                key.append(array.serial)
            option = "grid" if "grid" in keywords else "elements"
            pack_named = self.scalars.pack_named
            if pack_named is None:
                return self._args[tuple(key)] + self._grids[option][keywords[option]]
            scalars = pack_named(keywords)
            # bin 8: scalars of more bytes than its header can tell are not marked short.
            return b"%b\xa7scalars\xc4%c%b%b" % (
                self._args[tuple(key)], len(scalars), scalars, self._grids[option][keywords[option]],
            )  # fmt: skip
        except (AttributeError, KeyError, TypeError, struct.error, OverflowError):
            return None  # something new, or wrong: the long way tells which

    def prepare(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> Launch:
        """A launch from the arguments of a call.

        Raises:
            InvalidError: an argument is missing, unknown, or does not fit.
            UnsupportedError: this device cannot run the kernel.
        """
        signature = self.signature
        if signature.unsupported:
            raise UnsupportedError(f"kernel {signature.name!r} cannot run here: {signature.unsupported}")
        self.module.check(f"the module of kernel {signature.name!r}")
        options, scalars, named = self.sort(keywords, len(args))
        values = self.in_order(args, named)
        bound = bind(signature.bindings, values, self.rules, inplace=bool(options.get("inplace")))
        params: dict[str, Any] = {"module": self.module.id, "kernel": signature.name, "args": bound.args}
        launch = Launch(params, bound, timing=bool(options.get("timing")))
        constants = options.get("specialization")
        if constants is not None and not isinstance(constants, Mapping):
            raise InvalidError(f"specialization: expected a dict of name or id to value, got {brief(constants)}")
        given = options.get("scalars")
        if given is not None and scalars:
            raise InvalidError(f"give scalars by keyword ({', '.join(scalars)}) or as scalars=…, not both")
        fields = self.scalars.from_values(given) if given is not None else self.scalars.from_names(scalars)
        if fields:
            params["scalars"] = fields
        self._set_grid(params, options)
        set_options(launch, options)
        launch.spilled = spill(bound.hosts, self.max_bytes)
        if self._short and options.keys() <= {"grid", "elements"} and not launch.bound.hosts:
            self._remember(args, options, params)
        return launch

    def sort(
        self, keywords: Mapping[str, Any], positional: int
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Keywords as (options, scalars, bindings by name).

        Raises:
            InvalidError: one is none of these, or names a binding that is given by its place.
        """
        options: dict[str, Any] = {}
        scalars: dict[str, Any] = {}
        named: dict[str, Any] = {}
        for name, value in keywords.items():
            if name in OPTIONS:
                options[name] = value
            elif name in self._names:
                scalars[name] = value
            elif name in self._bindings:
                named[name] = value
                if self._bindings[name] < positional:
                    raise InvalidError(f"argument {name!r} is given twice, by place and by name")
            else:
                known = [*self._bindings, *self.scalars.names, *OPTIONS]
                raise InvalidError(
                    f"kernel {self.signature.name!r} takes no {name!r}.{suggestion(name, known)} "
                    f"Call it as {self.signature.call()}"
                )
        return options, scalars, named

    def in_order(self, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """One argument for each binding.

        Raises:
            InvalidError: too many, or one is missing.
        """
        bindings = self.signature.bindings
        if len(args) > len(bindings):
            raise InvalidError(
                f"kernel {self.signature.name!r} takes {len(bindings)} arguments, got {len(args)}; scalars go by "
                f"keyword or in scalars=[…]. Call it as {self.signature.call()}",
                {"expected": len(bindings), "got": len(args)},
            )
        values = list(args)
        for binding in bindings[len(args) :]:
            if not binding.name or binding.name not in named:
                raise InvalidError(f"{binding.label} is missing. Call the kernel as {self.signature.call()}")
            values.append(named[binding.name])
        return values

    def _set_grid(self, params: dict[str, Any], options: Mapping[str, Any]) -> None:
        given = [name for name in ("grid", "elements", "launch") if options.get(name) is not None]
        if len(given) != 1:
            raise InvalidError(
                f"kernel {self.signature.name!r}: give one of grid=(x, y, z) in work groups and elements=(x, y, z) "
                f"in invocations, got {' and '.join(given) if given else 'neither'}"
            )
        value = options[given[0]]
        if given[0] == "launch":
            params["launch"] = extents(value, "launch", most=16)
        elif given[0] == "grid":
            params["grid"] = extents(value, "grid")
        else:
            sizes = self.local_size(options.get("specialization"))
            counts = extents(value, "elements")
            params["grid"] = [-(-n // size) for n, size in zip(counts, sizes, strict=False)]

    def local_size(self, specialization: Any) -> Sequence[int]:
        """The work group's size under these constants.

        Raises:
            InvalidError: it cannot be told from them.
        """
        if not specialization or self.signature.local_size_varies is False:
            return self.signature.local_size
        ids = self.signature.local_size_ids
        if ids is None:
            raise InvalidError(
                "elements=… counts in work groups, whose size these specialization constants may change; give grid=…"
            )
        given = {str(key): value for key, value in specialization.items()}
        sizes = list(self.signature.local_size)
        for constant in self.signature.specialization:
            for key in (str(constant.id), constant.name):
                if key in given:
                    sizes = [int(given[key]) if ids[i] == constant.id else s for i, s in enumerate(sizes)]
        if min(sizes) < 1:
            raise InvalidError(f"specialization: a work group of {sizes} has no invocations")
        return sizes

    def _remember(self, args: Sequence[Any], options: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Keep the parts of a launch that the short way can use again."""
        if any(not isinstance(a, BaseDeviceArray) for a in args) or len(args) != len(params["args"]):
            return
        option = "grid" if options.get("grid") is not None else "elements"
        fields = params.get("scalars")
        if len(options) != 1 or (fields is not None and (not isinstance(fields, bytes) or len(fields) > 255)):
            return
        count = 4 if fields is None else 5
        grids = self._grids[option]
        for table in (self._args, grids):
            if len(table) >= _MAX_CACHED:
                table.clear()
        head = bytes((0x80 | count,)) + self._head  # a fixmap of that many names
        self._args[tuple(a.serial for a in args)] = head + pack(params["args"])
        try:
            grids[options[option]] = b"\xa4grid" + pack(params["grid"])
        except TypeError:
            pass  # a list as grid is no key of a table


def spill(hosts: Sequence[HostEntry], max_bytes: int) -> list[HostEntry]:
    """The largest entries, as few as will do, without which the rest fits a message in each direction."""
    if sum(e.nbytes for e in hosts) <= max_bytes:
        return []
    sent = sum(e.nbytes for e in hosts if e.data is not None)
    returned = sum(e.nbytes for e in hosts if e.output is not None)
    spilled: list[HostEntry] = []
    for entry in sorted(hosts, key=lambda e: -e.nbytes):
        too_much = (entry.data is not None and sent > max_bytes) or (entry.output is not None and returned > max_bytes)
        if too_much:
            spilled.append(entry)
            sent -= entry.nbytes if entry.data is not None else 0
            returned -= entry.nbytes if entry.output is not None else 0
    return spilled


def extents(value: object, what: str, most: int = 3) -> list[int]:
    """One to `most` integers of at least 0.

    Raises:
        InvalidError
    """
    items: Sequence[Any] = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    try:
        numbers = [operator.index(item) for item in items]
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= most or min(numbers) < 0:
        raise InvalidError(f"{what}: expected one to {most} integers of at least 0, got {brief(value)}")
    return numbers


def set_options(launch: Launch, options: Mapping[str, Any]) -> None:
    """Put the rarer options of a call into its launch.

    Raises:
        InvalidError
    """
    params = launch.params
    after = options.get("after")
    if after is not None:
        calls = (after,) if isinstance(after, Call) or not isinstance(after, Iterable) else tuple(after)
        if any(not isinstance(call, Call) for call in calls):
            raise InvalidError(f"after: expected futures of this connection, got {brief(after)}")
        launch.after = calls
    if options.get("specialization"):
        params["specialization"] = {str(key): plain(value) for key, value in options["specialization"].items()}
    if options.get("deadline") is not None:
        params["deadline_ms"] = _milliseconds(options["deadline"])
    if launch.timing:
        params["timing"] = True
    for name in ("priority", "device", "label"):
        if options.get(name) is not None:
            params[name] = plain(options[name])


def _milliseconds(deadline: object) -> int:
    if not isinstance(deadline, (int, float)) or not 0 < deadline < 2**31 or not math.isfinite(deadline):
        raise InvalidError(f"deadline: expected seconds above 0, got {brief(deadline)}")
    return math.ceil(deadline * 1000)
