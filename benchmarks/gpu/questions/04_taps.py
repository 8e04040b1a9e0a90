"""What do taps and an EAGLE-3 network take at the shape of Llama 3.1 8B, and do taps change a bit?

    python -m benchmarks.gpu.questions.04_taps [--device cpu]

Random weights, CUDA graphs, one sequence after 512 tokens. Three layers are tapped, and mapped to a feature. The
network is EAGLE-3's for this target: a layer, and a vocabulary of 32,000 tokens. Its drafts are chains, by one call.

Expected on an H200: equal bits; a pass of 1 row takes up to 0.05 ms more with taps, of which the map's weights (100 MB)
are 0.03; a draft of 2, 4 and 8 steps takes 0.25 ms a step on the device and 0.3 to 0.5 with the host's part.

If a bit differs: law 1 is broken, and taps on GPUs are refused again. If taps take above 0.1 ms: the map joins the
graph. If a step takes above 0.5 ms: the network's layer gets kernels of its own.
"""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np
import torch
from transformers import LlamaConfig

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.models import SHAPES, fill, shaped
from benchmarks.gpu.steps import rows_batch, seconds
from draftwire_core.engine.drafters.eagle.eagle_config import EagleConfig, usual_layers
from draftwire_core.engine.drafters.eagle.eagle_model import eagle_model, feature_map
from draftwire_core.engine.drafters.features.draft_network import in_target_ids
from draftwire_core.engine.drafters.features.reading_drafter import own_tap
from draftwire_core.engine.model.cuda.slots.draft_batch import DraftPlan
from draftwire_core.engine.model.cuda.slots.draft_layout import DraftCandidate, DraftRow
from draftwire_core.engine.model.cuda.slots.draft_steps import STEPS
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams

CONTEXT, TOY_CONTEXT = 512, 16
DRAFT_VOCABULARY, TOY_DRAFT_VOCABULARY = 32_000, 100
_ROWS = (1, 8, 64)


def eagle_for(shape: str, draft_vocab_size: int) -> EagleConfig:
    """The configuration of a network for the target of a shape."""
    layers = LlamaConfig(**{**SHAPES[shape], "num_hidden_layers": 1})  # type: ignore[arg-type]
    count = int(str(SHAPES[shape]["num_hidden_layers"]))
    aux = usual_layers(count) if count > 2 else (0, 1, 2)
    return EagleConfig(layers, draft_vocab_size, layers.hidden_size, aux)


def tapped_figures(target: PackedModel, tap: Tap, context: int, runs: int) -> Figures:
    """Passes without the tap and with it."""
    slots = target.pool.take(context + max(_ROWS))
    figures: dict[str, object] = {"layer kernels": target.layer_kernels, "graphs": target.graphs, "equal bits": True}
    for rows in _ROWS:
        plain, tapped = (rows_batch(target, slots, context, range(rows)) for _ in range(2))
        tapped.taps = [tap]
        equal = torch.equal(target.forward(plain), target.forward(tapped))
        figures["equal bits"] = figures["equal bits"] and equal
        for name, batch in (("plain", plain), ("tapped", tapped)):
            taken = seconds(lambda batch=batch: target.forward(batch), target.device, runs)
            figures[f"{name} pass of {rows} rows, ms"] = round(1e3 * statistics.median(taken), 3)
    target.pool.give_back(slots)
    return figures


def drafted_figures(network: PackedModel, context: int, runs: int) -> Figures:
    """Drafts of several steps, each a chain behind a root that reads a feature of the target."""
    drafts = network.drafts
    if drafts is None:
        return {}
    figures: dict[str, object] = {"captured drafts": drafts.captured}
    for steps in STEPS:
        slots = network.pool.take(context + steps)
        path = [int(slot) for slot in slots[context:]]
        plan = DraftPlan(
            [slots[:context]],
            [
                [DraftRow(0, tuple(path[:at]), path[at], DraftCandidate(at - 1, 0, 0) if at else 5)]
                for at in range(steps)
            ],
            [SamplingBatch.build([SamplingParams(temperature=0.0)], [context + at + 1]) for at in range(steps)],
            [[path[at - 1] if at else -1 - context] for at in range(steps)],
        )
        taken = seconds(lambda plan=plan: drafts.draft(plan), network.device, runs)
        figures[f"draft of {steps} steps, ms"] = round(1e3 * statistics.median(taken), 3)
        network.pool.give_back(slots)
    return figures


def find(device: torch.device) -> Figures:
    """The figures of the target's passes, then those of the network's."""
    cuda = device.type == "cuda"
    shape = "llama-8b" if cuda else "toy"
    context, runs = (CONTEXT, 20) if cuda else (TOY_CONTEXT, 2)
    slots = context + 256
    config = eagle_for(shape, DRAFT_VOCABULARY if cuda else TOY_DRAFT_VOCABULARY)
    assert config.aux_layers is not None
    with torch.device("meta"):
        model, mapping = (each.to(torch.bfloat16) for each in (eagle_model(config), feature_map(config, 3)))
    for part in (model, mapping):
        fill(part, device)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config.layers).to(device)
    features = SlotStates(slots, config.layers.hidden_size, torch.bfloat16, device)
    target = PackedModel(shaped(shape, device), slots, shape)
    target.capture_graphs()
    figures = dict(tapped_figures(target, Tap(config.aux_layers, mapping, features), context, runs))
    del target
    network = PackedModel(model.eval(), slots, "eagle3", row_exact=False, reads_features=True)
    own = own_tap(network, torch.nn.Identity())
    ids = torch.arange(config.draft_vocab_size, device=device)
    spread = partial(in_target_ids, target_ids=ids, vocabulary=config.layers.vocab_size)
    first = rows_batch(network, np.arange(1, 3), 1, [5])
    first.features = torch.zeros(1, network.hidden_size, dtype=network.dtype, device=device)
    network.forward(first)  # makes the KV cache, which graphs need
    network.feed_drafts(Feeding(features.vectors, own.states.vectors, 1, normed=False, in_target_ids=spread))
    network.capture_graphs()
    return {**figures, "network: graphs": network.graphs, **drafted_figures(network, context, runs)}


if __name__ == "__main__":
    print_answer(__doc__, find)
