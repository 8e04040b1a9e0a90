"""The verifier service with a target whose steps take a given time and hardly any of the processor, as if it had a
device of its own: `python -m benchmarks.stand_ins.paced_verifier --step-ms 40 --row-ms 0.5`, with the flags of
`python -m verifier_service`. A small target is to be paced: a step is never shorter than it takes."""

from __future__ import annotations

import argparse
import sys
import time

import torch

from speculative_engine.packed_batch import PackedBatch
from speculative_engine.packed_model import PackedModel
from verifier_service.process import main as serve


def main() -> int:
    """Serve until a signal ends it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--step-ms", type=float, required=True, help="time of a step")
    parser.add_argument("--row-ms", type=float, default=0.0, help="what each row adds to it")
    options, flags = parser.parse_known_args()
    forward = PackedModel.forward

    def paced(self: PackedModel, batch: PackedBatch) -> torch.Tensor:
        ends = time.perf_counter() + (options.step_ms + options.row_ms * len(batch)) / 1000
        logits = forward(self, batch)
        time.sleep(max(0.0, ends - time.perf_counter()))
        return logits

    PackedModel.forward = paced  # type: ignore[method-assign]
    return serve(flags)


if __name__ == "__main__":
    sys.exit(main())
