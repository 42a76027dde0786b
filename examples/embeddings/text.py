"""From text to tokens, by the tokenizer that comes with the weights."""

from __future__ import annotations

from typing import Any

from network import BUCKETS
from weights import MissingError, package_folder


def load_tokenizer() -> Any:
    """A `tokenizers.Tokenizer` that cuts texts at the longest that the model takes, and does not pad.

    Raises:
        MissingError: it, or the package with its file, is not installed.
    """
    folder = package_folder()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingError("the package tokenizers is not installed:\n    pip install tokenizers") from None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(BUCKETS[-1])
    tokenizer.no_padding()
    return tokenizer
