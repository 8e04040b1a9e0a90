"""`python -m tests.harness.faulty_verifier --fault NAME ...`: a verifier with a planted fault.

The faults are planted in the process before the service starts; the service itself has no option for them. They are
those that `draftwire check` must find: each changes outputs only in the way that its name says.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from draftwire_core.engine.acceptance.acceptance import Acceptance
from draftwire_core.engine.engine import sequence
from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.target_pass import EditedLogits
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.token_tree import Node
from verifier_service.process import main
from verifier_service.step_loop import StepListener, StepLoop

_BIT = 1 << 12
"""The bit of a float32's mantissa that is wrong: a 2048th of the value's own size."""


def wrong_bit() -> None:
    """One bit of the largest logit is wrong in each row that verifies a node."""
    apply = EditedLogits.apply

    @torch.inference_mode()
    def wrong(self: EditedLogits, logits: torch.Tensor) -> torch.Tensor:
        if len(logits) > 1 and logits.dtype == torch.float32:
            largest = logits[1:].argmax(dim=-1, keepdim=True)
            bits = logits[1:].view(torch.int32)
            bits.scatter_(1, largest, bits.gather(1, largest) ^ _BIT)
        return apply(self, logits)

    EditedLogits.apply = wrong  # type: ignore[method-assign]


def rejected_key() -> None:
    """The key of a rejected node stays visible, in the place of the last committed token's."""
    commit = VerificationJob.commit

    def wrong(self: VerificationJob, accepted: list[Node]) -> None:
        kept = {id(node) for node in accepted}
        rejected = next((node for node in self.nodes if id(node) not in kept), None)
        if rejected is None:
            commit(self, accepted)
            return
        own = [*self.chain, *(node.slot for node in accepted)]
        own[-1], rejected.slot = rejected.slot, own[-1]  # the roll-back frees the committed token's slot instead
        self.sequence.slots.extend(own)

    VerificationJob.commit = wrong  # type: ignore[method-assign]


def drafted_bonus() -> None:
    """The bonus token is the drafter's, where it has drafted one there."""
    walk = VerificationJob.walk

    def wrong(self: VerificationJob, rows: AskedRows) -> tuple[list[Node], list[int]]:
        accepted, tokens = walk(self, rows)
        last = accepted[-1] if accepted else self.sequence.tree.root
        drafted = next((node for node in self.nodes if node.parent is last), None)
        return accepted, [*tokens[:-1], tokens[-1] if drafted is None else drafted.token]

    VerificationJob.walk = wrong  # type: ignore[method-assign]


def _draw_otherwise(change: Callable[[SamplingParams], SamplingParams]) -> None:
    """Draws tokens with other parameters than those that the verifier has read and reports."""
    settle = sequence.sampling_of

    def wrong(acceptance: Acceptance, params: SamplingParams) -> SamplingParams:
        return change(settle(acceptance, params))

    sequence.sampling_of = wrong


def ignored_seed() -> None:
    """Each request is drawn under a seed of its own, whatever it asks for."""
    _draw_otherwise(lambda params: replace(params, seed=secrets.randbits(53)))


def one_seed() -> None:
    """All requests are drawn under the same seed."""
    _draw_otherwise(lambda params: replace(params, seed=7))


def cooler() -> None:
    """Tokens are drawn at a lower temperature than requested."""
    _draw_otherwise(lambda params: replace(params, temperature=0.8 * params.temperature))


FAULTS = {each.__name__: each for each in (wrong_bit, rejected_key, drafted_bonus, ignored_seed, one_seed, cooler)}
"""The faults by name."""


def _plant(fault: Callable[[], None]) -> None:
    """Plants a fault when the service has loaded its target: the self-test at load finds some of them, too."""
    start = StepLoop.start

    def plant_and_start(self: StepLoop, listener: StepListener) -> None:
        fault()
        start(self, listener)

    StepLoop.start = plant_and_start  # type: ignore[method-assign]


if __name__ == "__main__":
    at = sys.argv.index("--fault")
    _plant(FAULTS[sys.argv[at + 1]])
    del sys.argv[at : at + 2]
    sys.exit(main())
