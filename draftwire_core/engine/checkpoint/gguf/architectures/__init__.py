"""The architectures of models in GGUF files, each as a declaration."""
