"""The README keeps its promises: its example runs, its commands are CI's, and what it names is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemon import Daemon

from vkqueue.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.gpu
def test_the_python_example_prints_what_its_comments_say(tmp_path: Path) -> None:
    (example,) = blocks("python")
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert len(expected) == 2
    daemon = Daemon(tmp_path, validation=False)
    try:
        done = subprocess.run(
            [sys.executable, "-c", example],
            env={**os.environ, "VKQUEUE_SOCKET": str(daemon.path)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
        )
    finally:
        status = daemon.stop()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected
    assert status == 0


def test_ci_runs_the_commands_of_the_readme() -> None:
    """By the markers before them, and by the form in which it finds their packages."""
    found = {}
    for name, command in re.findall(r"^<!-- command: (\w+) -->\n```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL):
        found[name] = command
        first, *rest = command.splitlines()
        assert first == "$(command -v sudo) apt-get update &&"
        assert re.fullmatch(r"\$\(command -v sudo\) apt-get install -y [a-z0-9 -]+ &&", rest[0])
        assert all(line.endswith(" &&") for line in rest[:-1])
    assert found["demo"].endswith(".venv/bin/vkqueue demo\n")
    assert found["test"].endswith(".venv/bin/pytest\n")
    ci = (ROOT / ".ci" / "run").read_text()
    assert all(f"{name}=$(command_of {name})" in ci and f'eval "${name}"' in ci for name in ("demo", "test"))


def test_every_command_that_the_readme_names_is_there() -> None:
    code = "\n".join([*blocks("sh"), *re.findall(r"`([^`\n]+)`", README)])
    named = set(re.findall(r"(?:^|\s|/)vkqueue ([a-z]+)\b", code, re.MULTILINE))
    assert named >= {"serve", "demo", "bench"}
    assert named <= set(COMMANDS)


def test_every_file_that_the_readme_links_is_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert "docs/protocol.md" in targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
    named = re.findall(r"(?<![\w/])((?:systemd|config)/[\w./-]+)", "\n".join(blocks("sh")))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
