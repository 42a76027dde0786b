"""A real daemon in a process of its own, with the validation layers listening."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.rawclient import RawClient

TESTS = Path(__file__).resolve().parent.parent
LAVAPIPE = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"

# The layer of Debian 12 carries a spirv-val that is older than what several right modules are written for, and says so
# once for each of them; newer ones find two modules that do not declare what they use. The messages, whose ids are
# these of old and new layers, name no module.
ALLOWED = ("UNASSIGNED-CoreValidation-Shader-InconsistentSpirv", "VUID-VkShaderModuleCreateInfo-pCode-08737")

_SETTINGS = """\
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn
khronos_validation.log_filename = {log}
"""


def lavapipe_environment() -> dict[str, str]:
    """The environment that leaves only lavapipe, where it is installed and the caller chose no driver."""
    env = dict(os.environ)
    if "VK_DRIVER_FILES" not in env and Path(LAVAPIPE).exists():
        env["VK_DRIVER_FILES"] = env["VK_ICD_FILENAMES"] = LAVAPIPE
    return env


def two_devices(folder: Path) -> dict[str, Any]:
    """Options for a Daemon with lavapipe twice; a file goes into the folder."""
    again = folder / "again.json"  # under another name, or the loader takes it for the same
    again.write_text(Path(LAVAPIPE).read_text())
    drivers = f"{LAVAPIPE}:{again}"
    return {"config": 'select = "all"\n', "env": {"VK_DRIVER_FILES": drivers, "VK_ICD_FILENAMES": drivers}}


class Daemon:
    """`vkqueue serve` on a socket in `folder`, started and answering.

    Args:
        folder: for the socket, the config and the logs.
        validation: run under the validation layers, synchronization validation included.
        config: TOML text.
        env: more environment variables.
        memory: what kind of memory the device claims to have (`gpu_rig.MEMORY`).
        watch: have all commands looked at, and what the host does beside them (`watch`).
        faults: results of calls that are not made; see `served`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        validation: bool = True,
        config: str = "",
        env: dict[str, str] | None = None,
        memory: str = "",
        watch: bool = False,
        faults: str = "",
    ) -> None:
        self.folder = folder
        # Socket paths are at most 107 bytes, pytest's folders are not.
        self._short = tempfile.TemporaryDirectory(prefix="vkq")
        self.path = Path(self._short.name) / "s"
        self.validation_log = folder / "validation.txt"
        self.log = folder / "daemon.log"
        self.watch_log = folder / "watch.txt"
        environment = lavapipe_environment() | (env or {})
        module = "vkqueue"
        if memory or watch or faults:
            module = "support.served"
            path = [str(TESTS), *filter(None, [environment.get("PYTHONPATH")])]
            environment |= {"VKQUEUE_TEST_MEMORY": memory, "VKQUEUE_TEST_FAULTS": faults}
            environment["PYTHONPATH"] = os.pathsep.join(path)
            if watch:
                environment["VKQUEUE_TEST_WATCH"] = str(self.watch_log)
        if validation:
            settings = folder / "vk_layer_settings.txt"
            settings.write_text(_SETTINGS.format(log=self.validation_log))
            environment |= {
                "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
                "VK_LAYER_SETTINGS_PATH": str(settings),
            }
        config_file = folder / "vkqueue.toml"
        config_file.write_text(f'[device]\ncache_dir = "{folder / "cache"}"\n{config}')
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "serve", "--socket", str(self.path), "--config", str(config_file)],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.process.kill()
            self.stop()
            raise

    def _wait_until_it_answers(self) -> None:
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                with RawClient(self.path) as client:
                    client.call("ping")
                return
            except (ConnectionError, FileNotFoundError):
                time.sleep(0.05)
        raise AssertionError(f"the daemon (status {self.process.poll()}) does not answer:\n{self.log.read_text()}")

    def client(self, **params: Any) -> RawClient:
        return RawClient(self.path, **params)

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM, and wait; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._short.cleanup()

    def messages(self) -> list[str]:
        """What the validation layers said."""
        if not self.validation_log.exists():
            return []
        text = self.validation_log.read_text(errors="replace")
        return [m for m in re.split(r"(?m)^(?=(?:VUID|UNASSIGNED|SYNC|Validation|WARNING|ERROR))", text) if m.strip()]

    def complaints(self) -> list[str]:
        """What the validation layers said, but for the allow list; and the watch."""
        watched = self.watch_log.read_text().splitlines() if self.watch_log.exists() else []
        return watched + [message for message in self.messages() if not any(id in message for id in ALLOWED)]
