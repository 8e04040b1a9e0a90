"""Expected outputs of requests, from the same engine without drafters, one request at a time."""

from __future__ import annotations

from pathlib import Path

from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams

MOST_TOKENS = 24
"""Maximum of `max_tokens` in these tests."""


class PlainReference:
    """Plain outputs, computed once for each prompt and sampling."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = PackedModel.load(str(checkpoint), slots=256, dtype="float32")
        self._known: dict[tuple[bytes, bytes], list[int]] = {}

    def of(self, request: GenerateRequest) -> list[int]:
        """Returns the tokens of a request, cut to its limits."""
        key = request.token_ids.SerializeToString(), request.sampling.SerializeToString()
        if key not in self._known:
            self._known[key] = self._decode(request)
        tokens = self._known[key][: request.max_tokens]
        ends = [index + 1 for index, token in enumerate(tokens) if token in self._model.eos_token_ids]
        return tokens[: ends[0]] if ends and not request.ignore_eos else tokens

    def _decode(self, request: GenerateRequest) -> list[int]:
        given = request.sampling
        prompt = list(request.token_ids.ids)
        sampling = SamplingParams(
            temperature=given.temperature,
            top_k=given.top_k,
            top_p=given.top_p if given.HasField("top_p") else 1.0,
            min_p=given.min_p,
            seed=given.seed,
        )
        engine = VerificationEngine(self._model, StepCost([1], [0.01]), EngineLimits())
        engine.add(SequenceSpec(0, prompt, len(prompt) + MOST_TOKENS, sampling))
        tokens: list[int] = []
        while engine.running:
            for outcome in engine.step().outcomes:
                tokens += outcome.tokens
        return tokens
