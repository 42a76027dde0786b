"""Lays out a repository of models with the network in it, from the installed package.

    python examples/embeddings/prepare.py FOLDER [--tiles gpu|cpu|cpu4]
    vkqueue serve --set models.repository=FOLDER

FOLDER/minilm then has config.toml and the kernels, and FOLDER/minilm/1 the weights as the kernels want them (88 MB,
written once).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

import weights
from network import TUNINGS, Architecture, config, toml

HERE = Path(__file__).parent
NAME = "minilm"
# Of the weights in the file; part of its name, so that a file of another layout is never taken for it.
LAYOUT = 1


def default_folder(kind: str) -> Path:
    """Where the other commands keep it."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "vkqueue" / "embeddings" / kind


def prepare(folder: Path, kind: str, source: Path | None = None, shape: Architecture | None = None) -> Path:
    """Write what is missing; the model's own folder.

    Args:
        kind: of device, which decides about tiles.
        source: safetensors file; else that of the package.
        shape: of its network; else that of the package's.

    Raises:
        weights.MissingError: the package is not installed.
    """
    model = folder / NAME
    (model / "1").mkdir(parents=True, exist_ok=True)
    file = model / "1" / f"weights.{LAYOUT}.safetensors"
    shape = shape or Architecture()
    if not file.exists():
        found = weights.read(source or weights.package_folder() / "model.safetensors")
        weights.write(file, weights.converted(found, shape))
    for kernel in TUNINGS[kind].kernels:
        shutil.copyfile(HERE / f"kernels/{kernel}.spv", model / f"{kernel}.spv")
    (model / "config.toml").write_text(toml(config(shape, TUNINGS[kind], file.name)))
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description="Lay out a repository of models with the network in it.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiles", choices=TUNINGS, default="gpu", help="for which kind of device")
    options = parser.parse_args()
    try:
        print(f"wrote {prepare(options.folder, options.tiles)}")
    except (weights.MissingError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
