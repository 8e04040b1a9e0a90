"""Engines whose drafter is an early exit of the target model."""

from draftwire_core.engine.drafters.early_exit import EarlyExitDrafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import GREEDY, random_tokens, specs_of

PROMPTS = [random_tokens(27, seed=1), random_tokens(3, seed=2), random_tokens(45, seed=3), [7], random_tokens(12)]
SAMPLING = [GREEDY, SamplingParams(temperature=0.8, seed=3), GREEDY, SamplingParams(seed=4), SamplingParams(seed=5)]
COUNT = 40
SPECS = specs_of(PROMPTS, COUNT, SAMPLING)


class Attached(VerificationEngine):
    """An engine that attaches all its drafters to every sequence."""

    def add(self, spec: SequenceSpec) -> None:
        super().add(spec)
        for source in self._local._drafters:
            self.attach(spec.sequence_id, source)

    @property
    def drafter(self) -> EarlyExitDrafter:
        found = self._local._drafters["early"]
        assert isinstance(found, EarlyExitDrafter)
        return found


def engine_with(
    layers: int | None, model: PackedModel, seconds: float = 1.0, share: float = 0.01, **limits: int
) -> Attached:
    """Returns an engine with steps of `seconds` at any size; a drafting round is assumed to take `share` of a step."""
    limits.setdefault("max_sequences", 8)
    engine = Attached(model, StepCost([1, 64], [seconds, seconds]), EngineLimits(**limits))
    if layers is not None:
        engine.add_drafter("early", EarlyExitDrafter(model.first_layers(layers), share))
    return engine
