"""`vkqueue doctor`: each fault by its own words and remedy, on machines made for the purpose."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from vkqueue.cli import doctor
from vkqueue.cli.checks import Finding, Machine, Status, child, daemon, drivers, loader, nodes, programs, system
from vkqueue.cli.local import ProbeResult
from vkqueue.version import __version__

ROOT = Path(__file__).parents[3]

# Takes the Vulkan loader away from every Python process that has this on its path.
NO_LOADER = """
import ctypes, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name == "vulkan._vulkan":
            raise OSError("Cannot find Vulkan SDK version")

sys.meta_path.insert(0, Nothing())
opened = ctypes.CDLL.__init__

def opening(self, name, *rest, **options):
    if name and "libvulkan.so" in name:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    opened(self, name, *rest, **options)

ctypes.CDLL.__init__ = opening
"""

CRASHING_DRIVER = """
#include <stdlib.h>
int vk_icdNegotiateLoaderICDInterfaceVersion(unsigned *version) { abort(); }
void *vk_icdGetInstanceProcAddr(void *instance, const char *name) { abort(); }
"""
CRASHING_LIBRARY = """
#include <stdlib.h>
__attribute__((constructor)) static void start(void) { abort(); }
"""


@pytest.fixture
def machine(clean: None, tmp_path: Path) -> Machine:
    """One without any node or driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    rest = {name: value for name, value in os.environ.items() if not name.startswith("VK_")}
    return Machine(environ=rest, dev=tmp_path / "dev", proc=tmp_path / "proc")


def manifest(folder: Path, name: str, library: object) -> Path:
    path = folder / name
    icd = {"library_path": str(library), "api_version": "1.1.0"}
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return path


def with_drivers(machine: Machine, *paths: Path) -> Machine:
    return replace(machine, environ={**machine.environ, "VK_DRIVER_FILES": ":".join(map(str, paths))})


def one(findings: list[Finding], status: Status) -> Finding:
    (found,) = (finding for finding in findings if finding.status is status)
    return found


