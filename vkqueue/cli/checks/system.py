"""Limits, the pipeline cache's folder, and settings."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from vkqueue.cli.checks import Finding, Machine, ok, problem, warning
from vkqueue.cli.output import size
from vkqueue.cli.settings import load
from vkqueue.config import Config, ConfigError

# A thousand clients and the daemon's own files.
_ENOUGH_FILES = 4096
# Drivers that pin memory of the host want a share of it; containers are often started with 64 KiB.
_ENOUGH_LOCKED = 8 << 20


def check(machine: Machine) -> Iterator[Finding]:
    """What the daemon will run with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft:,}; the daemon raises it to {_shown(hard)}"
    if 0 <= hard < _ENOUGH_FILES:
        advice = "raise LimitNOFILE= of the unit, or nofile in /etc/security/limits.conf"
        yield warning("open files (RLIMIT_NOFILE)", text + ", which is few: each client takes one", advice)
    else:
        yield ok("open files (RLIMIT_NOFILE)", text)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shown = "no limit" if locked == resource.RLIM_INFINITY else size(locked)
    if 0 <= locked < _ENOUGH_LOCKED:
        advice = "raise LimitMEMLOCK= of the unit, memlock in /etc/security/limits.conf, --ulimit of a container"
        yield warning("locked memory (RLIMIT_MEMLOCK)", f"{shown}: some drivers pin memory, and may fail", advice)
    else:
        yield ok("locked memory (RLIMIT_MEMLOCK)", shown)
    config, finding = _settings(machine)
    yield finding
    yield _cache(config.device.cache_dir)


def _shown(limit: int) -> str:
    return "what the kernel gives" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _settings(machine: Machine) -> tuple[Config, Finding]:
    path = machine.environ.get("VKQUEUE_CONFIG")
    where = f"{path}, with the environment" if path else "no file ($VKQUEUE_CONFIG is not set), the environment"
    try:
        return load(path, machine.environ, {}), ok("settings", f"{where}: no fault found")
    except ConfigError as error:
        return load(None, {}, {}), problem("settings", error.message, "vkqueue config check")


def _cache(folder: str) -> Finding:
    name = "pipeline cache"
    if not folder:
        return warning(name, "none: pipelines are compiled at each start", "set device.cache_dir or $XDG_CACHE_HOME")
    place = Path(folder)
    while not place.exists() and place != place.parent:
        place = place.parent  # what is missing will be made in it
    if os.access(place, os.W_OK | os.X_OK) and place.is_dir():
        return ok(name, folder)
    return warning(name, f"{folder} cannot be written to (by {place})", "set device.cache_dir, or correct its owner")
