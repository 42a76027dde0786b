"""A daemon that has the network: `vkqueue serve` with a repository of it.

    python examples/embeddings/serve.py [--tiles gpu|cpu|cpu4] [--folder FOLDER] [OPTIONS of vkqueue serve…]

Lays the repository out first (prepare.py), in the user's cache unless told otherwise. Then any client can say
`gpu.model("minilm").infer(input_ids=…)`, and so can the shell: `vkqueue model list`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from network import TUNINGS
from prepare import default_folder, prepare
from weights import MissingError


def main() -> int:
    parser = argparse.ArgumentParser(description="Serve the network; other options are those of vkqueue serve.")
    parser.add_argument("--tiles", choices=TUNINGS, default="gpu", help="for which kind of device")
    parser.add_argument("--folder", type=Path, help="the repository")
    options, others = parser.parse_known_args()
    folder = options.folder or default_folder(options.tiles)
    try:
        prepare(folder, options.tiles)
    except (MissingError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    repository = f"models.repository={folder.resolve()}"
    os.execv(sys.executable, [sys.executable, "-m", "vkqueue", "serve", "--set", repository, *others])


if __name__ == "__main__":
    sys.exit(main())
