"""Models of transformers, made from checkpoints of any kind, with weights as they lie in them."""
