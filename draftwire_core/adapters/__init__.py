"""Adapters that put the pool of drafters into other engines, vLLM and SGLang, and what these adapters share."""
