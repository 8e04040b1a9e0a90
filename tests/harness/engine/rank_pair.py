"""Splits each checkpoint of a directory over two ranks and prints their outputs beside those of the whole model.

    python -m tests.harness.engine.rank_pair DIRECTORY TOKENS

TOKENS: that each sequence generates.

Rank 0 prints one line of JSON: for each checkpoint the reason for which it was refused, or a `PairReport`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from draftwire_core.engine.loading.rank_processes import RankProcesses
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import ScriptedDrafter, engine_of, generate, random_tokens, specs_of

SLOTS = 600


@dataclass(frozen=True)
class PairReport:
    """Outputs of a model on two ranks."""

    bit_exact: bool
    whole: list[list[int]]
    """Tokens of the whole model."""
    plain: list[list[int]]
    """Tokens of the split model, with the sequences side by side."""
    drafted: list[list[int]]
    """Tokens of the split model, drafted with trees."""
    rejected: int
    """Number of draft tokens that were rolled back."""
    same_fingerprint: bool
    kv_share: float
    """KV cache memory of one rank as a fraction of the whole model's."""


def compare(directory: Path, ranks: RankGroup, tokens: int) -> PairReport | None:
    """Compares on rank 0 and follows on the other one. Raises ModelLoadError."""
    model = PackedModel.load(str(directory), slots=SLOTS, dtype="float32", ranks=ranks)
    report = run_self_test(model)
    if ranks.rank:
        ranks.follow(model)
        return None
    ranks.lead()
    whole = PackedModel.load(str(directory), slots=SLOTS, dtype="float32")
    prompts = [random_tokens(count, seed=count) for count in (4 * tokens + 10, 3, tokens + 10)]
    sampling = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=4),
        SamplingParams(temperature=0.0),
    ]
    specs = specs_of(prompts, tokens, sampling)
    expected = generate(engine_of(whole), specs).tokens
    engine = engine_of(model)
    plain = generate(engine, specs).tokens
    mixed = generate(engine, specs, ScriptedDrafter(expected, accuracy=0.7))
    ranks.dismiss()
    return PairReport(
        bit_exact=report.bit_exact,
        whole=list(expected.values()),
        plain=list(plain.values()),
        drafted=list(mixed.tokens.values()),
        rejected=mixed.drafted - mixed.accepted,
        same_fingerprint=model.fingerprint == whole.fingerprint,
        kv_share=model.cache.bytes / whole.cache.bytes,
    )


def main() -> None:
    """Processes the checkpoints in the order of their names, so that all ranks agree on it."""
    torch.set_num_threads(1)
    processes = RankProcesses.open(2, device="cpu", timeout_seconds=50)
    found: dict[str, object] = {}
    for directory in sorted(Path(sys.argv[1]).iterdir()):
        try:
            report = compare(directory, processes.ranks, int(sys.argv[2]))
        except ModelLoadError as error:
            found[directory.name] = str(error)
        else:
            found[directory.name] = None if report is None else asdict(report)
    if not processes.ranks.rank:
        print(json.dumps(found))
    processes.close()


if __name__ == "__main__":
    main()
