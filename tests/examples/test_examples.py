"""Every example runs as its docstring says, on a real daemon, and what it computes is right."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon, lavapipe_environment

import vkqueue

from .conftest import EXAMPLES, ROOT, Run

Example = Callable[[str], ModuleType]


def reference_blur(picture: np.ndarray[Any, Any], sigma: float) -> np.ndarray[Any, Any]:
    radius = round(3 * sigma)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    for axis in (0, 1):
        pad = [(radius, radius) if a == axis else (0, 0) for a in range(3)]
        padded = np.pad(picture.astype("float64"), pad, "edge")
        views = np.lib.stride_tricks.sliding_window_view(padded, 2 * radius + 1, axis)
        picture = (views * weights).sum(-1)
    return picture


def reference_edges(picture: np.ndarray[Any, Any], gain: float) -> np.ndarray[Any, Any]:
    b = np.pad(picture[..., :3].astype("float64") @ [0.2126, 0.7152, 0.0722], 1, "edge")
    top, middle, bottom = b[:-2], b[1:-1], b[2:]
    x = sum(w * (row[:, 2:] - row[:, :-2]) for w, row in ((1, top), (2, middle), (1, bottom)))
    y = sum(w * (bottom - top)[:, i : i + b.shape[1] - 2] for i, w in enumerate((1, 2, 1)))
    return np.clip(gain * np.hypot(x, y), 0, 1)


@pytest.mark.gpu
def test_image_filter_is_numpys(gpu: vkqueue.Client, example: Example) -> None:
    image_filter = example("image_filter.py")
    picture = image_filter.as_floats(example("png.py").read_png(EXAMPLES / "images/landscape.png"))[40:150, 200:331]
    for sigma in (0.8, 2.5):
        blurred, edges = image_filter.filtered(gpu, picture, sigma)
        smooth = reference_blur(picture, sigma)
        np.testing.assert_allclose(blurred, smooth, atol=2e-6)
        np.testing.assert_allclose(edges, reference_edges(smooth, 2.0), atol=2e-5)
        assert edges.max() > 0.3  # it is a picture of something


@pytest.mark.gpu
def test_image_filter_writes_the_picture_of_the_readme(run: Run, example: Example, tmp_path: Path) -> None:
    png = example("png.py")
    assert "480 x 320 pixels on" in run("image_filter.py").stdout
    made, kept = (png.read_png(p).astype(int) for p in (tmp_path / "filtered.png", EXAMPLES / "images/filtered.png"))
    assert made.shape == kept.shape == (320, 480, 3)
    assert abs(made - kept).max() <= 1
    run("image_filter.py", EXAMPLES / "images/landscape.png", "edges.png", "--show", "edges", "--sigma", "1")
    edges = png.read_png(tmp_path / "edges.png")
    assert (edges[..., 0] == edges[..., 2]).all()


@pytest.mark.gpu
def test_nbody_keeps_its_energy(run: Run, example: Example, tmp_path: Path) -> None:
    done = run("nbody.py", "--bodies", "500", "--steps", "40", "--png", "galaxies.png")
    assert re.search(r"energy -0\.\d+, then -0\.\d+: changed by 0\.[0-4]\d*% in 40 steps", done.stdout)
    assert example("png.py").read_png(tmp_path / "galaxies.png").max() > 100


@pytest.mark.gpu
def test_nbody_pulls_as_numpy_does(gpu: vkqueue.Client, example: Example) -> None:
    """Also where the last tile is not full."""
    nbody = example("nbody.py")
    bodies, velocities = nbody.two_galaxies(333)
    simulation = nbody.Simulation(gpu, bodies, velocities)
    way = bodies[None, :, :3].astype("float64") - bodies[:, None, :3]
    distance = np.sqrt((way**2).sum(-1) + nbody.SOFTENING**2)
    weight = bodies[:, 3] / distance**3
    np.testing.assert_allclose(simulation.pull.numpy()[:, :3], (weight[..., None] * way).sum(1), rtol=2e-4, atol=1e-5)
    potential = -(bodies[:, 3] / distance * (1 - np.eye(333))).sum(1)
    np.testing.assert_allclose(simulation.pull.numpy()[:, 3], potential, rtol=1e-4)


@pytest.mark.gpu
def test_pipeline(run: Run) -> None:
    done = run("pipeline.py", "--producers", "3", "--consumers", "2", "--blocks", "9")
    assert done.stdout.startswith("27 blocks of 3 producers right")


@pytest.mark.gpu
def test_an_example_starts_a_daemon(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "pipeline.py", "--blocks", "2"],
        env={
            **lavapipe_environment(),
            "VKQUEUE_SOCKET": str(tmp_path / "s"),
            "VKQUEUE_DAEMON_IDLE_EXIT_S": "2",
            "XDG_CACHE_HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    assert "8 blocks of 4 producers right" in done.stdout


@pytest.mark.gpu
def test_the_c_client(run: Run, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / "axpy_from_c"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([compiler, *flags, "-o", program, EXAMPLES / "axpy_from_c.c"], check=True, timeout=50)
    assert run(program, EXAMPLES / "axpy/axpy.spv").stdout == "1000 values right\n"


@pytest.mark.gpu
def test_the_node_client(run: Run, daemon: Daemon) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (EXAMPLES / "node/node_modules/@msgpack/msgpack").exists():
        pytest.skip("@msgpack/msgpack is not there: npm install in examples/node")
    done = run(node, EXAMPLES / "node/client.mjs")
    assert "kernels: main\n1000 values right after 100 launches" in done.stdout


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_comes_back(example: Example, tmp_path: Path, channels: int) -> None:
    png = example("png.py")
    pixels = np.random.default_rng(channels).integers(0, 256, (5, 7, channels), dtype="uint8")
    png.write_png(tmp_path / "a.png", pixels)
    assert (png.read_png(tmp_path / "a.png") == pixels).all()


def test_png_undoes_every_filter(example: Example, tmp_path: Path) -> None:
    """Each line is filtered another way, by the definition of the format."""
    png = example("png.py")
    pixels = np.random.default_rng(3).integers(0, 256, (10, 6, 3), dtype="uint8")
    bordered = np.pad(pixels.astype(int), ((1, 0), (1, 0), (0, 0)))
    left, above, corner = bordered[1:, :-1], bordered[:-1, 1:], bordered[:-1, :-1]
    distances = np.stack([abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)])
    paeth = np.choose(distances.argmin(0), [left, above, corner])
    guesses = [0 * left, left, above, (left + above) // 2, paeth]
    lines = b""
    for y in range(10):
        lines += bytes([y % 5]) + ((pixels[y] - guesses[y % 5][y]) % 256).astype("uint8").tobytes()
    data = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 6, 10, 8, 2, 0, 0, 0)
    packed = zlib.compress(lines)
    for kind, body in ((b"IHDR", header), (b"tEXt", b"a\0b"), (b"IDAT", packed[:9]), (b"IDAT", packed[9:])):
        data += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    (tmp_path / "a.png").write_bytes(data)
    assert (png.read_png(tmp_path / "a.png") == pixels).all()


def test_every_example_says_how_it_is_run() -> None:
    for path in sorted(EXAMPLES.glob("*.py")):
        text = path.read_text()
        assert path.name == "png.py" or f"python examples/{path.name}" in text.split('"""')[1]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("kernels/*.comp")), ids=lambda p: p.stem)
def test_a_kernel_is_what_its_source_says(path: Path, tmp_path: Path) -> None:
    """By its reflection: compilers' releases write different modules."""
    if shutil.which("glslc") is None:
        pytest.skip("no glslc")
    from vkqueue.kernels.reflect import analyse

    made = tmp_path / "a.spv"
    subprocess.run(["glslc", "--target-env=vulkan1.1", path, "-o", made], check=True, timeout=30)
    assert analyse(path.with_suffix(".spv").read_bytes())["kernels"] == analyse(made.read_bytes())["kernels"]
