"""A `dispatch_many` by chance, and what its launches do one after the other."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from support.effects import KERNELS, LOCAL, UNIFORM, Kernel, launch, may_be_bound, pushed, signed
from support.reference import Memory

if TYPE_CHECKING:
    from support.programs import Program

_NAMES = ("scale", "add", "increment", "shift", "mix", "add_uniform")


class _Column:
    """One binding of all launches.

    Attributes:
        form: "shared" (all the same), "in" (data that all share), "rows" (of one buffer), "mixed" (of any), or "whole"
            (all of a buffer).
        places: for each launch, as `Program.entry` gives them.
    """

    def __init__(self, program: Program, access: str, count: int, single: bool) -> None:
        rng = program.rng
        forms = ["rows", "rows", "mixed", "mixed", "shared"]
        if access in ("r", "u"):
            forms.append("in")
        if single:
            forms.append("whole")
        self.form = rng.choice(forms)
        self.places: list[Any] = []
        self.handle = program.some()
        self._steps = rng.choice([2, 5, 1000])

    def choose(self, program: Program, size: int) -> bool:
        """A place for the next launch; whether there is one."""
        rng = program.rng
        if self.form == "in":
            if not self.places:
                data = program.bytes_of(size)
                self.places.append(("in", np.frombuffer(data, np.uint8)))
            else:
                self.places.append(self.places[0])
        elif self.form == "shared" and self.places:
            self.places.append(self.places[0])
        elif self.form == "rows":
            room = program.sizes.get(self.handle or 0, -1) - size
            if room < 0:
                return False
            steps = rng.randint(0, min(room // program.align, self._steps))
            self.places.append((self.handle, steps * program.align, size))
        elif self.form == "whole":
            handle = rng.choice(list(program.sizes))
            self.places.append((handle, 0, program.sizes[handle]))
        else:
            place = program.place(size)
            if place is None:
                return False
            self.places.append(place)
        return True

    def entry(self) -> Any:
        """As it is sent."""
        first = self.places[0]
        if self.form == "in":
            return {"in": first[1].tobytes()}
        if self.form == "shared":
            return list(first)
        handles, offsets, sizes = zip(*self.places, strict=True)
        if self.form == "whole":
            return {"handles": struct.pack(f"<{len(handles)}I", *handles)}
        size = sizes[0] if len(set(sizes)) == 1 else struct.pack(f"<{len(sizes)}Q", *sizes)
        where: Any = {"buffer": handles[0]} if self.form == "rows" else {
            "handles": struct.pack(f"<{len(handles)}I", *handles)
        }  # fmt: skip
        return {**where, "offsets": struct.pack(f"<{len(offsets)}Q", *offsets), "size": size}


def random_many(program: Program) -> Any:
    """(parameters, effect, buffers that it needs); None if no places were found."""
    rng = program.rng
    kernel = KERNELS[rng.choice(_NAMES)]
    large = rng.random() < program.mixture.large / 3
    count = rng.choice([1, 2, 3]) if large else rng.choice([1, 2, 5, 17, 40, 120, rng.choice([120, 1500])])
    columns = [_Column(program, access, count, len(kernel.bindings) == 1) for access in kernel.bindings]
    size = (1 << 20) + rng.choice([0, 4, 1027]) if large else rng.choice([64, 256, 256, 1024, 1027, 5000])
    differ = not large and all(column.form in ("rows", "mixed") for column in columns)
    sizes = [rng.choice([size, size // 2, 16]) if differ else size for _ in range(count)]
    for number in range(count):
        for _ in range(6):
            if not _choose(program, kernel, columns, sizes[number]):
                return None
            places = [column.places[number] for column in columns]
            if may_be_bound(kernel, places):
                break
            for column in columns:
                column.places.pop()
            if all(column.form in ("in", "shared") for column in columns):
                return None
        else:
            return None
    return _made(program, kernel, columns, count)


def _choose(program: Program, kernel: Kernel, columns: list[_Column], size: int) -> bool:
    return all(
        column.choose(program, UNIFORM if access == "u" else size)
        for column, access in zip(columns, kernel.bindings, strict=True)
    )


def _made(program: Program, kernel: Kernel, columns: list[_Column], count: int) -> Any:
    rng = program.rng
    every = [[column.places[number] for column in columns] for number in range(count)]
    lengths = [_length(places[-1] if kernel.name != "add_uniform" else places[0]) for places in every]
    scalars = [[rng.randrange(1 << 32) for _ in range(kernel.scalars)] for _ in range(count)]
    if kernel.counts:
        for values, length in zip(scalars, lengths, strict=True):
            values[0] = rng.randint(0, length // 4)
    if rng.random() < 0.4:
        scalars = [scalars[0] if not kernel.counts else [min(s[0] for s in scalars), scalars[0][1]]] * count
    uniform = "u" in kernel.bindings
    groups = [length // 4 // LOCAL if uniform else -(-length // 4 // LOCAL) for length in lengths]
    if rng.random() < 0.4:
        groups = [min(groups) if uniform else max(groups)] * count
        grid: Any = [groups[0]]
    else:
        groups = [rng.choice([number, number, 0]) for number in groups]
        grid = {"grids": b"".join(struct.pack("<3I", number, 1, 1) for number in groups)}
    params: dict[str, Any] = {
        "module": program.modules[kernel.name], "count": count, "args": [column.entry() for column in columns],
        "grid": grid,
    }  # fmt: skip
    if kernel.scalars:
        params["scalars"] = _scalars(program, kernel, scalars)
    needs = tuple({place[0] for places in every for place in places if len(place) == 3})

    def effect(memory: Memory) -> Any:
        for number, places in enumerate(every):
            views = [memory[p[0]][p[1] : p[1] + p[2]] if len(p) == 3 else p[1] for p in places]
            launch(kernel, views, scalars[number], groups[number])
        return {"count": count}

    return params, effect, needs


def _length(place: Any) -> int:
    return int(place[2] if len(place) == 3 else len(place[1]))


def _scalars(program: Program, kernel: Kernel, scalars: list[list[int]]) -> Any:
    if all(values == scalars[0] for values in scalars) and program.rng.random() < 0.7:
        return pushed(scalars[0]) if program.rng.random() < 0.5 else _flat(kernel, scalars[0])
    if kernel.counts and program.rng.random() < 0.5:
        return {"columns": {
            name: struct.pack(f"<{len(scalars)}I", *(values[place] for values in scalars))
            for place, name in enumerate(("n", "k"))
        }}  # fmt: skip
    return {"packed": b"".join(map(pushed, scalars))}


def _flat(kernel: Kernel, values: list[int]) -> list[int]:
    return values if kernel.counts else [signed(value) for value in values]
