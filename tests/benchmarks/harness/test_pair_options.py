"""Sizes of the inflated pair on the command line."""

import argparse

import pytest
from transformers import LlamaConfig

from benchmarks.harness.inflated_models import LAYERS
from benchmarks.harness.pair_options import FAMILIES, PAIRS, add_family_option, add_size_options
from models.inflate import Shape, choose_shape
from tests.harness.checkout import MODELS


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ([], (400.0, 25.0)),
        (["--pair", "1.5B"], (1500.0, 100.0)),
        (["--pair", "1.5B", "--draft-millions", "50"], (1500.0, 50.0)),
        (["--target-millions", "50"], (50.0, 25.0)),
    ],
)
def test_a_pair_sets_both_sizes(arguments: list[str], sizes: tuple[float, float]) -> None:
    parser = argparse.ArgumentParser()
    add_size_options(parser)
    options = parser.parse_args(arguments)
    assert (options.target_millions, options.draft_millions) == sizes


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_have_shapes_that_superblocks_divide(name: str) -> None:
    for model, millions in zip(("target", "draft"), PAIRS[name], strict=True):
        config = LlamaConfig.from_pretrained(MODELS / model)
        shape = choose_shape(Shape.of(config), round(millions * 1e6), config.vocab_size, LAYERS.get(millions))
        assert shape.parameters(config.vocab_size) == pytest.approx(millions * 1e6, rel=0.05)
        assert shape.layers == LAYERS.get(millions, shape.layers)
        assert all(width % 256 == 0 for width in (shape.hidden, shape.mlp, shape.heads * shape.head_dim)), shape


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_models_with_one_tokenizer(family: str) -> None:
    parser = argparse.ArgumentParser()
    add_family_option(parser)
    assert parser.parse_args([]).family == "bundled"
    target, draft = FAMILIES[parser.parse_args(["--family", family]).family]
    assert (MODELS / target / "tokenizer.json").read_bytes() == (MODELS / draft / "tokenizer.json").read_bytes()
