"""The network on the device is the one of NumPy, and that is PyTorch's."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import vkqueue

from .conftest import Import

LEAST_COSINE, MOST_DIFFERENCE = 0.9999, 1e-4
KINDS = ("gpu", "cpu")


def close(found: Any, expected: Any, difference: Any) -> bool:
    cosine, most = difference(found, expected)
    return bool(cosine >= LEAST_COSINE and most <= MOST_DIFFERENCE)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", (*KINDS, "cpu4"))
def test_a_small_network_is_numpys(kind: str, gpu: vkqueue.Client, small: Any, module: Import) -> None:
    """Texts of all lengths in one batch, up to the whole of the longest bucket."""
    net = module("direct").Network(gpu, small.converted, small.shape, module("network").TUNINGS[kind])
    rng = np.random.default_rng(1)
    for seq, lengths in (
        (16, [1]),
        (16, [16, 3, 15]),
        (32, [17, 32, 1, 31, 2]),
        (64, [64, 1, 33, 63, 5, 48, 64, 2, 40]),
    ):
        texts = [rng.integers(0, small.shape.vocabulary, length) for length in lengths]
        assert close(net.embed(texts, seq), small.expected(texts), small.difference)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_neighbours_do_not_matter(kind: str, gpu: vkqueue.Client, small: Any, module: Import) -> None:
    """To the last bit, within a shape; nearly, in another, whose tiles add in another order."""
    net = module("direct").Network(gpu, small.converted, small.shape, module("network").TUNINGS[kind])
    texts = [[5, 9, 2], [1] * 30, [7] * 16, [99, 98, 97, 96, 95]]
    found = net.embed(texts, 32)
    assert np.array_equal(found, net.embed(texts, 32, pad=77))
    assert np.array_equal(found[::-1], net.embed(texts[::-1], 32))
    alone = np.concatenate([net.embed([text], 64) for text in texts])
    assert abs(alone - found).max() < 1e-6


@pytest.mark.gpu
def test_no_tokens_and_tokens_that_are_none(gpu: vkqueue.Client, small: Any, module: Import) -> None:
    """A text without tokens is 0 and not NaN; an id outside of the vocabulary is taken for the last."""
    net = module("direct").Network(gpu, small.converted, small.shape, module("network").TUNINGS["gpu"])
    found = net.embed([[], [-1, 2**31 - 1], [99, 99]], 16)
    assert not found[0].any()
    assert np.array_equal(found[1], found[2])
    assert found[2].any()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_pytorchs(kind: str, gpu: vkqueue.Client, real: Any, kept: Any, module: Import) -> None:
    """With the package's weights, in batches of uneven lengths. Half of the texts for each kind of device."""
    network = module("network")
    shape = network.Architecture()
    net = module("direct").Network(gpu, module("weights").converted(real, shape), shape, network.TUNINGS[kind])
    difference = module("reference").difference
    mine = range(KINDS.index(kind), len(kept.ids), 2)
    below = 0
    checked = 0
    for seq in network.BUCKETS:
        texts = [index for index in mine if below < len(kept.ids[index]) <= seq]
        if texts:
            assert close(net.embed([kept.ids[i] for i in texts], seq), kept.vectors[texts], difference)
        below, checked = seq, checked + len(texts)
    assert checked == len(mine)


def test_numpys_is_pytorchs(real: Any, kept: Any, module: Import) -> None:
    reference, shape = module("reference"), module("network").Architecture()
    found = [reference.embed(real, shape, text) for text in kept.ids]
    assert reference.difference(found, kept.vectors)[1] < 1e-7


def test_what_is_kept_is_pytorchs(real: Any, kept: Any, module: Import, example: Any) -> None:
    """Made again by PyTorch, where that is installed."""
    if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
        pytest.skip("torch and transformers are not installed")
    make = example("../tests/examples/embeddings/make_reference.py")
    found = make.by_torch(module("weights").package_folder(), kept.ids)
    assert abs(found - kept.vectors).max() < 1e-6


def test_what_is_kept_has_the_texts_tokens(real: Any, kept: Any, module: Import, example: Any) -> None:
    if importlib.util.find_spec("tokenizers") is None:
        pytest.skip("tokenizers is not installed")
    make = example("../tests/examples/embeddings/make_reference.py")
    assert make.tokens(module("text").load_tokenizer()) == kept.ids
    lengths = sorted(map(len, kept.ids))
    assert lengths[0] == 2 and lengths[-1] == 256


def test_texts_that_mean_the_same_are_near(kept: Any) -> None:
    """The vectors that are kept are those of a model of meanings: cat and cat, cat and dog, cat and passport."""
    cat, same, dog, passport, other = (kept.vectors[index] for index in (4, 5, 8, 10, 11))
    assert cat @ same > 0.9 > cat @ dog > 0.4 > cat @ passport
    assert passport @ other > 0.5
