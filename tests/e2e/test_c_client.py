"""A client in C, written from docs/protocol.md alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.daemon import Daemon

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).with_name("client.c")
AXPY = Path(__file__).resolve().parents[2] / "vkqueue" / "cli" / "kernels" / "axpy.spv"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        assert "CI" not in os.environ, "there is no C compiler"
        pytest.skip("there is no C compiler")
    program = tmp_path_factory.mktemp("c") / "client"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(program)], check=True)
    return program


def test_a_client_that_knows_only_the_page(program: Path, daemon: Daemon) -> None:
    for _ in range(3):
        ran = subprocess.run([program, daemon.path, AXPY], capture_output=True, text=True, timeout=30)
        assert (ran.returncode, ran.stdout) == (0, "ok\n"), ran.stderr
    with daemon.client() as client:
        while client.call("stats")["clients"] > 1:
            pass
        assert client.call("stats")["buffers"] == 0
