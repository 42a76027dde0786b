"""`vkqueue model`: models of the daemon, from the shell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from vkqueue.cli.model_tables import show_batches, show_statistics, toml_of, without_files
from vkqueue.cli.options import device_option, json_option, pairs, socket_option
from vkqueue.cli.output import add_row, dump, say, show, table
from vkqueue.errors import InvalidError, VkqueueError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from vkqueue.client.model import BaseModel, ModelTensor

_HEAD = 8
_STYLES = {"READY": "green", "UNAVAILABLE": "red"}
_NAME = re.compile(r"[A-Za-z_]\w*")
# Of a completion: nobody waits longer for what a key brings up. Arbitrary.
_COMPLETION_S = 1.0


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's completion: the models of the daemon, if one answers at once."""
    from vkqueue.client.sync import connect

    try:
        with connect(ctx.params.get("socket"), timeout=_COMPLETION_S, client_name="vkqueue completion") as gpu:
            names = {model.name for model in gpu.models()}
    except (VkqueueError, OSError):
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def _names_and_folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    names = [] if "/" in incomplete else model_names(ctx, param, incomplete)
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="dir")]


_name = click.argument("name", shell_complete=model_names)
_version = click.option("--version", type=click.IntRange(1), metavar="NUMBER", help="Else the latest.")


@click.group(short_help="List, load, call and measure models.")
def command() -> None:
    """Models: what the daemon has, what they take, what they have done, and one request from the shell."""


@command.command(name="list", short_help="Which models there are.")
@socket_option
@json_option
def list_command(socket: str | None, as_json: bool) -> None:
    """All versions of all models; of those that could not be loaded the reason."""
    from dataclasses import asdict

    from vkqueue.client.sync import connect

    with connect(socket, client_name="vkqueue model") as gpu:
        models = gpu.models()
    if as_json:
        dump({"ok": True, "models": [asdict(model) for model in models]})
        return
    if not models:
        say("the daemon has no models; `vkqueue model load` brings one, its setting models.repository a folder of them")
        return
    made = table("model", ">version", "state", ">device", "reason")
    for model in models:
        state = Text(model.state, _STYLES.get(model.state, "yellow"))
        add_row(made, model.name, model.version, state, "" if model.device is None else model.device, model.reason)
    show(made)


@command.command(short_help="Load a model from a folder or the daemon's repository.")
@click.argument("name", shell_complete=_names_and_folders)
@_version
@device_option
@socket_option
@json_option
def load(name: str, version: int | None, device: int | None, socket: str | None, as_json: bool) -> None:
    """Load the model NAME of the daemon's repository, or with a "/" in it that of a folder here (./minilm).

    Returns once it is ready. One that is loaded is replaced when its successor is ready; no request is dropped.
    """
    from vkqueue.client.sync import connect

    with connect(socket, client_name="vkqueue model") as gpu:
        model = gpu.load_model(name, version=version, device=device)
        if as_json:
            dump({"ok": True, "name": model.name, "version": model.config.get("version"), "config": model.config})
        else:
            say(f"{model.name} {model.config.get('version', '')} is ready: {_signature(model)}")


@command.command(short_help="Unload a model.")
@_name
@_version
@socket_option
@json_option
def unload(name: str, version: int | None, socket: str | None, as_json: bool) -> None:
    """Unload a model for all clients, or with --version one version of it. Requests that it has taken are answered
    first.
    """
    from vkqueue.client.sync import connect

    with connect(socket, client_name="vkqueue model") as gpu:
        gpu.unload_model(name, version)
    if as_json:
        dump({"ok": True, "name": name, "version": version})
    else:
        say(f"{name} is unloaded" if version is None else f"version {version} of {name} is unloaded")


@command.command(short_help="What a model takes and gives, and its settings.")
@_name
@_version
@socket_option
@json_option
def config(name: str, version: int | None, socket: str | None, as_json: bool) -> None:
    """The whole configuration with its defaults, as TOML that can be used as a config.toml.

    Kernels and weights that a client sent lie in no file; a comment names them, and the config.toml has to get a "file"
    for each. With --json the numbers inf, -inf and nan, which JSON does not have, are strings.
    """
    from vkqueue.client.sync import connect

    with connect(socket, client_name="vkqueue model") as gpu:
        model = gpu.model(name, version)
    if as_json:
        dump({"ok": True, "name": name, "config": model.config})
        return
    settings = dict(model.config)
    comments = [f"version {settings.pop('version', '')}: {_signature(model)}"]
    if sent := without_files(settings):
        comments.append(f'{sent}: sent by a client and in no file; to use this as a config.toml, add file = "…"')
    lines = ["# " + comment.replace("\n", "\\n") for comment in comments]
    say("\n".join([*lines, toml_of(settings)]))


@command.command(short_help="What models have done.")
@click.argument("name", required=False, shell_complete=model_names)
@_version
@socket_option
@json_option
def stats(name: str | None, version: int | None, socket: str | None, as_json: bool) -> None:
    """Requests, batches, how long they waited and ran; of a single model its batch sizes too.

    --json has everything, by the names of Triton's model statistics.
    """
    from vkqueue.client.sync import connect

    if version is not None and name is None:
        raise click.UsageError("--version goes with a model's name")
    with connect(socket, client_name="vkqueue model") as gpu:
        found = gpu.model_statistics(name, version)
    if as_json:
        dump({"ok": True, "model_stats": found})
        return
    show_statistics(found)
    for one in found if name is not None else ():
        show_batches(one)


