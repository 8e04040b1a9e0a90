"""What the adapters to other engines share: the drafter pool in a thread next to the engine's, and a mirror of the
engine's requests with their token trees.

The engine that runs the target model, vLLM or SGLang, is the host engine here.
"""
