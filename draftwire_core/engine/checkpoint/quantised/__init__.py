"""Quantised checkpoints in safetensors files: the weights of linear layers as their tools write them."""
