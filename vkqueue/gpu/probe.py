"""Look for devices in a child process, so that a driver that crashes or hangs takes only the child down.

``python -m vkqueue.gpu.probe`` is the child: it lists and opens every device, and writes a line of JSON. When it dies,
`probe_devices` tries each driver manifest by itself to find the culprit, and lists the devices of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkqueue.errors import VkqueueError
from vkqueue.gpu.device import DeviceOptions, list_devices, open_device, open_instance

DRIVER_FILES = "VK_DRIVER_FILES"
_OLD_DRIVER_FILES = "VK_ICD_FILENAMES"  # what loaders before 1.3.207 read
_ADDED_DRIVER_FILES = "VK_ADD_DRIVER_FILES"

NO_DRIVER = (
    "no Vulkan driver is installed; install one: package mesa-vulkan-drivers (lavapipe, its software driver, needs no "
    "GPU), or the GPU vendor's driver"
)
NO_DEVICE = (
    "the installed drivers found no device they can use; is the GPU's driver installed, and may this user open "
    "/dev/dri/renderD* or /dev/nvidia*? Package mesa-vulkan-drivers has lavapipe, which needs no GPU"
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the search for devices found.

    Attributes:
        status: "ok"; "no_package", "no_loader", "no_driver", "no_device"; "crashed" when every driver crashed or hung;
            "failed" for any other error.
        message: what is wrong and what to install or look at; empty when there is nothing to say.
        devices: as in the `devices` answer, plus `error`: why it could not be opened, or None.
        excluded: (driver manifest, what it did) of each driver that crashed or hung.
        environment: variables to set before Vulkan is loaded here, so that excluded drivers stay out.
    """

    status: str
    message: str = ""
    devices: tuple[dict[str, Any], ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


def probe_devices(environ: Mapping[str, str], timeout_s: float = 20.0) -> ProbeResult:
    """Look for devices; blocks, for at most `timeout_s` a driver.

    Args:
        environ: the environment for the child, and where driver manifests are looked for.
    """
    report, died = _run_child(environ, timeout_s)
    if report is not None:
        return _explain(_result(report), environ)
    good, excluded = [], []
    for manifest in manifests(environ):
        report, fate = _run_child({**environ, **_only([manifest])}, timeout_s)
        if report is None:
            excluded.append((str(manifest), fate))
        else:
            good.append(manifest)
    if not excluded:
        return ProbeResult("failed", f"the search for Vulkan devices {died}, but no driver does so alone")
    blame = "; ".join(f"the driver of {path} {fate}" for path, fate in excluded)
    if not good:
        return ProbeResult("crashed", f"{blame}: update or remove it", excluded=tuple(excluded))
    environment = _only(good)
    report, died = _run_child({**environ, **environment}, timeout_s)
    if report is None:
        return ProbeResult("crashed", f"{blame}; without it, the search {died}", excluded=tuple(excluded))
    rest = _result(report)
    message = f"{blame}: it is left out; update or remove it" + (f". {rest.message}" if rest.message else "")
    return ProbeResult(rest.status, message, rest.devices, tuple(excluded), environment)


def manifests(environ: Mapping[str, str]) -> list[Path]:
    """The driver manifests that the loader would read, in its order of search."""
    override = environ.get(DRIVER_FILES) or environ.get(_OLD_DRIVER_FILES)
    if override:
        roots = [Path(entry) for entry in override.split(":") if entry]
    else:
        added = environ.get(_ADDED_DRIVER_FILES, "")
        roots = [Path(entry) for entry in added.split(":") if entry]
        roots += [base / "vulkan/icd.d" for base in _search_path(environ)]
    found: dict[Path, None] = {}
    for root in roots:
        files = sorted(root.glob("*.json")) if root.is_dir() else [root]
        found.update(dict.fromkeys(path for path in files if path.is_file()))
    return list(found)


def _explain(result: ProbeResult, environ: Mapping[str, str]) -> ProbeResult:
    """Add where was looked, for the two faults that a path explains."""
    if result.status not in ("no_driver", "no_device"):
        return result
    found = ", ".join(map(str, manifests(environ))) or "none"
    where = f"; driver manifests: {found}"
    for name in (DRIVER_FILES, _OLD_DRIVER_FILES):
        if environ.get(name):
            where += f" ({name} is set to {environ[name]})"
            break
    return dataclasses.replace(result, message=result.message + where)


def _search_path(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HOME") or "/nonexistent")
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    yield from map(Path, (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"))
    yield from map(Path, ("/usr/local/etc", "/etc"))
    yield Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    yield from map(Path, (environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":"))


def _only(files: list[Path]) -> dict[str, str]:
    joined = ":".join(map(str, files))
    return {DRIVER_FILES: joined, _OLD_DRIVER_FILES: joined}


def _run_child(environ: Mapping[str, str], timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """(the child's report, "") or (None, how it ended)."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH", ""))))
    try:
        # -P: the working directory is the user's, and no place to import from.
        child = subprocess.run(
            [sys.executable, "-P", "-m", "vkqueue.gpu.probe"],
            env={**environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"did not answer within {timeout_s:g} s"
    if child.returncode < 0:
        return None, f"crashed ({_signal_name(-child.returncode)})"
    try:
        report = json.loads(child.stdout)
    except ValueError:
        report = None
    if not isinstance(report, dict):
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return None, f"ended with status {child.returncode}: {last}"
    return report, ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _result(report: dict[str, Any]) -> ProbeResult:
    return ProbeResult(report["status"], report["message"], tuple(report["devices"]))


# --- the child ---------------------------------------------------------------------------------------------------


def look() -> dict[str, Any]:
    """List and open every device of this process: {status, message, devices}."""
    instance = None
    try:
        instance = open_instance(app_name="vkqueue probe")
        physicals = list_devices(instance)
        devices = []
        for physical in physicals:
            error = None
            try:
                open_device(physical, DeviceOptions()).close()
            except VkqueueError as fault:
                error = fault.message
            devices.append({**physical.info.to_wire(), "error": error})
    except VkqueueError as fault:
        return _failure(fault, found_instance=instance is not None)
    finally:
        if instance is not None:
            instance.close()
    if not devices:
        return {"status": "no_device", "message": NO_DEVICE, "devices": []}
    return {"status": "ok", "message": "", "devices": devices}


def _failure(fault: VkqueueError, *, found_instance: bool) -> dict[str, Any]:
    data = fault.data or {}
    status, message = "failed", fault.message
    if data.get("missing") in ("loader", "package"):
        status = f"no_{data['missing']}"
    elif data.get("result") == "VK_ERROR_INCOMPATIBLE_DRIVER" and not found_instance:
        status, message = "no_driver", NO_DRIVER
    elif data.get("result") == "VK_ERROR_INITIALIZATION_FAILED" and found_instance:
        # How the loader says that no driver has a device.
        status, message = "no_device", NO_DEVICE
    return {"status": status, "message": message, "devices": []}


def main() -> None:
    """Write what `look` finds as one line to standard output, which drivers cannot write to meanwhile."""
    with contextlib.ExitStack() as stack:
        answer = stack.enter_context(os.fdopen(os.dup(1), "w"))
        os.dup2(2, 1)
        json.dump(look(), answer)
        answer.write("\n")


if __name__ == "__main__":
    main()
