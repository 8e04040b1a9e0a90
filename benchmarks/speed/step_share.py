"""Measures how much of a forward pass is neither linear layers nor attention.

    python -m benchmarks.speed.step_share [--rows 1,4,16] [--context 200] [--threads 1] [--runs 31] [--json]

The model is the bundled target, inflated (models/inflate.py), in bfloat16. In turns the script times a whole forward
pass, its linear layers alone and its attention alone, layer after layer as in the pass, so that each reads its weights
from memory. The overhead of as many calls without work is subtracted from the latter two, since in the pass a layer is
one call. The remainder of the pass is the rest: embeddings, norms, positions, gates, sums, and Python.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import counts
from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.kernels import attention as compiled_attention
from draftwire_core.engine.model.layers.fused_layer import FusedLayer
from draftwire_core.engine.model.linear.row_exact import RowExactLinear
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS

_SLOTS = 2048
_LEAST = 32
"""Width of a linear layer with next to no work."""


def batch_of(model: PackedModel, rows: int, context: int) -> PackedBatch:
    """Returns a batch of `rows` tokens of one sequence after `context` others."""
    builder = BatchBuilder()
    added = [builder.add_row(5 + row, context + row, context + 1 + row, wants_logits=True) for row in range(rows)]
    builder.add_lane(np.arange(1, context + 1, dtype=np.int64), added)
    return builder.build(model.group_size, model.device)


def timed(work: Callable[[], object]) -> float:
    """Returns the milliseconds that `work` takes."""
    started = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - started)


class Parts:
    """The linear layers and the attention of a model, for one batch."""

    def __init__(self, model: PackedModel, batch: PackedBatch):
        self._model = model
        layers = list(model.model.get_decoder().layers)
        assert all(isinstance(layer, FusedLayer) and layer.is_whole for layer in layers), (
            "only layers of the Llama kind"
        )
        linears = [each for layer in layers for each in (layer.project, layer.output, layer.gate_and_up, layer.down)]
        linears.append(model.model.get_output_embeddings())
        nothing = RowExactLinear(torch.zeros(_LEAST, _LEAST, dtype=model.dtype), None)
        self._linears = [(each, self._input(batch, each)) for each in linears]
        self._nothings = [(nothing, self._input(batch, nothing))] * len(linears)
        self._lanes = batch.slot_lanes
        self._no_lanes = batch_of(model, 1, 1).slot_lanes
        config = model.config
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._query = torch.zeros(config.num_attention_heads, len(batch), head)
        self._least_query = self._query[:, :1].contiguous()

    @staticmethod
    def _input(batch: PackedBatch, linear: torch.nn.Module) -> torch.Tensor:
        return torch.zeros(len(batch), linear.in_features, dtype=torch.bfloat16)

    def linears(self) -> float:
        """Returns the milliseconds of all linear layers, less those of as many empty calls."""
        return self._multiply(self._linears) - self._multiply(self._nothings)

    def attention(self) -> float:
        """Returns the milliseconds of the attention of all layers, less those of as many empty calls."""
        return self._attend(self._lanes, self._query) - self._attend(self._no_lanes, self._least_query)

    @staticmethod
    def _multiply(linears: list[tuple[torch.nn.Module, torch.Tensor]]) -> float:
        return timed(lambda: [linear(rows) for linear, rows in linears])

    def _attend(self, lanes: compiled_attention.SlotLanes, query: torch.Tensor) -> float:
        cache, empty = self._model.cache, query.new_empty(0)

        def attend() -> None:
            for layer in range(cache.layers):
                keys, values = cache.layer(layer, empty, empty)
                compiled_attention.attend(lanes, query, keys, values, None, None, None)

        return timed(attend)


@torch.inference_mode()
def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--target-millions", type=float, default=400.0, help="parameters of the inflated target, in millions"
    )
    parser.add_argument("--rows", type=counts, default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=31)
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = PackedModel.load(str(inflated(MODELS / "target", options.target_millions)), slots=_SLOTS, dtype="bfloat16")
    figures: dict[str, object] = {
        "model": f"bundled target, inflated: {options.target_millions:g} M, {model.config.num_hidden_layers} layers",
        "step": f"after {options.context} tokens, bfloat16, {options.threads} threads; milliseconds",
    }
    for rows in options.rows:
        batch = batch_of(model, rows, options.context)
        model.forward(batch)
        parts = Parts(model, batch)
        wholes, linears, attentions, shares = [], [], [], []
        for _ in range(options.runs):
            whole, linear, attention = (
                timed(lambda batch=batch: model.forward(batch)),
                parts.linears(),
                parts.attention(),
            )  # type: ignore[misc]
            wholes.append(whole)
            linears.append(linear)
            attentions.append(attention)
            shares.append(1 - (linear + attention) / whole)
        figures[f"{rows} rows, forward pass"] = Spread.of(wholes)
        figures[f"{rows} rows, linear layers"] = Spread.of(linears)
        figures[f"{rows} rows, attention"] = Spread.of(attentions)
        figures[f"{rows} rows, share of the rest"] = Spread.of(shares)
    print_report("step_share", figures, options)


if __name__ == "__main__":
    main()
