"""A fused gated delta net between its projections: torch's numbers, the same bits with any vectors and threads."""

from collections.abc import Iterator

import pytest
import torch

from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.kernels.library import available_kernels, kernels_in_use, library, use_kernels
from draftwire_core.engine.kernels.recurrent.recurrence import RecurrenceCall
from draftwire_core.engine.model.layers.delta_block import DeltaBlock
from draftwire_core.engine.model.layers.delta_reading import read_net, supports_net
from draftwire_core.engine.model.linear.drafter_linear import PackedLinear
from draftwire_core.engine.model.recurrent.mixers import DeltaMixer
from draftwire_core.engine.model.recurrent.recurrent_layers import MIXERS
from tests.harness.engine.engines import tiny_model
from tests.harness.kernels.recurrences import items_of

pytestmark = pytest.mark.skipif(library() is None, reason="not built: there is no C compiler")
VECTORS: tuple[Kernels, ...] = ("baseline", "avx2", "avx512", "amx", "neon", "i8mm")
SIZES: dict[str, object] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 5,
    "linear_num_value_heads": 20,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "num_experts": 2,
}
ROWS = 7


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kernels, threads = kernels_in_use(), torch.get_num_threads()
    yield
    use_kernels(kernels)
    torch.set_num_threads(threads)


class Net:
    """A random net, and what compiled code makes of rows of its projection."""

    def __init__(self, name: str):
        module = tiny_model(name, **SIZES).model.layers[0].linear_attn
        assert supports_net(module)
        mixer = MIXERS[type(module).__name__](module)
        assert isinstance(mixer, DeltaMixer)
        self.mixer, self.module = mixer, module
        self.parts = read_net(module, None, None, PackedLinear)
        self.block = DeltaBlock(self.parts)
        random = torch.Generator().manual_seed(2)
        self.hidden = 3 * torch.randn(ROWS, module.hidden_size, generator=random)
        self.projected = self.parts.project(self.hidden).float().contiguous()
        self.results = torch.randn(ROWS, 20, 16, generator=random)

    def run(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """The inputs and gates of the recurrence, and its results normed and gated."""
        shape, threads = self.mixer.shape, torch.get_num_threads()
        inputs, gates = torch.empty(ROWS, shape.channels, dtype=dtype), torch.empty(ROWS, shape.gates)
        call = RecurrenceCall(shape, items_of(shape.taps), inputs, gates, threads)
        self.block.write_inputs(call, self.projected)
        call.out.copy_(self.results)
        self.block.finish(call, self.projected)
        return inputs, gates, call.out


@pytest.mark.parametrize("name", ["Qwen3_5", "Qwen3Next"])
def test_they_are_the_numbers_of_torch(name: str) -> None:
    net = Net(name)
    inputs, gates, finished = net.run(torch.float32)
    expected, gate, steps, strengths = net.mixer._read(net.module, net.hidden)
    assert torch.equal(inputs, expected)
    wide = net.module.A_log.double(), (steps + net.module.dt_bias).double()
    decays = torch.exp(-wide[0].exp() * torch.nn.functional.softplus(wide[1], threshold=50))
    torch.testing.assert_close(gates[:, :20].double(), decays, rtol=2e-6, atol=1e-7)
    torch.testing.assert_close(gates[:, 20:], torch.sigmoid(strengths), rtol=1e-6, atol=1e-7)
    normal = torch.nn.functional.rms_norm(net.results, (16,), net.module.norm.weight, net.module.norm.variance_epsilon)
    gated = normal * torch.nn.functional.silu(gate.view(ROWS, 20, 16))
    torch.testing.assert_close(finished, gated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_vectors_and_threads_change_no_bit(dtype: torch.dtype) -> None:
    net, expected = Net("Qwen3_5"), None
    there = [name for name in VECTORS if name in available_kernels()]
    assert len(there) > 1
    for name in there:
        use_kernels(name)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found = net.run(dtype)
            expected = expected or found
            assert all(map(torch.equal, found, expected)), (name, threads)


@pytest.mark.parametrize("changes", [{"linear_value_head_dim": 24}, {"linear_key_head_dim": 8}])
def test_other_widths_are_left_as_they_are(changes: dict[str, object]) -> None:
    assert not supports_net(tiny_model("Qwen3_5", **{**SIZES, **changes}).model.layers[0].linear_attn)
