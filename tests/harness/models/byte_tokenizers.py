"""Small tokenizers of different families that can encode any bytes, and random checkpoints with them."""

import json
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEXT = [
    "def naïve(self, other):\n    return self.other + other.self  # déjà vu, 日本語 🐍\n",
    "the other one imports what the first one exports, self(self) and so_on_and_on[12345]\n" * 3,
    "日本語 日本 本日 naïveté ünïcode _private.__init__(self, x=None)\n",
]
END = {"target": "<|end|>", "draft": "</s>", "fallback": "<eos>", "spaced": "<stop>"}


def _trained(tokenizer: Tokenizer, size: int, end: str, alphabet: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[end], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def _byte_level(size: int, pattern: str, end: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, size, end, pre_tokenizers.ByteLevel.alphabet())


def _byte_fallback(size: int, end: str) -> Tokenizer:
    """Returns a tokenizer like SentencePiece's: characters, and bytes for unknown ones."""
    tokenizer = Tokenizer(models.BPE(fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    parts = json.loads(_trained(tokenizer, size, end, []).to_str())
    vocabulary = parts["model"]["vocab"]
    for value in range(256):
        vocabulary[f"<0x{value:02X}>"] = len(vocabulary)
    parts["model"] |= {"byte_fallback": True, "vocab": vocabulary}
    return Tokenizer.from_str(json.dumps(parts))


def _spaced(size: int, end: str) -> Tokenizer:
    parts = json.loads(_byte_fallback(size, end).to_str())
    parts["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "▁"}, parts["normalizer"]],
    }
    parts["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    tokenizer.add_special_tokens(["<start>"])
    start = tokenizer.token_to_id("<start>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A", pair="<start> $A $B", special_tokens=[("<start>", start)]
    )
    return tokenizer


def backend(kind: str) -> Tokenizer:
    """Returns a tokenizer: `target`, `draft` (the target's family, other tokens), `fallback` (another family), or
    `spaced` (one of that family that puts a space before a text, as SentencePiece does, and a special token)."""
    if kind == "spaced":
        return _spaced(160, END[kind])
    if kind == "fallback":
        return _byte_fallback(120, END[kind])
    # The target joins a sign and the word after it, the draft a space and a word; the draft joins runs of other signs.
    pattern = r"[^\s\p{L}]?\p{L}+|\s+|." if kind == "target" else r" ?\p{L}+|\p{N}+|[^\p{L}\p{N}]+"
    return _byte_level(380 if kind == "target" else 340, pattern, END[kind])


def write_byte_checkpoint(directory: Path, kind: str, *, seed: int = 0, context: int = 1024) -> Path:
    """Writes a two-layer float32 Llama with the tokenizer of `kind`."""
    made = backend(kind)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END[kind]).save_pretrained(directory)
    return directory
