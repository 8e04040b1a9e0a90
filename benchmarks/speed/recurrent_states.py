"""Measures what trees and rollbacks cost in a model with recurrent layers, and the memory of its states.

    python -m benchmarks.speed.recurrent_states [--nodes 64] [--accepted 4] [--threads 1] [--runs 11] [--json]

The model is random, with gated delta nets of the size of Qwen3-Next 80B (32 heads of 128 x 128) in three of four layers
of width 1024, in bfloat16. In turns the script times a step that verifies a tree, its rollback to some accepted nodes,
a plain step that first has to process the accepted tokens again, and a plain step after a plain step.
"""

from __future__ import annotations

import argparse
import random
import time

import torch
import transformers

from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.engine.sequence import Sequence, SequenceSpec
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.token_tree import Node
from draftwire_tools.spread import Spread

_VOCABULARY = 32_000
_PROMPT = 300
_LAYERS_OF_THE_LARGE_MODEL = 36


def random_model() -> PackedModel:
    """Returns a packed model without trained weights."""
    config = transformers.Qwen3_5TextConfig(
        vocab_size=_VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        linear_num_value_heads=32,
        linear_num_key_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )
    torch.manual_seed(0)
    return PackedModel(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), 4096)


class Run:
    """One sequence, whose accepted tokens are decided here."""

    def __init__(self, model: PackedModel):
        self._model = model
        self._rng = random.Random(0)
        self._sequence = Sequence(SequenceSpec(0, self._tokens(_PROMPT), 4000, SamplingParams(temperature=0.0)))

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(_VOCABULARY) for _ in range(count)]

    def step(self, nodes: int = 0, accepted: int = 0) -> tuple[float, float]:
        """Verifies a tree of so many random nodes; returns the milliseconds of the pass and of its rollback to a path
        of `accepted` nodes."""
        sequence, model = self._sequence, self._model
        path: list[Node] = []
        chosen: list[Node] = []
        for token in self._tokens(nodes):
            parent = self._rng.choice([sequence.tree.root, *chosen]) if len(path) == accepted else (path or [None])[-1]
            node, added = sequence.tree.add(parent or sequence.tree.root, token)
            if added:
                chosen.append(node)
                if len(path) < accepted:
                    path.append(node)
        job = VerificationJob(sequence, sequence.pending, chosen)
        started = time.perf_counter()
        builder = BatchBuilder()
        job.lay_out(builder, model.pool)
        model.forward(builder.build(model.group_size, model.device))
        passed = time.perf_counter()
        job.commit(path)
        job.rollback(path, model.pool)
        rolled_back = time.perf_counter()
        sequence.commit([*(node.token for node in path), *self._tokens(1)])
        return 1e3 * (passed - started), 1e3 * (rolled_back - passed)


@torch.inference_mode()
def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--accepted", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=11)
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = random_model()
    run = Run(model)
    run.step()
    trees, rollbacks, shares, replays, plains = [], [], [], [], []
    for _ in range(options.runs):
        tree, rollback = run.step(options.nodes, options.accepted)
        replay, _ = run.step()
        plain, _ = run.step()
        trees.append(tree)
        rollbacks.append(rollback)
        shares.append(rollback / tree)
        replays.append(replay)
        plains.append(plain)
    states = _LAYERS_OF_THE_LARGE_MODEL / model.recurrent_layers
    print_report(
        "recurrent_states",
        {
            "model": f"random, {model.recurrent_layers} gated delta nets, one attention layer, bfloat16; milliseconds",
            f"step, {options.nodes} nodes": Spread.of(trees),
            "rollback": Spread.of(rollbacks),
            "rollback / step": Spread.of(shares),
            f"plain step, {options.accepted} tokens replayed": Spread.of(replays),
            "plain step": Spread.of(plains),
            "MB a sequence, 36 layers": model.state_bytes * states / 1e6,
            "kB a node, 36 layers": model.node_bytes * states / 1e3,
        },
        options,
    )


if __name__ == "__main__":
    main()
