"""Looking for devices: what each fault is called, and a driver that crashes takes only a child down (rule 34)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vkqueue import errors
from vkqueue.gpu import probe
from vkqueue.gpu.instance import Instance
from vkqueue.gpu.probe import manifests, probe_devices

GOOD = {"status": "ok", "message": "", "devices": [{"name": "good", "error": None}]}
NONE = {"status": "no_device", "message": "none", "devices": []}


class Children:
    """Stands in for the child: `fates` by manifest name; a child with several takes the worst of them."""

    def __init__(self, **fates: Any) -> None:
        self.fates = fates
        self.ran: list[str] = []

    def __call__(self, command: list[str], *, env: Mapping[str, str], timeout: float, **rest: Any) -> Any:
        files = [Path(f).stem for f in env["VK_DRIVER_FILES"].split(":") if f]
        self.ran.append("+".join(files))
        fates = [self.fates[name] for name in files]
        if "hangs" in fates:
            raise subprocess.TimeoutExpired(command, timeout)
        if "crashes" in fates:
            return subprocess.CompletedProcess(command, -11, b"", b"")
        if "exits" in fates:
            return subprocess.CompletedProcess(command, 3, b"", b"first\nno such symbol\n")
        best = next((fate for fate in fates if fate["devices"]), fates[0])
        return subprocess.CompletedProcess(command, 0, json.dumps(best).encode(), b"")


def environment(directory: Path, *names: str) -> dict[str, str]:
    files = []
    for name in names:
        (directory / f"{name}.json").write_text("{}")
        files.append(str(directory / f"{name}.json"))
    return {"VK_DRIVER_FILES": ":".join(files)}


class TestBlame:
    def test_one_child_is_enough_when_nothing_is_wrong(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        children = Children(a=GOOD)
        monkeypatch.setattr(probe.subprocess, "run", children)
        result = probe_devices(environment(tmp_path, "a"))
        assert (result.status, result.message, result.excluded, result.environment) == ("ok", "", (), {})
        assert children.ran == ["a"]

    @pytest.mark.parametrize(
        ("fate", "words"),
        [("crashes", "SIGSEGV"), ("hangs", "did not answer within 7 s"), ("exits", "status 3: no such symbol")],
    )
    def test_the_driver_that_takes_its_child_down_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str, words: str
    ) -> None:
        children = Children(a=GOOD, bad=fate, c=NONE)
        monkeypatch.setattr(probe.subprocess, "run", children)
        result = probe_devices(environment(tmp_path, "a", "bad", "c"), timeout_s=7)
        assert result.status == "ok"
        assert [d["name"] for d in result.devices] == ["good"]
        ((path, did),) = result.excluded
        assert path == str(tmp_path / "bad.json")
        assert words in did
        assert path in result.message
        assert result.environment["VK_DRIVER_FILES"] == f"{tmp_path / 'a.json'}:{tmp_path / 'c.json'}"
        assert children.ran == ["a+bad+c", "a", "bad", "c", "a+c"]

    def test_every_driver_bad(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probe.subprocess, "run", Children(a="crashes", b="hangs"))
        result = probe_devices(environment(tmp_path, "a", "b"))
        assert result.status == "crashed"
        assert [Path(path).stem for path, _ in result.excluded] == ["a", "b"]
        assert "a.json" in result.message and "b.json" in result.message

    def test_without_the_bad_one_there_is_no_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probe.subprocess, "run", Children(a=NONE, b="crashes"))
        result = probe_devices(environment(tmp_path, "a", "b"))
        assert result.status == "no_device"
        assert "b.json" in result.message

    def test_a_crash_that_no_driver_does_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        children = Children(a=GOOD, b=GOOD)

        def together(command: list[str], *, env: Mapping[str, str], **rest: Any) -> Any:
            if ":" in env["VK_DRIVER_FILES"]:
                return subprocess.CompletedProcess(command, -6, b"", b"")
            return children(command, env=env, **rest)

        monkeypatch.setattr(probe.subprocess, "run", together)
        result = probe_devices(environment(tmp_path, "a", "b"))
        assert result.status == "failed"
        assert "SIGABRT" in result.message

    def test_where_was_looked_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probe.subprocess, "run", Children(a=NONE))
        result = probe_devices(environment(tmp_path, "a"))
        assert str(tmp_path / "a.json") in result.message
        assert "VK_DRIVER_FILES is set" in result.message


class TestManifests:
    def test_the_loaders_places_in_its_order(self, tmp_path: Path) -> None:
        places = {"XDG_CONFIG_HOME": "c", "XDG_DATA_HOME": "d", "XDG_DATA_DIRS": "e"}
        for name in places.values():
            (tmp_path / name / "vulkan/icd.d").mkdir(parents=True)
            (tmp_path / name / "vulkan/icd.d/x.json").write_text("{}")
        (tmp_path / "e/vulkan/icd.d/notes.txt").write_text("")
        found = manifests({key: str(tmp_path / name) for key, name in places.items()})
        inside = [path for path in found if tmp_path in path.parents]
        assert [path.relative_to(tmp_path).parts[0] for path in inside] == ["c", "d", "e"]

    def test_the_variable_names_files_and_folders_and_ends_the_search(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        for name in ("folder/b.json", "folder/a.json", "one.json"):
            (tmp_path / name).write_text("{}")
        asked = f"{tmp_path / 'one.json'}:{tmp_path / 'folder'}:{tmp_path / 'absent.json'}"
        found = manifests({"VK_DRIVER_FILES": asked})
        assert [path.name for path in found] == ["one.json", "a.json", "b.json"]
        assert manifests({"VK_ICD_FILENAMES": asked}) == found


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (errors.UnsupportedError("install libvulkan1", {"missing": "loader"}), "no_loader", "libvulkan1"),
        (errors.UnsupportedError("pip install", {"missing": "package"}), "no_package", "pip"),
        (
            errors.UnsupportedError("x", {"call": "vkCreateInstance", "result": "VK_ERROR_INCOMPATIBLE_DRIVER"}),
            "no_driver",
            "mesa-vulkan-drivers",
        ),
        (errors.OutOfDeviceMemoryError("the host is full"), "failed", "the host is full"),
    ],
)
def test_each_fault_has_its_status_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, fault: errors.VkqueueError, status: str, words: str
) -> None:
    def fail(**options: Any) -> None:
        raise fault

    monkeypatch.setattr(probe, "open_instance", fail)
    report = probe.look()
    assert report["status"] == status
    assert words in report["message"]
    assert report["devices"] == []


@pytest.mark.gpu
class TestForReal:
    def test_the_device_is_found_and_can_be_opened(self, instance: Instance) -> None:
        result = probe_devices(os.environ)
        assert result.status == "ok", result.message
        assert result.devices[0]["error"] is None
        assert result.devices[0]["limits"]["maxComputeWorkGroupInvocations"] >= 128

    def test_a_driver_that_aborts_the_process_is_left_out(self, instance: Instance, tmp_path: Path) -> None:
        """The driver is played by the child's start-up code, which aborts when its manifest is listed."""
        (tmp_path / "sitecustomize.py").write_text(
            "import os\nif 'broken.json' in os.environ.get('VK_DRIVER_FILES', ''): os.abort()\n"
        )
        (tmp_path / "broken.json").write_text("{}")
        driver = os.environ["VK_DRIVER_FILES"]
        result = probe_devices(
            {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))),
                "VK_DRIVER_FILES": f"{tmp_path / 'broken.json'}:{driver}",
            }
        )
        assert result.status == "ok"
        assert result.excluded == ((str(tmp_path / "broken.json"), "crashed (SIGABRT)"),)
        assert result.environment["VK_DRIVER_FILES"] == driver

    def test_a_device_that_does_not_open_says_why(self, instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object) -> None:
            raise errors.OutOfDeviceMemoryError("nothing left")

        monkeypatch.setattr(probe, "open_device", fail)
        report = probe.look()
        assert [device["error"] for device in report["devices"]] == ["nothing left"] * len(report["devices"])
