"""Measures how far each acceptance rule drifts from the target's distribution, and how much more it accepts.

    python -m benchmarks.laws.rule_drift [--contexts 24] [--seeds 2000] [--width 3]

At positions in held-out texts the bundled pair's logits are computed once. Then, seed by seed, the draft model drafts
its children, the target draws its token, and each rule decides. Over the seeds this gives the distribution of the token
that the rule commits, and its Kullback-Leibler divergence from the target's, in nats: the drift per drafted token.
Tokens so rare that fewer than five are expected count as one token. An estimate from a finite number of seeds is too
large by about (tokens - 1) / (2 seeds), which is subtracted; the coupled rule, which is exact, shows the remaining
error.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.harness.machine import cpu_name
from benchmarks.harness.results import add_results_option, save
from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance, RuleName, rule_of
from draftwire_core.engine.acceptance.rule import Visit
from draftwire_core.engine.sampling.coupled_sampler import sample, top_candidates
from draftwire_core.engine.sampling.distributions import by_entropy, probabilities
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.token_tree import TokenTree
from tests.harness.checkout import MODELS

POSITION = 100
CHUNK = 500
"""Number of seeds that are drawn at a time."""


def typical(threshold: float, alpha: float) -> Acceptance:
    return Acceptance(RuleName.TYPICAL, posterior_threshold=threshold, posterior_alpha=alpha)


def threshold(value: float) -> Acceptance:
    return Acceptance(RuleName.THRESHOLD, threshold=value)


RULES = {
    "coupled": COUPLED,
    "threshold 0.75 (code)": threshold(0.75),
    "threshold 0.65 (json)": threshold(0.65),
    "threshold 0.5 (narrative)": threshold(0.5),
    "threshold 0.3": threshold(0.3),
    "threshold 0.1": threshold(0.1),
    "typical 0.09, 0.3": typical(0.09, 0.3),
    "typical 0.3, 0.55": typical(0.3, 0.55),
}


@dataclass
class Found:
    """Results of one rule, context by context."""

    kept: list[float] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)


def contexts(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Returns the logits of the target and of the draft model after some texts, [V] each."""
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    pair = [AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32) for name in ("target", "draft")]
    lines = (MODELS / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    for number, line in enumerate(lines):
        ids = torch.tensor([tokenizer.encode(json.loads(line)["text"])])
        end = ids.shape[1] - number % 7  # not only where prompts end
        with torch.inference_mode():
            target, draft = (model(input_ids=ids[:, :end], use_cache=False).logits[0, -1] for model in pair)
        yield target, draft


def drafted_and_drawn(
    target: Tensor, draft: Tensor, sampling: SamplingParams, seeds: int, width: int, dynamic: bool
) -> Iterator[tuple[list[int], int]]:
    """Returns, for each seed, the draft tokens, best first, and the target's own token."""
    for first in range(0, seeds, CHUNK):
        rows = range(first, min(first + CHUNK, seeds))
        params = [SamplingParams(temperature=sampling.temperature, top_p=sampling.top_p, seed=seed) for seed in rows]
        batch = SamplingBatch.build(params, [POSITION] * len(rows))
        drafts = draft.expand(len(rows), -1).contiguous()
        cooler = by_entropy(drafts, batch, list(range(len(rows)))) if dynamic else batch
        children = top_candidates(drafts, cooler, width).token_ids.tolist()
        drawn = sample(target.expand(len(rows), -1).contiguous(), batch).token_ids.tolist()
        yield from zip(([token for token in row if token >= 0] for row in children), drawn, strict=True)


def divergence(counts: np.ndarray, p: np.ndarray) -> float:
    """Returns KL(counts || p) in nats, less the bias of the estimate; rare tokens count as one."""
    total = counts.sum()
    rare = p * total < 5
    share = np.append(counts[~rare], counts[rare].sum()) / total
    p = np.append(p[~rare], p[rare].sum())
    seen = share > 0
    return float((share[seen] * np.log(share[seen] / p[seen])).sum() - (len(p) - 1) / (2 * total))


def measure(
    places: list[tuple[Tensor, Tensor]], sampling: SamplingParams, seeds: int, width: int, dynamic: bool
) -> dict[str, Found]:
    """Measures all rules at all places."""
    found = {name: Found() for name in RULES}
    for target, draft in places:
        p = probabilities(target.unsqueeze(0), SamplingBatch.build([sampling], [POSITION]))[0]
        counts = {name: np.zeros(len(p)) for name in RULES}
        kept = dict.fromkeys(RULES, 0)
        rules = {name: rule_of(acceptance, sampling) for name, acceptance in RULES.items()}
        for children, drawn in drafted_and_drawn(target, draft, sampling, seeds, width, dynamic):
            tree = TokenTree(POSITION, 0)
            nodes = [tree.add(tree.root, token)[0] for token in children]
            for name, rule in rules.items():
                token = rule.token(Visit(tree.root, nodes, drawn, lambda p=p: p))
                counts[name][token] += 1
                kept[name] += token in tree.root.children
        for name, each in found.items():
            each.kept.append(kept[name] / seeds)
            each.drift.append(divergence(counts[name], p))
    return found


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--width", type=int, default=3)
    add_results_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{cpu_name()}, torch {torch.__version__}; {options.contexts} places, {options.seeds} seeds each")
    places = list(contexts(options.contexts))
    figures: dict[str, object] = {}
    for temperature, dynamic in ((0.7, False), (1.0, False), (1.0, True)):
        sampling = SamplingParams(temperature=temperature)
        print(f"\nT = {temperature}, {options.width} children{', dynamic temperature' if dynamic else ''}")
        print(f"  {'rule':28s} {'kept':>6s} {'KL, nats a token':>18s} {'worst place':>12s}")
        for name, each in measure(places, sampling, options.seeds, options.width, dynamic).items():
            kept, drift = statistics.mean(each.kept), statistics.mean(each.drift)
            print(f"  {name:28s} {kept:6.3f} {drift:18.4f} {max(each.drift):12.3f}")
            case = f"T = {temperature}{', dynamic temperature' if dynamic else ''}, {name}"
            figures[case] = {"kept": kept, "kl_nats": drift, "worst_kl_nats": max(each.drift)}
    save(figures, options)


if __name__ == "__main__":
    main()
