"""Code that makes imports of the serving libraries (torch, transformers, tokenizers, numpy) fail."""

FORBID = """
import sys

class Forbid:
    names = {"torch", "transformers", "tokenizers", "numpy"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise AssertionError(f"imported {name}")

sys.meta_path.insert(0, Forbid())
"""
