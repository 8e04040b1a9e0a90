"""Writes random checkpoints with a tokenizer, for tests that load a model as a service does."""

from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.harness.suite.run_directory import made_once

VOCABULARY = 200
CONTEXT = 256
SPECIAL_TOKENS = ("<s>", "</s>", "<unk>")


def tiny_checkpoint(factory: pytest.TempPathFactory, seed: int = 0) -> Path:
    """Returns the checkpoint that `write_checkpoint` writes of a seed, once in a run."""
    return made_once(factory, f"tiny-{seed}", partial(write_checkpoint, seed=seed))


def write_checkpoint(
    directory: Path, *, seed: int = 0, vocab_size: int = VOCABULARY, words: int = 100, context: int = CONTEXT
) -> Path:
    """Writes a two-layer float32 Llama with a tokenizer of `words` words; a different count gives another tokenizer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(5)  # as confident as a trained model, so that trees grow deep
    model.save_pretrained(directory)
    write_tokenizer(directory, words)
    return directory


def write_tokenizer(directory: Path, words: int) -> None:
    """Writes a tokenizer of `words` words, "w0" and on, after the special tokens."""
    names = [*SPECIAL_TOKENS, *(f"w{index}" for index in range(words))]
    backend = Tokenizer(WordLevel({name: token for token, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(directory)
