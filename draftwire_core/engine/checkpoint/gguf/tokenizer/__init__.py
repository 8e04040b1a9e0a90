"""The tokenizers of GGUF files: tokens, splittings, merges, special tokens and chat templates."""
