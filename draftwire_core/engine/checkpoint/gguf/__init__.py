"""GGUF files: their header, tensors, configuration and tokenizer."""