class TestNoLoader:
    @pytest.fixture
    def environ(self, clean: None, tmp_path: Path) -> dict[str, str]:
        (tmp_path / "sitecustomize.py").write_text(NO_LOADER)
        return {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "HOME": str(tmp_path)}

    def test_it_is_told_with_what_to_install(self, environ: dict[str, str]) -> None:
        """Rule 33, with everything in processes of its own, as a user has it."""
        command = [sys.executable, "-m", "vkqueue", "doctor", "--json"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=50)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        report = json.loads(done.stdout)
        assert report["ok"] is False
        (found,) = (f for f in report["sections"]["Vulkan"] if f["name"] == "loader")
        assert found["status"] == "problem" and "libvulkan.so.1 cannot be opened" in found["text"]
        for package in ("libvulkan1", "vulkan-loader"):
            assert package in found["advice"]
        assert all("opens; nothing more can be tried" in f["text"] for f in report["sections"]["Drivers"]
                   if f["name"].startswith("/usr/share/vulkan/icd.d/lvp"))  # fmt: skip
        (devices,) = report["sections"]["Devices, as the daemon sees them"]
        assert devices["status"] == "problem" and "libvulkan1" in devices["text"]

    def test_by_another_name(self, machine: Machine) -> None:
        found = list(loader.check(replace(machine, loader="libvulkan-absent.so.1")))
        assert "libvulkan-absent.so.1: cannot open shared object file" in one(found, Status.PROBLEM).text

    def test_no_package(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        def absent(name: str) -> str:
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", absent)
        first = next(iter(loader.check(machine)))
        assert first.status is Status.PROBLEM and "pip install 'vulkan" in first.advice


class TestLayers:
    def answer(self, monkeypatch: pytest.MonkeyPatch, *layers: str) -> None:
        said = {"path": "/lib/libvulkan.so.1.2.3", "version": "1.2.3", "layers": list(layers)}
        monkeypatch.setattr(loader, "ask", lambda *args: said)

    def test_one_that_is_missing(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer(monkeypatch, "VK_LAYER_MESA_overlay")
        found = one(list(loader.check(machine)), Status.WARNING)
        assert "vulkan-validationlayers" in found.advice and "VK_LAYER_MESA_overlay; " in found.text

    def test_one_that_is_forced(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer(monkeypatch, "VK_LAYER_KHRONOS_validation")
        forced = replace(machine, environ={**machine.environ, "VK_INSTANCE_LAYERS": "VK_LAYER_x"})
        assert "is set to VK_LAYER_x" in one(list(loader.check(forced)), Status.WARNING).text
        assert "/lib/libvulkan.so.1.2.3, Vulkan 1.2.3" in {finding.text for finding in loader.check(machine)}


class TestDrivers:
    def test_none(self, machine: Machine, tmp_path: Path) -> None:
        found = list(drivers.check(with_drivers(machine, tmp_path / "absent.json")))
        assert [finding.status for finding in found] == [Status.PROBLEM] * 2
        assert "names what does not exist" in found[0].text and "unset VK_DRIVER_FILES" in found[0].advice
        assert "mesa-vulkan-drivers" in found[1].advice

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("{", "broken manifest: no JSON"),
            ("[]", 'it has no "library_path"'),
            ('{"ICD": {"library_path": "./absent.so"}}', 'it has no "api_version"'),
            ('{"ICD": {"api_version": "1.1.0", "library_path": "./absent.so"}}', "absent.so cannot be opened: "),
            ('{"ICD": {"api_version": "1.1.0", "library_path": "libabsent.so.1"}}', "libabsent.so.1: cannot open"),
            ('{"ICD": {"api_version": "1.1.0", "library_path": "./text.so"}}', "text.so: file too short"),
        ],
    )
    def test_broken_manifests(self, machine: Machine, tmp_path: Path, content: str, words: str) -> None:
        (tmp_path / "x.json").write_text(content)
        (tmp_path / "text.so").write_text("this is no library")
        found = one(list(drivers.check(with_drivers(machine, tmp_path / "x.json"))), Status.PROBLEM)
        assert found.name == str(tmp_path / "x.json")
        assert words in found.text and f"dpkg -S {tmp_path}/x.json" in found.advice

    def test_a_relative_library_counts_from_its_manifest(self, tmp_path: Path) -> None:
        assert drivers.read_manifest(manifest(tmp_path, "x.json", "../lib/d.so")) == f"{tmp_path.parent}/lib/d.so"
        assert drivers.read_manifest(manifest(tmp_path, "x.json", "libd.so")) == "libd.so"
        assert drivers.read_manifest(manifest(tmp_path, "x.json", "/lib/d.so")) == "/lib/d.so"

    @pytest.mark.parametrize(
        ("result", "status", "words"),
        [
            (ProbeResult("no_device", "where"), Status.OK, "no device of this driver's"),
            (ProbeResult("crashed", "x", excluded=(("x", "crashed (SIGSEGV)"),)), Status.PROBLEM, "(SIGSEGV)"),
            (ProbeResult("no_driver", "none"), Status.PROBLEM, "the loader does not take this driver"),
            (ProbeResult("failed", "out of memory"), Status.PROBLEM, "out of memory"),
            (ProbeResult("no_loader", "install it"), Status.WARNING, "nothing more can be tried"),
        ],
    )
    def test_what_the_probe_says(
        self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        result: ProbeResult, status: Status, words: str,
    ) -> None:  # fmt: skip
        asked: list[dict[str, str]] = []
        monkeypatch.setattr(drivers, "ask", lambda *args: {})
        monkeypatch.setattr(drivers, "probe_devices", lambda environ, timeout: asked.append(environ) or result)
        paths = [manifest(tmp_path, f"{name}.json", "d.so") for name in "ab"]
        found = list(drivers.check(with_drivers(machine, *paths)))[1:]
        assert [(finding.status, words in finding.text) for finding in found] == [(status, True)] * 2
        assert sorted(environ["VK_DRIVER_FILES"] for environ in asked) == sorted(map(str, paths))  # each by itself

    def test_nvidias_kernel_driver_alone(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(drivers, "manifests", lambda environ: [])
        (machine.dev / "nvidia0").touch()
        found = one(list(drivers.check(machine)), Status.WARNING)
        assert found.name == "NVIDIA" and "NVIDIA_DRIVER_CAPABILITIES" in found.advice

    def test_devices_together(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        card = {"index": 0, "name": "card", "type": "discrete", "api_version": "1.3.0", "memory_bytes": 1 << 30,
                "driver": "d", "error": None}  # fmt: skip
        lost = {**card, "index": 1, "error": "lost"}
        for devices, works, statuses in (
            ((card, lost), True, [Status.OK, Status.PROBLEM]),
            ((lost,), False, [Status.PROBLEM, Status.PROBLEM]),
            (({**card, "type": "cpu"},), True, [Status.OK, Status.WARNING]),
        ):
            found = ProbeResult("ok", "", devices)
            monkeypatch.setattr(drivers, "probe_devices", lambda environ, timeout, found=found: found)
            findings, usable = drivers.check_devices(machine)
            assert (usable, [finding.status for finding in findings]) == (works, statuses)


class TestNodes:
    class Closed(Machine):
        def may_use(self, path: Path) -> bool:
            return False

    def closed(self, machine: Machine, **changes: Any) -> Machine:
        values = {name: getattr(machine, name) for name in ("environ", "loader", "dev", "proc", "uid", "groups")}
        (machine.dev / "dri").mkdir(exist_ok=True)
        (machine.dev / "dri/renderD128").touch()
        (machine.dev / "dri/renderD128").chmod(0o660)
        return self.Closed(**{**values, **changes})

    def test_none(self, machine: Machine) -> None:
        found = next(iter(nodes.check(machine)))
        assert found.status is Status.WARNING and "--gpus all" in found.advice

    def test_no_permission(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nodes, "group_name", lambda number: "render" if number == os.getgid() else str(number))
        monkeypatch.setattr(nodes, "_listed_groups", lambda machine: {"users"})
        monkeypatch.setattr(nodes, "_user", lambda machine: "ann")
        (machine.dev / "nvidiactl").touch(0o600)
        found = list(nodes.check(self.closed(machine, uid=1234, groups=frozenset())))
        assert [finding.name for finding in found[:2]] == [f"{machine.dev}/dri/renderD128", f"{machine.dev}/nvidiactl"]
        assert all(finding.status is Status.PROBLEM and "ann" in finding.text for finding in found[:2])
        assert found[0].advice == "sudo usermod -aG render ann, then log in again"
        assert "its mode" in found[1].advice
        assert "in neither of render and video" in found[2].text

    def test_a_group_that_came_too_late(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nodes, "group_name", lambda number: "render" if number == os.getgid() else str(number))
        monkeypatch.setattr(nodes, "_listed_groups", lambda machine: {"render"})
        node, groups = nodes.check(self.closed(machine, uid=1234, groups=frozenset()))
        assert "log in again (or newgrp render)" in node.advice
        assert groups.status is Status.WARNING and groups.advice == "log in again"

    def test_all_well(self, machine: Machine) -> None:
        (machine.dev / "dri").mkdir()
        (machine.dev / "dri/renderD128").touch()
        (machine.dev / "dri/card0").touch()  # not needed
        found = list(nodes.check(replace(machine, uid=0)))
        assert [finding.status for finding in found] == [Status.OK] * 2


class TestDaemon:
    def check(self, machine: Machine, path: object) -> list[Finding]:
        return list(daemon.check(machine, str(path)))

    def test_it_answers(self, machine: Machine, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        (found,) = self.check(machine, fake.path)
        assert found.status is Status.WARNING
        assert "fake/1 answers, with 1 device; this command is of version" in found.text
        assert daemon._described("s", f"vkqueue/{__version__}", 2).status is Status.OK
        assert daemon._described("s", f"vkqueue/{__version__}", 0).status is Status.PROBLEM

    def test_none(self, machine: Machine, tmp_path: Path) -> None:
        found = self.check(machine, tmp_path / "absent")
        assert [finding.status for finding in found] == [Status.OK, Status.WARNING]
        assert "vkqueue serve" in found[1].advice
        assert len(list(daemon.check(machine))) == 3  # the user's own place, and the system's

    def test_a_stale_socket(self, machine: Machine, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "s"))
        found = self.check(machine, tmp_path / "s")[0]
        assert found.status is Status.WARNING and "Connection refused" in found.text

    def test_one_that_hangs(self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(daemon, "_TIMEOUT_S", 0.1)
        with socket.socket(socket.AF_UNIX) as hanging:
            hanging.bind(str(tmp_path / "s"))
            hanging.listen()
            found = self.check(machine, tmp_path / "s")[0]
        assert found.status is Status.PROBLEM and "does not answer within 0.1 s" in found.text

    def test_one_that_is_not_for_us(self, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "s"))
        monkeypatch.setattr(daemon.os, "access", lambda path, mode: False)
        found = self.check(machine, tmp_path / "s")[0]
        assert found.status is Status.PROBLEM and "join its group" in found.advice

    def test_paths_that_cannot_be(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "longer than 107 bytes" in self.check(machine, "/tmp/" + "x" * 110)[0].text
        monkeypatch.setattr(daemon.address, "distrusted", lambda path: "its folder belongs to user 7")
        assert "belongs to user 7" in self.check(machine, "/tmp/s")[0].text


class TestPrograms:
    def test_none_installed(self, machine: Machine) -> None:
        found = list(programs.check(replace(machine, environ={"PATH": "/nonexistent"})))
        assert {finding.name for finding in found} >= {"glslc", "dxc", "spirv-val"}
        assert all("install" in finding.advice for finding in found if finding.name != "slangpy")

    def test_versions(self, machine: Machine, tmp_path: Path) -> None:
        (tmp_path / "glslc").write_text("#!/bin/sh\necho\necho compiler 3.4\n")
        (tmp_path / "dxc").write_text("#!/no/such/interpreter\n")
        for name in ("glslc", "dxc"):
            (tmp_path / name).chmod(0o755)
        found = {finding.name: finding for finding in programs.check(replace(machine, environ={"PATH": str(tmp_path)}))}
        assert found["glslc"].text == f"{tmp_path}/glslc, compiler 3.4"
        assert "No such file" in found["dxc"].text


class TestSystem:
    def test_all_well(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY) if which ==
                            resource.RLIMIT_NOFILE else (resource.RLIM_INFINITY,) * 2)  # fmt: skip
        found = list(system.check(machine))
        assert [finding.status for finding in found] == [Status.OK] * 4
        assert "1,024; the daemon raises it to what the kernel gives" in found[0].text

    def test_low_limits(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
        found = list(system.check(machine))
        assert [finding.status for finding in found[:2]] == [Status.WARNING] * 2
        assert "LimitNOFILE=" in found[0].advice and "1.0 KiB" in found[1].text

    def test_settings_and_cache(self, machine: Machine, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        wrong = {"VKQUEUE_DAEMON_MAX_CLIENTS": "many", "HOME": str(tmp_path)}
        found = list(system.check(replace(machine, environ=wrong)))
        assert found[2].status is Status.PROBLEM and found[2].advice == "vkqueue config check"
        blocked = list(system.check(replace(machine, environ={"XDG_CACHE_HOME": f"{tmp_path}/file"})))
        assert blocked[3].status is Status.WARNING and f"(by {tmp_path}/file)" in blocked[3].text
        assert "device.cache_dir" in list(system.check(replace(machine, environ={})))[3].advice


class TestChildren:
    def test_one_that_dies_or_hangs_is_a_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert child.fate(-11) == "crashed (SIGSEGV)" and child.fate(3) == "ended with status 3"
        monkeypatch.setattr(child, "TIMEOUT_S", 0.1)
        assert child.run(["sleep", "20"], dict(os.environ)) == "did not end within 0.1 s"


class TestReport:
    @pytest.fixture
    def sections(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
        """Puts two sections in the place of the real ones."""
        bad = Finding(Status.PROBLEM, "node", "closed", "open it")

        def use(works: bool) -> None:
            monkeypatch.setattr(doctor, "SECTIONS", {"Drivers": lambda machine: [bad]})
            monkeypatch.setattr(drivers, "check_devices", lambda machine: ([], works))
            monkeypatch.setattr(daemon, "check", lambda machine, socket: [Finding(Status.OK, "socket", str(socket))])

        yield use

    def test_only_a_machine_without_a_device_fails(
        self, vkqueue: Callable[..., Any], sections: Callable[[bool], None]
    ) -> None:
        sections(True)
        ended = vkqueue("doctor", "--socket", "/s")
        assert ended.code == 0
        assert "  problem  node: closed\n           → open it\n" in ended.out and "ok  socket: /s" in ended.out
        assert "A device works; problems: 1, warnings: 0" in ended.out
        sections(False)
        ended = vkqueue("doctor")
        assert ended.code == 1 and "No device works; problems: 1" in ended.out

    def test_as_json(self, vkqueue: Callable[..., Any], sections: Callable[[bool], None]) -> None:
        sections(True)
        report = vkqueue("doctor", "--json").json
        assert report["ok"] is True
        assert report["sections"]["Drivers"] == [
            {"status": "problem", "name": "node", "text": "closed", "advice": "open it"}
        ]


@pytest.fixture
def library(tmp_path: Path) -> Callable[[str], Path]:
    """Compiles a shared library."""
    compiler = shutil.which("cc")
    if compiler is None:
        (pytest.fail if "CI" in os.environ else pytest.skip)("no C compiler")

    def build(source: str) -> Path:
        (tmp_path / "d.c").write_text(source)
        command = [compiler, "-shared", "-fPIC", "-o", str(tmp_path / "d.so"), str(tmp_path / "d.c")]
        subprocess.run(command, check=True, timeout=30)
        return tmp_path / "d.so"

    return build


@pytest.mark.gpu
class TestForReal:
    def test_all_well(self, vkqueue: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
        from support.daemon import lavapipe_environment

        for name, value in lavapipe_environment().items():
            monkeypatch.setenv(name, value)
        report = vkqueue("doctor", "--json").json
        assert report["ok"] is True
        sections = report["sections"]
        found = next(finding for finding in sections["Vulkan"] if finding["name"] == "loader")
        assert found["status"] == "ok" and "libvulkan.so" in found["text"]
        assert all(finding["status"] == "ok" for finding in sections["Drivers"])
        assert sections["Devices, as the daemon sees them"][0]["status"] == "ok"

    def test_a_driver_that_crashes(self, machine: Machine, tmp_path: Path, library: Callable[[str], Path]) -> None:
        from support.daemon import lavapipe_environment

        path = manifest(tmp_path, "bad.json", library(CRASHING_DRIVER))
        crashing = with_drivers(machine, path)
        assert one(list(drivers.check(crashing)), Status.PROBLEM).text == "the driver crashed (SIGABRT)"
        findings, works = drivers.check_devices(crashing)
        assert not works and "bad.json crashed (SIGABRT): update or remove it" in findings[-1].text
        good = lavapipe_environment().get("VK_DRIVER_FILES")
        if good is not None:
            assert drivers.check_devices(with_drivers(machine, path, Path(good)))[1]

    def test_a_library_that_crashes_when_it_is_opened(
        self, machine: Machine, tmp_path: Path, library: Callable[[str], Path]
    ) -> None:
        path = manifest(tmp_path, "bad.json", library(CRASHING_LIBRARY))
        found = one(list(drivers.check(with_drivers(machine, path))), Status.PROBLEM)
        assert "the process that opened it crashed (SIGABRT)" in found.text
