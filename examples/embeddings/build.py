"""Compiles the kernels: kernels/*.comp to kernels/*.spv.

    python examples/embeddings/build.py

Needs glslc. The modules are kept beside their sources, so this is only for who changes those.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from network import SOURCES

HERE = Path(__file__).parent


def build(name: str, folder: Path) -> Path:
    """Compile one module into a folder."""
    source, *flags = SOURCES[name]
    made = folder / f"{name}.spv"
    command = ["glslc", "--target-env=vulkan1.1", *flags, HERE / "kernels" / source, "-o", made]
    subprocess.run(command, check=True, timeout=60)
    return made


def main() -> None:
    for name in SOURCES:
        print(f"wrote {build(name, HERE / 'kernels').relative_to(HERE)}")


if __name__ == "__main__":
    main()
