"""llama.cpp's own logits and greedy tokens on a GGUF file, by the C functions of its library.

It needs numpy, and either xllamacpp, whose wheel exports these functions, or a library's path. Parameters stay at
llama.cpp's defaults, but for flash attention. So the layout of llama.cpp's structs, which differs between releases, is
not needed: they are passed as bytes, more than any release has.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

_LONGEST = 512
"""Tokens of a context, by default."""
_UNSPECIFIED = np.full(4, -1, np.int32).tobytes()
"""The defaults of four fields in a row: kinds of RoPE scaling, pooling and attention, and flash attention."""


class _Parameters(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_byte * 1024),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class Llama:
    """A model in llama.cpp, on the CPU."""

    def __init__(
        self,
        model: str,
        threads: int,
        library: Path,
        backend: Path | None,
        *,
        flash_attention: bool = True,
        one_by_one: bool = False,
    ):
        """Loads a model. Raises RuntimeError if it cannot be loaded.

        model: path of the GGUF file. library, backend: llama.cpp's, and the one for an instruction set unless the
        former has it. flash_attention: False forbids it. one_by_one: whether each token of a prompt or a text has a
        batch of its own, as tokens of outputs have.
        """
        self._one_by_one = one_by_one
        self._library = ctypes.CDLL(str(library))
        place = ctypes.c_void_p
        if backend is not None:
            _load_backend(library, backend)
        self._function("llama_backend_init", None)()
        parameters = self._function("llama_model_default_params", _Parameters)()
        load = self._function("llama_model_load_from_file", place, ctypes.c_char_p, _Parameters)
        loaded = load(model.encode(), parameters)
        if not loaded:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        parameters = self._function("llama_context_default_params", _Parameters)()
        if not flash_attention:
            _forbid_flash_attention(parameters)
        self._context = self._function("llama_init_from_model", place, place, _Parameters)(loaded, parameters)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no memory for a context of {model}")
        count = ctypes.c_int32
        self._function("llama_set_n_threads", None, place, count, count)(self._context, threads, threads)
        vocabulary = self._function("llama_model_get_vocab", place, place)(loaded)
        self._tokens = self._function("llama_vocab_n_tokens", count, place)(vocabulary)
        self._memory = self._function("llama_get_memory", place, place)(self._context)
        self._clear = self._function("llama_memory_clear", None, place, ctypes.c_bool)
        self._decode = self._function("llama_decode", count, place, _Batch)
        self._logits = self._function("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), place, count)
        self._batch = self._function("llama_batch_init", _Batch, count, count, count)(_LONGEST, 0, 1)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Returns the logits after each token of a text: float32 [tokens, vocabulary]."""
        return self._read(tokens, range(len(tokens)))

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Returns the most likely tokens after a prompt, past any end of the text."""
        found = [int(self._read(prompt, [len(prompt) - 1])[0].argmax())]
        while len(found) < count:
            found.append(int(self._run(found[-1:], len(prompt) + len(found) - 1, [0])[0].argmax()))
        return found

    def _read(self, tokens: Sequence[int], wanted: Sequence[int]) -> np.ndarray:
        """Returns the logits after the wanted tokens of a new text."""
        self._clear(self._memory, True)
        if self._one_by_one:
            return np.concatenate([self._run([token], at, [0]) for at, token in enumerate(tokens)])[list(wanted)]
        return self._run(tokens, 0, wanted)

    def _run(self, tokens: Sequence[int], first: int, wanted: Sequence[int]) -> np.ndarray:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, first + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index in wanted
        if status := self._decode(self._context, batch):
            raise RuntimeError(f"llama_decode returns {status}")
        shape = (self._tokens,)
        return np.stack([np.ctypeslib.as_array(self._logits(self._context, each), shape).copy() for each in wanted])

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(self._library, name)
        found.restype, found.argtypes = result, arguments
        return found


def _load_backend(library: Path, backend: Path) -> None:
    """Loads the library for an instruction set. Raises RuntimeError if the processor lacks it."""
    load = ctypes.CDLL(str(next(library.parent.glob("libggml.*so*")))).ggml_backend_load
    load.restype, load.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    if not load(str(backend).encode()):
        raise RuntimeError(f"this processor cannot run {backend.name}")


def _forbid_flash_attention(parameters: _Parameters) -> None:
    """Changes the default parameters of a context. Raises RuntimeError if their layout is unknown."""
    at = bytes(parameters.bytes).find(_UNSPECIFIED)
    if at < 0:
        raise RuntimeError("flash attention cannot be forbidden: this release of llama.cpp has other parameters")
    last = at + len(_UNSPECIFIED) - 4
    parameters.bytes[last : last + 4] = [0] * 4


def _library() -> Path:
    """Returns the path of xllamacpp's library, which the package itself is not needed for."""
    found = find_spec("xllamacpp")
    if found is None or found.origin is None:
        raise RuntimeError("xllamacpp is not installed")
    return next(Path(found.origin).parent.glob("xllamacpp*.so"))


def main() -> None:
    """Reads prompts and texts, token ids in JSON, and writes outputs (JSON) and logits (numpy)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--library", type=Path, help="llama.cpp's library; by default xllamacpp's")
    parser.add_argument("--backend", type=Path, help="the library for an instruction set, unless the former has it")
    parser.add_argument("--no-flash-attention", action="store_true")
    parser.add_argument("--one-by-one", action="store_true", help="a batch for each token of a prompt")
    parser.add_argument("--order", type=Path, required=True, help="JSON: prompts, texts, tokens (of each output)")
    parser.add_argument("--outputs", type=Path, required=True)
    parser.add_argument("--logits", type=Path, required=True)
    options = parser.parse_args()
    order = json.loads(options.order.read_text())
    llama = Llama(
        options.model,
        options.threads,
        options.library or _library(),
        options.backend,
        flash_attention=not options.no_flash_attention,
        one_by_one=options.one_by_one,
    )
    outputs = [llama.greedy(each, order["tokens"]) for each in order["prompts"]]
    options.outputs.write_text(json.dumps(outputs))
    np.save(options.logits, np.concatenate([llama.logits(each) for each in order["texts"]]))


if __name__ == "__main__":
    main()
