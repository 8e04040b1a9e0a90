"""llama.cpp's own library, as npm has it: its quantiser of files, and its reading of blocks.

The library runs in processes of its own, since it ends a process whose arguments it does not like.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

from tests.harness.client_packages import node_packages
from tests.harness.waiting import LONG_PATIENCE

_PACKAGE = "@node-llama-cpp/linux-x64"
_VERSION = "3.22.1"
_FILE_TYPES = {kind.name.removeprefix("MOSTLY_").removeprefix("ALL_"): kind.value for kind in gguf.LlamaFileType}
FILE_TYPES = {name: number for name, number in _FILE_TYPES.items() if name not in ("GUESSED", "NVFP4")} | {"Q2_0": 41}
"""Types of files by name, as `llama-quantize` takes them; it refuses NVFP4."""
_COMMON = """
import ctypes, json, sys
from pathlib import Path
folder = Path(sys.argv[1])
for name in ("libggml-base.so", "libggml.v*.so", "libllama.v*.so"):
    [path] = folder.glob(name)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
"""
_QUANTISE = (
    _COMMON
    + """
class Importance(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]

class Parameters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("threads", "file_type", "output_type", "embedding_type")]
    _fields_ += [(name, ctypes.c_bool) for name in ("requantise", "output", "copy", "pure", "split", "dry")]
    _fields_ += [(name, ctypes.c_void_p) for name in ("importance", "values", "types", "layers")]
    _fields_ += [("most_memory", ctypes.c_size_t)]

source, path, number, inputs = json.load(sys.stdin)
ones = (ctypes.c_float * max(inputs.values()))(*[1.0] * max(inputs.values()))
rows = [Importance(name.encode(), ctypes.addressof(ones), count) for name, count in inputs.items()]
matrix = (Importance * (len(rows) + 1))(*rows)
library.llama_model_quantize_default_params.restype = Parameters
parameters = library.llama_model_quantize_default_params()
parameters.threads, parameters.file_type, parameters.importance = 1, number, ctypes.addressof(matrix)
sys.exit(library.llama_model_quantize(source.encode(), path.encode(), ctypes.byref(parameters)))
"""
)
_READ = (
    _COMMON
    + """
blocks, name, values = sys.stdin.buffer.read(), sys.argv[2], int(sys.argv[3])
found = (ctypes.c_float * values)()
getattr(library, f"dequantize_row_{name}")(blocks, found, ctypes.c_int64(values))
sys.stdout.buffer.write(bytes(found))
"""
)


def quantise(source: Path, file_type: str, path: Path) -> None:
    """Quantises a file in floats. The importance matrix, without which there are no files of two bits and less, has
    ones. Skips the test if the registry cannot be reached."""
    inputs = {each.name: int(each.shape[0]) for each in gguf.GGUFReader(source).tensors if len(each.shape) > 1}
    _run(_QUANTISE, given=json.dumps([str(source), str(path), FILE_TYPES[file_type], inputs]).encode())


def read_blocks(type_name: str, blocks: np.ndarray, values: int) -> np.ndarray:
    """The float32 values of blocks. type_name: as gguf has it."""
    name = type_name.lower()
    name = f"{name[:-1]}K" if name.endswith("_k") else name
    return np.frombuffer(_run(_READ, name, str(values), given=blocks.tobytes()), np.float32)


def _run(script: str, *arguments: str, given: bytes) -> bytes:
    folder = node_packages("llama-library", f"{_PACKAGE}@{_VERSION}") / "node_modules" / _PACKAGE / "bins" / "linux-x64"
    command = [sys.executable, "-c", script, str(folder), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=LONG_PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    return done.stdout
