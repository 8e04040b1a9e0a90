"""Train a byte-level BPE tokenizer: the one that target and drafts share, or another one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from corpus import documents

VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"
# One leading non-letter joins a word (".append", "_name", "(self"), digits go in threes, and an indentation is one
# piece up to its last space: Python text comes out in markedly fewer tokens than with GPT-2's pattern.
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The pair was not trained to converse; a conversation written as comments is at least text of its own kind.
CHAT_TEMPLATE = (
    "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}# assistant:"
)


def train(vocabulary: int = VOCABULARY, pattern: str = PATTERN, end_of_text: str = END_OF_TEXT) -> Tokenizer:
    """A tokenizer of `vocabulary` entries trained on the documents that are not held out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[end_of_text],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents() if not d.held_out), trainer)
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path, context: int = 2048, end_of_text: str = END_OF_TEXT) -> None:
    """Write tokenizer.json and tokenizer_config.json as transformers reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end_of_text,
        "bos_token": end_of_text,
        "pad_token": end_of_text,
        "unk_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    arguments = parser.parse_args()
    tokenizer = train(arguments.vocabulary)
    save(tokenizer, arguments.directory)
    held_out = [d.text for d in documents() if d.held_out]
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(held_out))
    print(f"{sum(len(text.encode()) for text in held_out) / tokens:.3f} bytes per held-out token")


if __name__ == "__main__":
    main()
