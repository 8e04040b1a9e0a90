"""An embedding that reads the packed output head gives the rows of the weight, to the bit."""

import pytest
import torch

from draftwire_core.engine.kernels.products.gemm import CompiledGemm, can_multiply
from draftwire_core.engine.model.layers import cpu_layers
from draftwire_core.engine.model.layers.cpu_layers import TiedEmbedding
from tests.harness.engine.engines import packed, random_tokens, tiny_model, walk

pytestmark = pytest.mark.skipif(
    not can_multiply(torch.zeros(32, 32, dtype=torch.bfloat16)), reason="weights are not packed by compiled code"
)


@pytest.mark.parametrize(("outputs", "inputs"), [(77, 64), (20, 32), (256, 96)])
def test_rows_are_those_of_the_weight(outputs: int, inputs: int) -> None:
    weight = torch.randn(outputs, inputs).bfloat16()
    ids = torch.arange(outputs).flip(0).unsqueeze(0)
    assert torch.equal(TiedEmbedding(CompiledGemm(weight))(ids)[0], weight.flip(0))


def test_a_model_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    library = tiny_model("Llama", torch.bfloat16, tie_word_embeddings=True)
    texts = [random_tokens(30, seed=1), random_tokens(11, seed=2)]
    plain = walk(packed(library), texts, [12, 4], seed=2)
    monkeypatch.setattr(cpu_layers, "_LEAST_BYTES", 0)
    model = packed(library)
    assert isinstance(model.model.get_input_embeddings(), TiedEmbedding)
    tied = walk(model, texts, [12, 4], seed=2)
    assert plain.keys() == tied.keys()
    assert all(torch.equal(plain[path], tied[path]) for path in plain)
