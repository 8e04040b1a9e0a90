"""Builds of llama.cpp, and parameters of contexts whose layout differs between releases."""

import numpy as np
import pytest

from benchmarks.peers.llama_builds import CODE_NAMES
from benchmarks.peers.runners.run_llama_logits import _forbid_flash_attention, _Parameters
from benchmarks.real.distance import WAYS, Way


def test_ways_use_the_builds_that_there_are() -> None:
    assert {way.instructions for way in (Way(), *WAYS.values())} == set(CODE_NAMES)


def test_flash_attention_is_the_last_of_four_fields_that_the_model_decides() -> None:
    fields = np.array([512, 4, 0, -1, -1, -1, -1, 0], np.int32)
    parameters = _Parameters()
    parameters.bytes[: fields.nbytes] = fields.view(np.int8).tolist()
    _forbid_flash_attention(parameters)
    changed = np.frombuffer(bytes(parameters.bytes), np.int32)[: len(fields)]
    assert changed.tolist() == [512, 4, 0, -1, -1, -1, 0, 0]


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(RuntimeError, match="flash attention cannot be forbidden"):
        _forbid_flash_attention(_Parameters())
