"""The common part of adapters to other engines: the drafter pool in a thread next to the engine's, and a mirror of the
engine's requests with their token trees.

The engine that runs the target model, vLLM or SGLang, is the host engine here.
"""
