"""llama.cpp's tokens of texts, by the vocabularies of GGUF files: its library is in the wheel of xllamacpp."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.client_packages import python_wheel
from tests.harness.waiting import LONG_PATIENCE

_PACKAGE = "xllamacpp==2026.10.11549"
_SCRIPT = """
import ctypes, json, sys

class ModelParams(ctypes.Structure):  # llama_model_params of the pinned version, up to the only field that is changed
    _fields_ = [("before", ctypes.c_byte * 72), ("vocab_only", ctypes.c_bool), ("after", ctypes.c_byte * 7)]

library = ctypes.CDLL(sys.argv[1])
library.llama_model_default_params.restype = ModelParams
library.llama_model_load_from_file.restype = ctypes.c_void_p
library.llama_model_load_from_file.argtypes = ctypes.c_char_p, ModelParams
library.llama_model_get_vocab.restype = ctypes.c_void_p
library.llama_model_get_vocab.argtypes = ctypes.c_void_p,
library.llama_tokenize.argtypes = (
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool
)
asked = json.load(sys.stdin)
params = library.llama_model_default_params()
params.vocab_only = True
model = library.llama_model_load_from_file(asked["file"].encode(), params)
if not model:
    sys.exit("llama.cpp refuses the file")
vocabulary = library.llama_model_get_vocab(model)
found = []
for text in map(str.encode, asked["texts"]):
    tokens = (ctypes.c_int32 * (2 * len(text) + 16))()
    count = library.llama_tokenize(vocabulary, text, len(text), tokens, len(tokens), False, True)
    assert count >= 0, text
    found.append(tokens[:count])
print(json.dumps(found))
"""


def llama_tokens(file: Path, texts: Sequence[str]) -> list[list[int]]:
    """Returns llama.cpp's tokens of each text, without those that it puts before every text; names of special tokens
    are such tokens. Skips the test if PyPI cannot be reached."""
    [library] = (python_wheel(_PACKAGE) / "xllamacpp").glob("*.so")
    done = subprocess.run(
        [sys.executable, "-I", "-c", _SCRIPT, str(library)], input=json.dumps({"file": str(file), "texts": texts}),
        capture_output=True, encoding="utf-8", errors="replace", timeout=LONG_PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    tokens: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return tokens