@command.command(short_help="One request to a model.")
@_name
@click.argument("arguments", nargs=-1, metavar="[[INPUT=]VALUE]...", type=click.Path())
@_version
@click.option("--output", "wanted", multiple=True, metavar="NAME", help="Only this one. Repeatable.")
@click.option("--out", "files", multiple=True, callback=pairs, metavar="NAME=FILE", help="Write an output (.npy).")
@click.option("--head", type=click.IntRange(0), default=_HEAD, show_default=True, help="Numbers shown of each output.")
@click.option("--priority", type=click.IntRange(0), metavar="LEVEL", help="1 is served first.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="To wait for a batch.")
@click.option("--timing", is_flag=True, help="Show the daemon's times, and the size of the batch.")
@socket_option
@json_option
def infer(
    name: str,
    arguments: tuple[str, ...],
    version: int | None,
    wanted: tuple[str, ...],
    files: dict[str, str],
    head: int,
    priority: int | None,
    timeout: float | None,
    timing: bool,
    socket: str | None,
    as_json: bool,
) -> None:
    """Call a model once, and show what it answers.

    A VALUE goes to the INPUT of its name, else to the next one without any. `vkqueue model config NAME` shows them. It
    can be

    \b
      data.npy                   an array from a file
      1,2,3    0:16              numbers; a range: start, end (not in it), step
      '[1,2,3;4,5,6]'            samples of a batch
      zeros:2x16  ones:2x16      full:SHAPE:NUMBER, random:SHAPE:seed=7:high=100 too

    With one dimension too few it is a batch of one sample.

    \b
      vkqueue model infer minilm input_ids=101,7592,102 --out embedding=e.npy
    """
    from vkqueue.cli.results import Result, show_results
    from vkqueue.client.sync import connect

    with connect(socket, client_name="vkqueue model") as gpu:
        model = gpu.model(name, version)
        given = arrange(arguments, model.inputs)
        unknown = [output for output in files if output not in model.outputs]
        if unknown:
            raise InvalidError(f"--out: the model has no output {unknown[0]!r}; it has {', '.join(model.outputs)}")
        outputs = list(dict.fromkeys([*wanted, *files])) if wanted else list(model.outputs)
        value, times = model.infer(given, outputs=outputs, priority=priority, timeout=timeout, timing=True)
        arrays = value if isinstance(value, dict) else {outputs[0]: value}
        results = [Result(place, 0, output, array) for place, (output, array) in enumerate(arrays.items())]
        for result in results:
            if result.name in files:
                result.save(Path(files[result.name]))
        if as_json:
            summaries = [result.summary(head) for result in results]
            dump({"ok": True, "model": name, "results": summaries, "timing": times._asdict()})
            return
        show_results(results, head)
        if timing:
            made = table("queued µs", "on the device µs", "in all µs", "samples in the batch")
            add_row(made, times.queued_us, times.device_us or "not known", times.total_us, times.batch)
            show(made)


def arrange(arguments: Sequence[str], inputs: Mapping[str, ModelTensor]) -> dict[str, Any]:
    """The arrays of a request by input.

    Raises:
        InvalidError: one is missing, unknown, there twice, or written wrong.
        OSError: a file cannot be read.
    """
    found: dict[str, str] = {}
    loose: list[str] = []
    for text in arguments:
        name, equals, rest = text.partition("=")
        if not equals or (name not in inputs and not _NAME.fullmatch(name)):
            loose.append(text)
        elif name not in inputs:
            raise InvalidError(f"the model has no input {name!r}; it has {', '.join(inputs)}")
        elif name in found:
            raise InvalidError(f"the input {name!r} is given twice")
        else:
            found[name] = rest
    free = [name for name in inputs if name not in found]
    if len(loose) != len(free):
        takes = "; ".join(map(str, inputs.values()))
        raise InvalidError(f"the model takes {len(inputs)} inputs, got {len(found) + len(loose)}. They are {takes}")
    found.update(zip(free, loose, strict=True))
    return {name: _array(found[name], tensor) for name, tensor in inputs.items()}


def _array(text: str, tensor: ModelTensor) -> Any:
    import numpy as np

    from vkqueue.cli.values import array_value

    dtype = "uint8" if tensor.dtype.kind == "b" else str(tensor.dtype)
    if text.startswith("[") and text.endswith("]"):
        rows = [array_value(part, dtype, tensor.name) for part in text[1:-1].split(";")]
        if len({np.shape(row) for row in rows}) != 1:
            raise InvalidError(f"{tensor.name}: samples of one request have one shape; send others by themselves")
        array = np.stack(rows, tensor.batch_axis or 0)
    else:
        array = array_value(text, dtype, tensor.name)
    if not isinstance(array, np.ndarray):
        raise InvalidError(f"{tensor.name}: {text!r} is no input")
    if tensor.batch_axis is not None and array.ndim == len(tensor.shape) - 1:
        array = np.expand_dims(array, tensor.batch_axis)
    return array.astype(np.bool_) if tensor.dtype.kind == "b" and array.dtype == np.uint8 else array


def _signature(model: BaseModel) -> str:
    inputs, outputs = ("; ".join(map(str, side.values())) for side in (model.inputs, model.outputs))
    return f"{inputs} → {outputs}"
