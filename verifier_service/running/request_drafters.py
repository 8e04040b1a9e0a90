"""Drafters of single requests: expected outputs, output formats, and callers that draft."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.drafters.grammar import GrammarDrafter
from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from draftwire_core.engine.engine.step_result import SequenceOutcome, StepResult
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.tree.proposal import ProposalError
from draftwire_core.pool.drafter.proposal_sink import RefusedProposal
from draftwire_core.pool.drafter.source import CALLER, GRAMMAR, PREDICTION, request_source
from draftwire_core.runtime.errors import failed_precondition
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.running.caller_drafting import CallerDrafting
from verifier_service.step_loop import StepLoop


class RequestDrafters:
    """Attaches the drafters that belong to one request each, and forgets them when it ends. Used in the event loop
    only."""

    def __init__(self, steps: StepLoop | None) -> None:
        """steps: takes their proposals; None for an engine that takes none, whose requests then ask for none."""
        self._steps = steps
        self._predictions = AcceptanceModel()
        """Acceptance statistics of the predictions of all requests."""
        self._sources: dict[int, list[str]] = {}
        """Attached drafters in the engine's thread, by sequence id."""
        self._callers: dict[int, CallerDrafting] = {}
        """Callers that draft for their own request, by sequence id."""

    @property
    def callers(self) -> Collection[int]:
        """The sequences whose callers draft."""
        return self._callers.keys()

    def check_callers(self) -> None:
        """Raises ServiceError (NOT_ENABLED) if callers cannot draft."""
        if self._steps is None:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_NOT_ENABLED, "Verify: the verifier's engine takes no drafts from callers"
            )

    def attach(self, order: GenerateOrder) -> None:
        """Attaches what drafts for a request in the engine's thread: from its prediction, and from its form."""
        spec = order.spec
        if order.speculate and order.prediction:
            drafter = prediction_drafter(order.prediction, order.prompt_length, self._predictions)
            self._attach(spec.sequence_id, PREDICTION, drafter)
        if spec.form is not None and order.jump_ahead:
            self._attach(spec.sequence_id, GRAMMAR, GrammarDrafter(spec.form))

    def _attach(self, sequence_id: int, kind: str, drafter: Drafter) -> None:
        assert self._steps is not None
        source = request_source(kind, sequence_id)
        self._sources.setdefault(sequence_id, []).append(source)
        self._steps.add_drafter(source, drafter)
        self._steps.attach(sequence_id, source, kind=kind)

    @contextmanager
    def caller(self, sequence_id: int, refused: Callable[[ProposalError], None]) -> Iterator[CallerDrafting]:
        """Yields what a running request's own caller submits proposals to.

        refused: called with a proposal that contradicts itself; no later proposal is accepted.
        """
        assert self._steps is not None
        source = request_source(CALLER, sequence_id)
        drafting = CallerDrafting(self._steps, sequence_id, source, refused)
        self._callers[sequence_id] = drafting
        try:
            self._steps.attach(sequence_id, source)
            yield drafting
        finally:
            del self._callers[sequence_id]
            self._steps.forget(source)

    def forget(self, sequence_id: int) -> None:
        """Forgets what drafted for an ended request in the engine's thread."""
        for source in self._sources.pop(sequence_id, ()):
            assert self._steps is not None
            self._steps.forget(source)

    def stepped(self, result: StepResult, going_on: Mapping[int, SequenceOutcome]) -> None:
        """Settles a step with the callers. going_on: outcomes of requests that continue, by sequence id."""
        for sequence_id, drafting in self._callers.items():
            drafting.stepped(result, going_on.get(sequence_id))

    def refuse(self, fault: RefusedProposal) -> bool:
        """Passes a faulty proposal's error on to the caller that sent it. Returns whether a caller did."""
        drafting = self._callers.get(fault.sequence_id)
        if drafting is None or drafting.source != fault.source:
            return False
        drafting.refused(fault.error)
        return True
