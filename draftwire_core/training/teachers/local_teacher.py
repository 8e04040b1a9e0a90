"""A teacher whose target runs in this process, in the same engine that serves it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.scoring import Score, ScoreSpec
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.data.example import Example, example_of
from draftwire_core.training.teachers.teacher import Question

_SLOTS = 32768
_FREE_STEPS = StepCost([1, 256], [0.001, 0.001])
"""A flat step cost: no caller waits for a step, so prompts and texts may fill each one."""


class LocalTeacher:
    """Generates and scores without a service."""

    def __init__(self, source: str, *, device: str = "cpu"):
        """Loads the target from a directory or hub id. Raises ModelLoadError."""
        checkpoint = Checkpoint.find(source)
        model = PackedModel.load(checkpoint, slots=_SLOTS, device=device)
        self._engine = VerificationEngine(model, _FREE_STEPS, EngineLimits(max_tree_nodes=1))
        self._eos = frozenset(model.eos_token_ids)
        self.tokenizer_sha256 = Tokenizer.load(checkpoint).sha256
        self.fingerprint = model.fingerprint
        self.longest = min(model.context_length, _SLOTS - 1)

    def answer(self, questions: Sequence[Question], top: int) -> list[Example]:
        """Continues the prompts and scores the continuations; see `Teacher`."""
        specs = [
            SequenceSpec(
                number,
                question.prompt,
                len(question.prompt) + question.max_tokens,
                SamplingParams(temperature=question.temperature, seed=question.seed),
                self._eos,
            )
            for number, question in enumerate(questions)
        ]
        texts = [[*spec.tokens, *after] for spec, after in zip(specs, generate_all(self._engine, specs), strict=True)]
        for number, (text, question) in enumerate(zip(texts, questions, strict=True)):
            self._engine.add_score(ScoreSpec(number, text, len(question.prompt), top))
        scores: list[list[Score]] = [[] for _ in texts]
        while self._engine.busy:
            for score in self._engine.step().scores:
                scores[score.score_id].append(score)
        return [
            example_of(
                text,
                parts[0].first,
                [row for part in parts for row in part.token_ids],
                [row for part in parts for row in part.log_probs],
            )
            for text, parts in zip(texts, scores, strict=True)
        ]

    def close(self) -> None:
        """Does nothing: the teacher holds no other resources."""
