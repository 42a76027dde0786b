"""The daemon's settings: one frozen dataclass for each TOML section, checked in one pass.

Every layer (a file, the environment, the command line) is a mapping section → key → value that `Config.replace`
lays over another config. Nothing here reads the environment; `vkqueue.cli.settings` does and knows the order.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vkqueue.errors import InvalidError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class ConfigError(InvalidError):
    """Settings are wrong. The message lists every problem with its file and key; `problems` has them apart."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__("\n  ".join([f"{source}: wrong settings:", *problems]), {"problems": problems})
        self.problems = problems


def _setting(default: Any, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"low": low, "high": high, "choices": choices})


def _devices() -> Any:
    return field(default=("auto",), metadata={"devices": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """[daemon]: socket, who may connect, life cycle.

    Attributes:
        socket: path; empty for the user's own (see `vkqueue.address`). Ignored under socket activation.
        mode: permission bits of the socket file; 0o600 lets its owner in, 0o660 its group as well.
        group: group that the socket file is given, empty for the process's own.
        allow_users, allow_groups: names or numbers; a client must be one of the users or in one of the groups
            (supplementary groups count). Both empty: whoever the socket's mode lets in.
        max_clients: connections at once; one more is refused with `overloaded`.
        write_timeout_s: a client that takes none of its answers for so long is disconnected.
        drain_timeout_s: how long accepted jobs may take to finish after SIGTERM; 0 drops what is queued.
        idle_exit_s: exit after so long without a client; 0 for never.
        log_level: debug, info, warning or error.
        log_format: plain, journald (lines carry `<N>` priorities), or auto: journald when stderr is the journal.
        uvloop: use uvloop's event loop, if it is installed.
        switch_interval_us: how long a thread may keep the interpreter while another waits for it. Python's own
            5,000 would let the event loop hold up the device's thread far too long.
    """

    socket: str = _setting("")
    mode: int = _setting(0o600, 0, 0o777)
    group: str = _setting("")
    allow_users: tuple[str, ...] = _setting(())
    allow_groups: tuple[str, ...] = _setting(())
    max_clients: int = _setting(4096, 1, 1_000_000)
    write_timeout_s: float = _setting(30.0, 0.01, 86_400)
    drain_timeout_s: float = _setting(30.0, 0, 86_400)
    idle_exit_s: float = _setting(0.0, 0, 31_536_000)
    log_level: str = _setting("info", choices=("debug", "info", "warning", "error"))
    log_format: str = _setting("auto", choices=("auto", "plain", "journald"))
    uvloop: bool = _setting(False)
    switch_interval_us: int = _setting(500, 1, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """[device]: which devices are used, and how.

    Attributes:
        select: indices, UUIDs or parts of names; or ("all",); or ("auto",): all, but software devices (lavapipe)
            only where there is no other.
        descriptors: push (fails where the device cannot), sets (never pushed), or auto: pushed where possible.
        validation: turn the Khronos validation layers on (slow; for debugging).
        dedicated_allocation: give a buffer memory of its own where the driver prefers that.
        external_memory_host: let devices that can use the memory that clients share; else it is copied.
        debug_labels: put a label round each job and graph node, for tools such as RenderDoc.
        dump_shaders: folder to which each shader is written when a pipeline is built of it, as SPIR-V under the start
            of its SHA-256; empty for none.
        cache_dir: folder of the pipeline cache; "auto" for the user's cache folder, empty for none.
        waiter: who waits for fences: a companion thread, or the same thread that records when it has nothing
            to record.
        graph_barriers: where barriers stand in graphs: where they are needed, or before all nodes (to measure by).
    """

    select: tuple[int | str, ...] = _devices()
    descriptors: str = _setting("auto", choices=("auto", "push", "sets"))
    validation: bool = _setting(False)
    dedicated_allocation: bool = _setting(True)
    external_memory_host: bool = _setting(True)
    debug_labels: bool = _setting(False)
    dump_shaders: str = _setting("")
    cache_dir: str = _setting("auto")
    waiter: str = _setting("companion", choices=("companion", "same"))
    graph_barriers: str = _setting("needed", choices=("needed", "all"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """[batching]: when waiting jobs are submitted.

    Attributes:
        max_batch_jobs: jobs of one submission.
        max_batch_delay_us: how long the oldest job may wait for others while batches are in flight.
        batches_in_flight: submissions at once on one device.
        max_batch_gpu_ms: how long a batch may be thought to take on the device, from what its kernels took before; a
            job that takes longer has a batch to itself. 0: no bound.
        batch_timeout_s: a batch that runs longer is reported: its jobs not known to be finished get `timeout`.
        spin_us: for so long after a job the device's thread polls, for the fence of a lone job and for the next one,
            before it sleeps. Lowers latency where there are cores to spare, and burns one meanwhile.
    """

    max_batch_jobs: int = _setting(256, 1, 65_536)
    max_batch_delay_us: int = _setting(200, 0, 1_000_000)
    batches_in_flight: int = _setting(3, 1, 64)
    max_batch_gpu_ms: float = _setting(100.0, 0, 3_600_000)
    batch_timeout_s: float = _setting(30.0, 0.01, 86_400)
    spin_us: int = _setting(0, 0, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """[limits]: `max_…` for each connection, `total_…` for all together. Past a count the answer is `quota` or
    `overloaded`; past queued bytes or unread answers the connection is not read from until they sink.

    Attributes:
        max_message_bytes: one message, either way.
        max_device_pipelines: pipelines of one device, over all connections; the least recently used makes room.
        max_buffers, max_modules, max_pipelines: live objects; the least recently used pipeline makes room.
        max_graphs, max_graph_nodes: graphs, and nodes of one; their kernels count towards max_pipelines.
        max_many_launches: launches of one `dispatch_many`, which counts as one job.
        max_memory_bytes: device memory of its buffers, with what its graphs take; 0 for half of the device's.
        max_module_bytes: one module, source text included.
        max_shared_buffers: memory that clients share (`buffer.share`); a process can have 65,530 mappings in all.
        max_queued_jobs: dispatches and transfers not yet answered.
        max_queued_bytes: payload of requests not yet answered.
        max_output_bytes: answers not yet taken by the client.
        total_memory_bytes: device memory of all buffers on one device; 0 for all that the driver gives.
        total_queued_jobs, total_queued_bytes: as above, over all connections.
    """

    max_message_bytes: int = _setting(64 * MIB, 64 * KIB, 2 * GIB)
    max_buffers: int = _setting(65_536, 1, 16_777_216)
    max_memory_bytes: int = _setting(0, 0)
    max_modules: int = _setting(4_096, 1, 1_048_576)
    max_pipelines: int = _setting(1_024, 1, 1_048_576)
    max_graphs: int = _setting(256, 1, 1_048_576)
    max_graph_nodes: int = _setting(1_024, 1, 1_048_576)
    max_many_launches: int = _setting(65_536, 1, 1_048_576)
    max_device_pipelines: int = _setting(4_096, 1, 1_048_576)
    max_module_bytes: int = _setting(16 * MIB, KIB, 2 * GIB)
    max_shared_buffers: int = _setting(1_024, 0, 16_384)
    max_queued_jobs: int = _setting(4_096, 1, 1_048_576)
    max_queued_bytes: int = _setting(256 * MIB, 64 * KIB)
    max_output_bytes: int = _setting(256 * MIB, 64 * KIB)
    total_memory_bytes: int = _setting(0, 0)
    total_queued_jobs: int = _setting(262_144, 1)
    total_queued_bytes: int = _setting(2 * GIB, 64 * KIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationConfig:
    """[isolation]: how far clients are kept apart.

    Attributes:
        mode: strict also refuses what robust buffer access does not cover (dynamically indexed descriptor
            arrays); shared is for a user's own daemon.
        spirv_val: what an installed spirv-val has to say: advice (shown by `inspect`), or strict (binding;
            old releases reject modules that are right).
    """

    mode: str = _setting("shared", choices=("shared", "strict"))
    spirv_val: str = _setting("advice", choices=("advice", "strict"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperConfig:
    """[helper]: the processes that parse modules and run source compilers.

    Attributes:
        processes: how many; with two, one slow source or module does not hold up everybody's.
        memory_bytes: address space of each; one that needs more fails its request.
        timeout_s: time for one request; the process is then replaced.
    """

    processes: int = _setting(2, 1, 64)
    memory_bytes: int = _setting(2 * GIB, 64 * MIB)
    timeout_s: float = _setting(30.0, 0.1, 3_600)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsConfig:
    """[models]: what the daemon serves by itself.

    Attributes:
        repository: folder with a folder for each model, all of which are loaded at the start; empty for none.
        max_models: versions of models that are loaded at once.
    """

    repository: str = _setting("")
    max_models: int = _setting(1_024, 1, 65_536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of the daemon; each attribute is the TOML section of its name."""

    daemon: DaemonConfig = DaemonConfig()
    device: DeviceConfig = DeviceConfig()
    batching: BatchingConfig = BatchingConfig()
    limits: LimitsConfig = LimitsConfig()
    isolation: IsolationConfig = IsolationConfig()
    helper: HelperConfig = HelperConfig()
    models: ModelsConfig = ModelsConfig()

    def replace(self, values: Mapping[str, Any], source: str) -> Config:
        """This config with `values` (section → key → value) laid over it.

        Args:
            source: what an error calls the origin of `values`, such as a file's path.

        Raises:
            ConfigError: listing every unknown section or key, wrong type, value out of range, and value that
                does not go with another.
        """
        problems: list[str] = []
        sections: dict[str, Any] = {}
        for name, content in values.items():
            if name not in SECTIONS:
                problems.append(f"[{name}]: no such section{nearest(name, SECTIONS)}")
            elif not isinstance(content, Mapping):
                problems.append(f"{name}: expected a section [{name}], got {_shown(content)}")
            else:
                checked = _checked_section(name, content, problems)
                sections[name] = dataclasses.replace(getattr(self, name), **checked)
        config = dataclasses.replace(self, **sections)
        problems += _conflicts(config)
        if problems:
            raise ConfigError(source, problems)
        return config


SECTIONS: dict[str, dict[str, dataclasses.Field[Any]]] = {
    section.name: {item.name: item for item in dataclasses.fields(getattr(Config(), section.name))}
    for section in dataclasses.fields(Config)
}
"""Section → key → its dataclass field (default, and bounds in its metadata)."""


def from_toml(path: str) -> Config:
    """The defaults with a file's settings over them.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or holds wrong settings.
    """
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(path, [str(exc)]) from exc
    return Config().replace(values, path)


def differences(old: Config, new: Config) -> list[str]:
    """The settings in which two configs differ, as `section.key`."""
    return [
        f"{section}.{key}"
        for section, keys in SECTIONS.items()
        for key in keys
        if getattr(getattr(old, section), key) != getattr(getattr(new, section), key)
    ]


def _checked_section(name: str, content: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The section's good values, normalized; what is wrong with the others goes into `problems`."""
    checked: dict[str, Any] = {}
    for key, value in content.items():
        known = SECTIONS[name].get(key)
        if known is None:
            problems.append(f"{name}.{key}: no such setting{nearest(key, SECTIONS[name])}")
            continue
        try:
            checked[key] = _checked(known, value)
        except ValueError as exc:
            problems.append(f"{name}.{key}: {exc}")
    return checked


def _checked(known: dataclasses.Field[Any], value: Any) -> Any:
    """One value as its dataclass wants it. Raises ValueError with what was expected and what came."""
    if "devices" in known.metadata:
        return _checked_devices(value)
    default: Any = known.default
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"expected a list of strings, got {_shown(value)}")
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not type(default):
        raise ValueError(f"expected {_KINDS[type(default)]}, got {_shown(value)}")
    if isinstance(value, str):
        choices = known.metadata["choices"]
        if choices and value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {_shown(value)}")
        return value
    _check_range(value, known.metadata["low"], known.metadata["high"])
    return value


_KINDS: dict[type, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def _check_range(value: float, low: float | None, high: float | None) -> None:
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        bounds = f"{low} to {high}" if high is not None else f"at least {low}"
        raise ValueError(f"expected {bounds}, got {value}")


def _checked_devices(value: Any) -> tuple[int | str, ...]:
    wrong = 'expected "auto", "all", or a list of device indices, UUIDs or parts of names'
    if value in ("auto", "all"):
        return (value,)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{wrong}, got {_shown(value)}")
    for item in value:
        alone = item in ("auto", "all", "") and len(value) > 1
        if isinstance(item, bool) or not isinstance(item, int | str) or alone:
            raise ValueError(f"{wrong}, got {_shown(item)} in it")
        if isinstance(item, int) and item < 0:
            raise ValueError(f"{wrong}, got the index {item}")
    return tuple(value)


def _conflicts(config: Config) -> list[str]:
    """What is wrong between settings: a bound below what it has to hold would stop a client for good."""
    limits = config.limits
    holds = (
        ("max_queued_bytes", "max_message_bytes"),
        ("max_output_bytes", "max_message_bytes"),
        ("total_queued_bytes", "max_queued_bytes"),
        ("total_queued_jobs", "max_queued_jobs"),
        ("max_message_bytes", "max_module_bytes"),
    )
    return [
        f"limits.{large}: {getattr(limits, large)} is less than limits.{small} ({getattr(limits, small)})"
        for large, small in holds
        if getattr(limits, large) < getattr(limits, small)
    ]


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """The end of a message about an unknown name: the known one that resembles it, else all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}" if known else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
