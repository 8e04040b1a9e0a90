"""Compares a packed forward pass, and the memory of its KV slots, with transformers' own.

    python -m benchmarks.speed.engine_overhead [--context 200] [--threads 1] [--dtype bfloat16] [--json]

The model is a random Llama of 24 layers and hidden size 512. The step is 8 sequences with 5 new tokens each after a
context; transformers runs it as one batch with a DynamicCache. Runs are interleaved; ratios are those of the medians.
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_tools.spread import Spread

SEQUENCES, NEW_TOKENS = 8, 5


def build_model(dtype: torch.dtype) -> LlamaForCausalLM:
    """Returns a random Llama of 24 layers and hidden size 512."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=4096,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


@torch.inference_mode()
def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--runs", type=int, default=15)
    add_report_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    plain = build_model(getattr(torch, args.dtype))
    length = args.context + NEW_TOKENS
    tokens = torch.randint(0, 4096, (SEQUENCES, length))
    # as many slots as the same tokens take in a DynamicCache
    packed = PackedModel(copy.deepcopy(plain), slots=SEQUENCES * length)

    contexts = []
    for sequence in range(SEQUENCES):
        slots = packed.pool.take(args.context)
        builder = BatchBuilder()
        rows = [
            builder.add_row(int(tokens[sequence, i]), i, int(slots[i]), i == args.context - 1)
            for i in range(args.context)
        ]
        builder.add_lane(np.empty(0, dtype=np.int64), rows)
        packed.forward(builder.build(packed.group_size, packed.device))
        contexts.append(slots)
    new_slots = packed.pool.take(SEQUENCES * NEW_TOKENS).reshape(SEQUENCES, NEW_TOKENS)

    cache = DynamicCache(config=plain.config)
    plain(input_ids=tokens[:, : args.context], past_key_values=cache, use_cache=True)

    def packed_step() -> torch.Tensor:
        builder = BatchBuilder()
        for sequence in range(SEQUENCES):
            rows = [
                builder.add_row(
                    int(tokens[sequence, args.context + i]), args.context + i, int(new_slots[sequence, i]), True
                )
                for i in range(NEW_TOKENS)
            ]
            builder.add_lane(contexts[sequence], rows)
        return packed.forward(builder.build(packed.group_size, packed.device))

    def plain_step() -> torch.Tensor:
        out = plain(input_ids=tokens[:, args.context :], past_key_values=cache, use_cache=True)
        logits: torch.Tensor = out.logits
        return logits

    packed_times, plain_times = [], []
    difference = 0.0
    for run in range(args.runs + 2):
        started = time.perf_counter()
        packed_logits = packed_step()
        between = time.perf_counter()
        plain_logits = plain_step()
        ended = time.perf_counter()
        cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        cache.crop(-NEW_TOKENS)
        if run >= 2:  # the first runs warm up
            packed_times.append(between - started)
            plain_times.append(ended - between)
        difference = (packed_logits.float().view(SEQUENCES, NEW_TOKENS, -1) - plain_logits.float()).abs().max().item()
    print_report(
        "engine_overhead",
        {
            "model": f"Llama, 24 layers, hidden 512, {packed.parameters / 1e6:.0f} M parameters, {args.dtype}",
            "step": f"{SEQUENCES} sequences x {NEW_TOKENS} tokens after {args.context}, {args.threads} threads",
            "packed_seconds": Spread.of(packed_times),
            "transformers_seconds": Spread.of(plain_times),
            "time_ratio": round(Spread.of(packed_times).median / Spread.of(plain_times).median, 3),
            "kv_slot_bytes": packed.cache.bytes,
            "dynamic_cache_bytes": cache_bytes,
            "memory_ratio": round(packed.cache.bytes / cache_bytes, 4),
            "largest_logit_difference": round(difference, 4),
        },
        args,
    )


if __name__ == "__main__":
    main()
