"""`vkqueue run`: one launch of a kernel, with arguments from files, ranges and random numbers."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import track

from vkqueue.cli import values
from vkqueue.cli.module_file import kernel_names
from vkqueue.cli.options import device_option, json_option, pairs, socket_option, spawn_option
from vkqueue.cli.output import add_row, console, dump, say, show, table
from vkqueue.cli.results import Result, named, show_results
from vkqueue.client.signature import Binding, suggestion
from vkqueue.errors import InvalidError

if TYPE_CHECKING:
    from vkqueue.client.sync import Client, Kernel

_NAMED = re.compile(r"([A-Za-z_$][\w.$]*|\d+)=(.*)", re.DOTALL)
_HEAD = 8


def _sizes(ctx: click.Context, param: click.Parameter, given: str | None) -> tuple[int, ...] | None:
    try:
        return None if given is None else values.extents(given, 16 if param.name == "launch" else 3)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(short_help="Run a kernel on arrays from files and ranges.")
@click.argument("file", type=click.Path(dir_okay=False, exists=True))
@click.argument("arguments", nargs=-1, metavar="[[NAME=]VALUE]...", type=click.Path())
@click.option("--kernel", metavar="NAME", shell_complete=kernel_names, help="Which one, if there are several.")
@click.option("-s", "--scalar", "scalars", multiple=True, callback=pairs, metavar="NAME=NUMBER", help="Repeatable.")
@click.option("--grid", callback=_sizes, metavar="X[,Y[,Z]]", help="Work groups.")
@click.option("--elements", callback=_sizes, metavar="X[,Y[,Z]]", help="Invocations, rounded up to work groups.")
@click.option("--launch", callback=_sizes, metavar="N[,N…]", help="A TVM kernel's launch parameters.")
@click.option("--spec", multiple=True, callback=pairs, metavar="NAME=VALUE", help="Specialization, by name or id.")
@click.option("--out", "outputs", multiple=True, callback=pairs, metavar="NAME=FILE", help="Write a result (.npy).")
@click.option("--head", type=click.IntRange(0), default=_HEAD, show_default=True, help="Numbers shown of each result.")
@click.option("--timing", is_flag=True, help="Show the daemon's times: queued, on the device, in all.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Launch it so often, with the same arguments.")
@device_option
@socket_option
@spawn_option
@json_option
def command(
    file: str,
    arguments: tuple[str, ...],
    kernel: str | None,
    scalars: dict[str, str],
    spec: dict[str, str],
    outputs: dict[str, str],
    head: int,
    timing: bool,
    repeat: int,
    device: int | None,
    socket: str | None,
    spawn: bool,
    as_json: bool,
    **extent: tuple[int, ...] | None,
) -> None:
    """Run a kernel of FILE (SPIR-V, TVM's formats, or source text) once, and show what it writes.

    An argument goes to the binding of its NAME or number, else to the next one without any. `vkqueue inspect FILE`
    shows them. It can be

    \b
      data.npy  @data.bin        an array from a file; a file's bytes
      0:100  0:1:0.01            a range: start, end (not in it), step
      1,2,3                      these numbers
      zeros:100  ones:4x4        full:SHAPE:NUMBER too
      random:100:seed=7          between low= and high=
      out:100                    a result, zeros at first
      '{"n": 3}'                 a uniform block
      '[a.npy;zeros:4]'          an array of descriptors

    with a dtype after it (0:100:uint32), else of the kernel's elements. What the kernel writes starts from the argument
    in each repeat anew.

    \b
      vkqueue run vkqueue/cli/kernels/axpy.spv 0:100 ones:100 -s n=100 -s k=2 --elements 100 --out 1=y.npy
    """
    from vkqueue.client.sync import connect

    if sum(sizes is not None for sizes in extent.values()) != 1:
        raise click.UsageError("give one of --grid (work groups), --elements (invocations) and --launch (TVM)")
    with connect(socket, device=device, spawn=spawn, client_name="vkqueue run") as gpu:
        chosen, dtypes = _load(gpu, file, kernel)
        given = arrange(arguments, chosen.bindings, dtypes)
        places = {place(name, chosen.bindings): target for name, target in outputs.items()}
        options = {
            **{name: sizes for name, sizes in extent.items() if sizes is not None},
            **_typed(scalars, {s.name: (s.type, s.count) for s in chosen.scalars}, "scalar"),
        }
        constants = {key: (c.type, None) for c in chosen.specialization for key in (str(c.id), c.name) if key}
        if spec:
            options["specialization"] = _typed(spec, constants, "specialization constant")
        runs = _launch(chosen, given, options, repeat)
        results = list(named(chosen.bindings, runs[-1][0].value))
        _save(results, places)
        where = runs[-1][0].timing.device
        report = {
            "ok": True,
            "kernel": chosen.name,
            "device": where,
            "runs": repeat,
            "results": [result.summary(head) for result in results],
            "timing": times(runs),
        }
        if as_json:
            dump(report)
        else:
            _show(results, head, report["timing"] if timing or repeat > 1 else {})


def _load(gpu: Client, file: str, name: str | None) -> tuple[Kernel, Mapping[tuple[int, int], str]]:
    """The kernel, and the dtypes of its buffers."""
    from vkqueue.cli import module_file
    from vkqueue.cli.sources import language_of
    from vkqueue.errors import VkqueueError

    if language_of(file) is not None:
        compiled = module_file.read(file)
        module = gpu.load(compiled.data, name=compiled.name)
        kernel = module[name] if name is not None else module.kernel
        return kernel, compiled.element_types(kernel.name)
    module = gpu.load(file)
    kernel = module[name] if name is not None else module.kernel
    try:
        return kernel, module_file.read(file).element_types(kernel.name)
    except VkqueueError:  # the daemon knows more than we
        return kernel, {}


def arrange(arguments: Iterable[str], bindings: Sequence[Binding], dtypes: Mapping[tuple[int, int], str]) -> list[Any]:
    """The arguments in the order of the bindings.

    Raises:
        InvalidError: one is missing, unknown, there twice, or written wrong.
    """
    found: dict[int, Any] = {}
    loose: list[str] = []
    for text in arguments:
        match = _NAMED.fullmatch(text)
        if match is None:
            loose.append(text)
            continue
        at = place(match[1], bindings)
        if at in found:
            raise InvalidError(f"{bindings[at].label} is given twice")
        found[at] = match[2]
    free = [at for at in range(len(bindings)) if at not in found]
    if len(loose) != len(free):
        takes = "; ".join(f"{at}: {binding}" for at, binding in enumerate(bindings)) or "none"
        raise InvalidError(
            f"the kernel takes {len(bindings)} arguments, got {len(found) + len(loose)}. They are {takes}"
        )
    found.update(zip(free, loose, strict=True))
    return [
        values.buffer_value(found[at], dtypes.get((binding.set, binding.binding)), binding)
        for at, binding in enumerate(bindings)
    ]


def place(name: str, bindings: Sequence[Binding]) -> int:
    """Which binding is meant by a name or number.

    Raises:
        InvalidError: none.
    """
    names = [binding.name for binding in bindings]
    if name.isdigit() and int(name) < len(bindings):
        return int(name)
    if name not in names:
        known = ", ".join(f"{at} ({name})" if name else str(at) for at, name in enumerate(names)) or "none"
        hint = suggestion(name, filter(None, names))
        raise InvalidError(f"the kernel has no argument {name!r}; it has {known}.{hint}")
    return names.index(name)


def _typed(given: Mapping[str, str], types: Mapping[str, tuple[str, int | None]], what: str) -> dict[str, Any]:
    """Numbers by name, as the kernel has them."""
    found = {}
    for name, text in given.items():
        if name not in types:
            known = ", ".join(types) or "none"
            raise InvalidError(f"the kernel has no {what} {name!r}; it has {known}.{suggestion(name, types)}")
        try:
            found[name] = values.scalar_value(text, *types[name])
        except ValueError as error:
            raise InvalidError(f"{what} {name!r} ({types[name][0]}): {error}") from None
    return found


def _launch(kernel: Kernel, given: list[Any], options: dict[str, Any], repeat: int) -> list[tuple[Any, int]]:
    """Each launch's result with the daemon's times, and its microseconds as seen here."""
    runs = []
    progress = console(stderr=True)
    hidden = repeat == 1 or not progress.is_terminal
    for _ in track(range(repeat), "launching", console=progress, transient=True, disable=hidden):
        started = time.perf_counter_ns()
        timed = kernel(*given, timing=True, **options)
        runs.append((timed, (time.perf_counter_ns() - started) // 1000))
    return runs


def times(runs: Sequence[tuple[Any, int]]) -> dict[str, dict[str, float] | None]:
    """For each kind of time its least, middle and largest value in microseconds; None without any."""
    kinds: dict[str, Callable[[Any, int], int | None]] = {
        "queued_us": lambda timed, here: timed.timing.queued_us,
        "device_us": lambda timed, here: timed.timing.device_us,
        "total_us": lambda timed, here: timed.timing.total_us,
        "round_trip_us": lambda timed, here: here,
    }
    found: dict[str, dict[str, float] | None] = {}
    for kind, read in kinds.items():
        known = [us for us in (read(*run) for run in runs) if us is not None]
        found[kind] = (
            {"first": known[0], "min": min(known), "median": statistics.median(known), "max": max(known)}
            if known
            else None
        )
    return found


def _save(results: Sequence[Result], places: Mapping[int, str]) -> None:
    for at, target in places.items():
        mine = [result for result in results if result.place == at]
        if not mine:
            written = ", ".join(sorted({result.name for result in results})) or "none"
            raise InvalidError(f"--out: the kernel does not write argument {at}; it writes {written}")
        for result in mine:
            path = Path(target)
            result.save(path if len(mine) == 1 else path.with_stem(f"{path.stem}_{result.element}"))


def _show(results: Sequence[Result], head: int, timing: Mapping[str, Any]) -> None:
    if results:
        show_results(results, head)
    else:
        say("done; the kernel writes nothing")
    if timing:
        made = table("time in µs", ">first", ">least", ">median", ">most")
        for kind, known in timing.items():
            row = known or dict.fromkeys(("first", "min", "median", "max"), "not known")
            add_row(made, kind.removesuffix("_us").replace("_", " "), *row.values())
        show(made)
