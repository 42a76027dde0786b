"""`vkqueue inspect`: what a module takes and needs, and which devices run it. Works without a daemon and a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.text import Text

from vkqueue.cli import tools
from vkqueue.cli.module_file import ModuleFile, header, kernel_names, read
from vkqueue.cli.options import json_option, socket_option
from vkqueue.cli.output import add_row, dump, plain, say, show, table
from vkqueue.errors import ConnectionLostError, NotFoundError, VkqueueError
from vkqueue.kernels.disasm import disassemble
from vkqueue.kernels.requirements import unsupported
from vkqueue.kernels.validate import spirv_val

Kernel = Mapping[str, Any]

THIS_MACHINE = "this machine"


@click.command(short_help="What a module takes and needs, and which devices run it.")
@click.argument("file", type=click.Path(dir_okay=False, exists=True))
@click.option("--kernel", metavar="NAME", shell_complete=kernel_names, help="Only this one.")
@click.option("--asm", is_flag=True, help="The listing too: spirv-dis' where it is installed, else our own.")
@click.option("--local", is_flag=True, help="Ask this machine's drivers, and no daemon.")
@click.option("--offline", is_flag=True, help="Ask no device at all.")
@socket_option
@json_option
def command(
    file: str, kernel: str | None, asm: bool, local: bool, offline: bool, socket: str | None, as_json: bool
) -> None:
    """Show the kernels of FILE (SPIR-V, one of TVM's formats, or source text): arguments and what is done to them,
    scalars, specialization constants, needs; what each device says to it; and what spirv-val says, where it is
    installed.

    Devices are those of the daemon, if one answers, else those that this machine's drivers have.

    Exit status: 0, also if no device runs it; 1 if the module is broken or has no kernel.
    """
    module = read(file)
    kernels = module.analysis["kernels"]
    if kernel is not None:
        if kernel not in kernels:
            raise NotFoundError(f"the module has no kernel {kernel!r}; it has {', '.join(kernels)}")
        kernels = {kernel: kernels[kernel]}
    source, devices = ("", []) if offline else devices_for(socket, local)
    said = ask_daemon(socket, module, devices) if source not in ("", THIS_MACHINE) else {}
    shaders = {name: spirv for name, spirv in module.shaders().items() if name in kernels or not name}
    report = {
        "ok": True,
        "file": file,
        "form": module.form,
        "bytes": len(module.data),
        "modules": {name: about(spirv, devices) for name, spirv in shaders.items()},
        "kernels": {name: describe(module, name, each, devices, said) for name, each in kernels.items()},
        "devices_of": source,
    }
    if asm:
        report["asm"] = {name: listing(spirv) for name, spirv in shaders.items()}
    if as_json:
        dump(report)
    else:
        _show(report)


def devices_for(socket: str | None, local: bool) -> tuple[str, list[Mapping[str, Any]]]:
    """(whose they are, the devices): the daemon's, else this machine's."""
    from vkqueue.cli.devices import of_daemon, of_machine

    if not local:
        try:
            found = of_daemon(socket, False)
            return found["server"], found["devices"]
        except ConnectionLostError:
            if socket is not None:
                raise
    return THIS_MACHINE, of_machine()["devices"]


def ask_daemon(
    socket: str | None, module: ModuleFile, devices: Sequence[Mapping[str, Any]]
) -> dict[int, dict[str, str | None]]:
    """By device, why the daemon does not run a kernel on it (None if it does): its settings have a say in it too."""
    from vkqueue.client.sync import connect

    said: dict[int, dict[str, str | None]] = {}
    for device in devices:
        with connect(socket, device=device["index"], client_name="vkqueue inspect") as gpu:
            try:
                loaded = gpu.load(module.origin).kernels
                said[device["index"]] = {name: kernel.unsupported or None for name, kernel in loaded.items()}
            except VkqueueError as error:
                said[device["index"]] = {"": error.message}
    return said


def about(spirv: bytes, devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Head of a SPIR-V module, and what spirv-val says of it (None where it is not installed)."""
    said = spirv_val(spirv, max((device["api_version"] for device in devices), default="1.3"))
    try:
        known = header(spirv)
    except VkqueueError as error:
        known = {"fault": error.message}
    return {**known, "bytes": len(spirv), "spirv_val": None if said is None else {"valid": said[0], "text": said[1]}}


def describe(
    module: ModuleFile,
    name: str,
    kernel: Kernel,
    devices: Sequence[Mapping[str, Any]],
    said: Mapping[int, Mapping[str, str | None]],
) -> dict[str, Any]:
    """A kernel's reflection, with the dtypes of its buffers and what each device says.

    Args:
        said: what the daemon says, by device and kernel; of the whole module under "".
    """
    dtypes = module.element_types(name)
    bindings = [{**b, "dtype": dtypes.get((b["set"], b["binding"]))} for b in kernel["bindings"]]
    public = {key: value for key, value in kernel.items() if key not in ("needs", "tvm")}
    verdicts = []
    for device in devices:
        daemons = said.get(device["index"], {})
        reason = verdict(kernel, device) or daemons.get(name, daemons.get(""))
        verdicts.append({"index": device["index"], "name": device["name"], "unsupported": reason})
    needs = {"shared_bytes": 0, "local_size_spec": False, "features": [], **kernel["needs"]}
    needs = {key: needs[key] for key in ("shared_bytes", "local_size_spec", "features", "refuse")}
    return {**public, "bindings": bindings, "needs": needs, "devices": verdicts}


def verdict(kernel: Kernel, device: Mapping[str, Any]) -> str | None:
    """Why a device does not run a kernel, None if it does."""
    if device["error"]:
        return f"the device cannot be used: {device['error']}"
    return unsupported(
        kernel, device["limits"], device["features"], api_version=device["api_version"], specializable=True
    )


def listing(spirv: bytes) -> str:
    """The disassembly."""
    return tools.spirv_dis(spirv) or disassemble(spirv)


def _show(report: Mapping[str, Any]) -> None:
    say(f"{report['file']}: {report['form']}, {report['bytes']:,} bytes", "bold")
    for name, module in report["modules"].items():
        made = f"written by {module['generator']}, " if "generator" in module else ""
        version = module.get("spirv_version", module.get("fault"))
        say(f"{name + ': ' if name else ''}SPIR-V {version}, {made}{_opinion(module['spirv_val'])}")
    for name, kernel in report["kernels"].items():
        _show_kernel(name, kernel)
        _show_devices(kernel, report["devices_of"])
    for name, text in report.get("asm", {}).items():
        say(f"; {name}\n{text}" if name else f"\n{text}")


def _opinion(said: Mapping[str, Any] | None) -> str:
    if said is None:
        return "spirv-val is not installed (package spirv-tools)"
    return "spirv-val finds no fault" if said["valid"] else f"spirv-val (advice only) says: {said['text']}"


def _show_kernel(name: str, kernel: Kernel) -> None:
    x, y, z = kernel["local_size"]
    shared = kernel["needs"]["shared_bytes"]
    say()
    say(f"kernel {name}", "bold")
    say(
        f"work group {x} x {y} x {z}"
        + (" (set by specialization constants)" if kernel["needs"]["local_size_spec"] else "")
        + (f", {shared:,} bytes shared" if shared else "")
        + (f"; capabilities {' '.join(kernel['capabilities'])}" if kernel["capabilities"] else "")
    )
    if "launch_param_tags" in kernel:
        say(f"TVM launch parameters: {' '.join(kernel['launch_param_tags']) or 'none'}")
    if kernel["bindings"]:
        made = table(">argument", "name", "kind", "access", "elements", ">at least", ">set", ">binding")
        for place, b in enumerate(kernel["bindings"]):
            kind = b["kind"] if b["count"] == 1 else f"{b['kind']} [{b['count']}]"
            elements = " ".join(filter(None, (b["dtype"], f"({b['stride']} B)" if b["stride"] else "")))
            least = f"{b['size']:,} B" if b["size"] else ""
            add_row(made, place, b["name"], kind, b["access"], elements, least, b["set"], b["binding"])
        show(made)
    _show_numbers("scalar", kernel["scalars"], "offset", "where")
    for b in kernel["bindings"]:
        _show_numbers(f"member of {b['name'] or 'the uniform block'}", b.get("members", ()), "offset")
    _show_numbers("specialization constant", kernel["specialization"], "id", "default")


def _show_numbers(what: str, numbers: Sequence[Mapping[str, Any]], *columns: str) -> None:
    if not numbers:
        return
    made = table(what, "type", *(f">{column}" for column in columns))
    for number in numbers:
        count = f"[{number['count']}]" if number.get("count") is not None else ""
        add_row(made, number["name"], number["type"] + count, *(number.get(column, "") for column in columns))
    show(made)


def _show_devices(kernel: Kernel, source: str) -> None:
    for device in kernel["devices"]:
        reason = device["unsupported"]
        line = Text(f"device {device['index']} ({plain(device['name'])}) of {source}: ")
        line.append("runs it" if reason is None else f"does not run it: {plain(reason)}", "red" if reason else "green")
        show(line)
    if source and not kernel["devices"]:
        say(f"no device of {source} to ask; see `vkqueue doctor`")
