"""Settings: defaults, checks, layers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vkqueue.cli.settings import load
from vkqueue.config import SECTIONS, Config, ConfigError, DaemonConfig, differences, from_toml

FILES = Path(__file__).parent.parent.parent / "config"


def test_the_sample_file_shows_every_default() -> None:
    text = (FILES / "vkqueue.toml").read_text()
    assert from_toml(str(FILES / "vkqueue.toml")) == Config()
    values = tomllib.loads(re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.MULTILINE))
    assert {section: set(keys) for section, keys in values.items()} == {s: set(k) for s, k in SECTIONS.items()}
    assert Config().replace(values, "sample") == Config()


def test_the_system_file_keeps_users_apart() -> None:
    config = from_toml(str(FILES / "system.toml"))
    assert config.isolation.mode == "strict"
    assert config.daemon.socket == "/run/vkqueue/vkqueue.sock"
    assert (config.daemon.mode, config.daemon.group, config.daemon.allow_groups) == (0o660, "vkqueue", ("vkqueue",))
    assert config.limits.max_queued_bytes < Config().limits.max_queued_bytes


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"daemn": {}}, r"\[daemn\]: no such section; did you mean daemon\?"),
        ({"daemon": 1}, r"daemon: expected a section \[daemon\], got 1"),
        ({"batching": {"max_batch_job": 1}}, r"batching.max_batch_job: no such setting; did you mean max_batch_jobs\?"),
        ({"batching": {"max_batch_jobs": "8"}}, r"batching.max_batch_jobs: expected an integer, got '8'"),
        ({"batching": {"max_batch_jobs": True}}, r"batching.max_batch_jobs: expected an integer, got True"),
        ({"batching": {"max_batch_jobs": 0}}, r"batching.max_batch_jobs: expected 1 to 65536, got 0"),
        ({"batching": {"batch_timeout_s": float("nan")}}, r"batching.batch_timeout_s: expected 0.01 to 86400, got nan"),
        ({"daemon": {"uvloop": 1}}, r"daemon.uvloop: expected true or false, got 1"),
        ({"daemon": {"allow_users": "me"}}, r"daemon.allow_users: expected a list of strings, got 'me'"),
        ({"daemon": {"mode": 0o1777}}, r"daemon.mode: expected 0 to 511, got 1023"),
        ({"device": {"descriptors": "pull"}}, r"device.descriptors: expected one of auto, push, sets, got 'pull'"),
        ({"device": {"select": [-1]}}, r"device.select: .* got the index -1"),
        ({"device": {"select": [True]}}, r"device.select: .* got True in it"),
        ({"device": {"select": 0}}, r"device.select: .* got 0"),
        ({"device": {"select": []}}, r"device.select: .* got \[\]"),
        ({"device": {"select": ["all", 0]}}, r"device.select: .* got 'all' in it"),
        ({"limits": {"max_memory_bytes": -1}}, r"limits.max_memory_bytes: expected at least 0, got -1"),
        (
            {"limits": {"max_output_bytes": 1 << 20}},
            r"limits.max_output_bytes: 1048576 is less than limits.max_message_bytes \(67108864\)",
        ),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        Config().replace(values, "some.toml")
    assert caught.value.code == "invalid"
    assert caught.value.message.startswith("some.toml: ")
    assert len(caught.value.problems) == 1


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Config().replace({"daemon": {"mode": "rw", "sockt": ""}, "jobs": {}}, "some.toml")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "daemon.mode", "daemon.sockt", "[jobs]",
    ]  # fmt: skip


def test_a_value_is_kept_in_the_form_of_its_kind() -> None:
    config = Config().replace(
        {"daemon": {"write_timeout_s": 3, "allow_users": ["a"]}, "device": {"select": [0, "H200"]}}, "x"
    )
    assert type(config.daemon.write_timeout_s) is float
    assert config.daemon.allow_users == ("a",)
    assert config.device.select == (0, "H200")
    assert config.replace({"device": {"select": "all"}}, "x").device.select == ("all",)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(b"[daemon\n")
    with pytest.raises(ConfigError, match=r"broken.toml: .*\n.*line 1"):
        from_toml(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="broken.toml"):
        from_toml(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        from_toml(str(tmp_path / "missing.toml"))


def test_layers_go_over_each_other(tmp_path: Path) -> None:
    path = tmp_path / "vkqueue.toml"
    path.write_text("[batching]\nmax_batch_jobs = 1\nbatches_in_flight = 1\nspin_us = 1\n")
    environ = {"VKQUEUE_BATCHING_MAX_BATCH_JOBS": "2", "VKQUEUE_BATCHING_SPIN_US": "2"}
    config = load(str(path), environ, {"batching": {"spin_us": 3}})
    assert (config.batching.batches_in_flight, config.batching.max_batch_jobs, config.batching.spin_us) == (1, 2, 3)


def test_the_environment_reaches_every_kind() -> None:
    environ = {
        "VKQUEUE_DAEMON_MODE": "0o660",
        "VKQUEUE_DAEMON_UVLOOP": "yes",
        "VKQUEUE_DAEMON_ALLOW_GROUPS": "render, video",
        "VKQUEUE_DAEMON_IDLE_EXIT_S": "1.5",
        "VKQUEUE_DEVICE_SELECT": "1,llvmpipe",
        "VKQUEUE_DEVICE_CACHE_DIR": "/cache",
        "OTHER_DAEMON_MODE": "1",
    }
    config = load(None, environ, {})
    daemon = config.daemon
    assert (daemon.mode, daemon.uvloop, daemon.idle_exit_s) == (0o660, True, 1.5)
    assert daemon.allow_groups == ("render", "video")
    assert config.device.select == (1, "llvmpipe")
    assert config.device.cache_dir == "/cache"


def test_the_switches_of_tvm_have_their_like() -> None:
    """S20."""
    environ = {
        "VKQUEUE_DISABLE_PUSH_DESCRIPTORS": "1",
        "VKQUEUE_DISABLE_DEDICATED_ALLOCATION": "1",
        "VKQUEUE_ENABLE_VALIDATION_LAYERS": "1",
        "VKQUEUE_DEBUG_SHADER_SAVEPATH": "/shaders",
    }
    device = load(None, environ, {}).device
    assert (device.descriptors, device.dedicated_allocation, device.validation) == ("sets", False, True)
    assert device.dump_shaders == "/shaders"
    assert load(None, {"VKQUEUE_DISABLE_PUSH_DESCRIPTORS": "0"}, {}).device.descriptors == "auto"


def test_wrong_variables_are_named() -> None:
    environ = {
        "VKQUEUE_DAEMON_UVLOP": "1",
        "VKQUEUE_BATCHING_SPIN_US": "many",
        "VKQUEUE_ENABLE_VALIDATION_LAYERS": "2",
    }
    with pytest.raises(ConfigError) as caught:
        load(None, environ, {})
    assert [problem.partition("=")[0] for problem in caught.value.problems] == sorted(environ)
    assert "did you mean uvloop?" in caught.value.message


@pytest.mark.parametrize(
    ("environ", "socket"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/7", "VKQUEUE_SOCKET": "/s"}, "/s"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/vkqueue/vkqueue.sock"),
    ],
)
def test_the_socket_is_the_users_own(environ: dict[str, str], socket: str) -> None:
    assert load(None, environ, {}).daemon.socket == socket


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"CACHE_DIRECTORY": "/var/cache/vkqueue", "HOME": "/h"}, "/var/cache/vkqueue"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/vkqueue"),
        ({"HOME": "/h"}, "/h/.cache/vkqueue"),
        ({}, ""),
    ],
)
def test_the_cache_has_a_place(environ: dict[str, str], folder: str) -> None:
    assert load(None, environ, {}).device.cache_dir == folder
    assert load(None, environ, {"device": {"cache_dir": ""}}).device.cache_dir == ""


def test_differences_are_named() -> None:
    other = Config(daemon=DaemonConfig(mode=0o660, group="render"))
    assert differences(Config(), other) == ["daemon.mode", "daemon.group"]
    assert differences(other, other) == []
