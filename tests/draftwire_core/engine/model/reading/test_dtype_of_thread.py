"""A model that is made in one thread leaves the default data type of the others alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, modeling_utils

from draftwire_core.engine.model.reading.dtype_of_thread import dtype_of_thread
from tests.harness.engine.engines import tiny_model


def test_it_is_transformers_way() -> None:
    assert modeling_utils.local_torch_dtype is dtype_of_thread


def test_other_threads_keep_theirs() -> None:
    inside, done = threading.Event(), threading.Event()
    made: list[torch.Tensor] = []

    def make() -> None:
        with dtype_of_thread(torch.bfloat16):
            inside.set()
            done.wait(20)
            made.append(torch.ones(3))

    thread = threading.Thread(target=make)
    thread.start()
    assert inside.wait(20)
    assert torch.ones(3).dtype == torch.get_default_dtype() == torch.float32
    assert (torch.arange(3) * 0.5).dtype == torch.float32
    done.set()
    thread.join(20)
    assert made[0].dtype == torch.bfloat16


def test_what_has_a_type_keeps_it() -> None:
    with dtype_of_thread(torch.bfloat16):
        assert torch.tensor([0.5]).dtype == torch.full((2,), 0.5).dtype == torch.arange(0.5, 2).dtype == torch.bfloat16
        assert torch.tensor([1]).dtype == torch.arange(3).dtype == torch.int64
        assert torch.tensor([True]).dtype == torch.bool
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float32
        assert torch.as_tensor(np.ones(2, np.float32)).dtype == torch.float32
        assert torch.asarray(torch.ones(2, dtype=torch.float32)).dtype == torch.float32
        assert torch.nn.Linear(2, 2).weight.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="not of floating point"), dtype_of_thread(torch.int8):
        pass


@pytest.mark.parametrize("name", ["Llama", "Gemma3", "GptOss", "Qwen3", "Phi3"])
def test_models_are_the_librarys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_model(name).config

    @contextmanager
    def of_the_process(dtype: torch.dtype, _: str | None = None) -> Iterator[None]:
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)

    def made() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        return {**dict(model.named_parameters()), **dict(model.named_buffers())}

    found = made()
    monkeypatch.setattr(modeling_utils, "local_torch_dtype", of_the_process)
    expected = made()
    assert {key: each.dtype for key, each in found.items()} == {key: each.dtype for key, each in expected.items()}
    assert all(torch.equal(each, expected[key]) for key, each in found.items())
