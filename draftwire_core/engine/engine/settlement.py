"""The end of a step for one sequence: the target's tokens are committed, and the rest is rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.local_drafters import LocalDrafters
from draftwire_core.engine.engine.probe_planner import ProbePlanner
from draftwire_core.engine.engine.step_result import Finish, SequenceOutcome
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.planning.acceptance_model import observe_commit
from draftwire_core.engine.planning.planner import Planner
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.sampling.log_probs import likeliest


def _states_to_host(outcomes: Sequence[SequenceOutcome]) -> None:
    """Copies the hidden states of a step's outcomes to the host, all in one go.

    In the engine's thread, where nothing is queued on the device now. A reader in another thread would
    otherwise wait there for the pass after this one.
    """
    held = [outcome for outcome in outcomes if outcome.hidden_state is not None]
    if held:
        states = torch.stack([cast(torch.Tensor, outcome.hidden_state) for outcome in held]).cpu()
        for outcome, state in zip(held, states, strict=True):
            outcome.hidden_state = state


class Settlement:
    """Commits a step's result, sequence by sequence."""

    def __init__(self, pool: SlotPool, planner: Planner, clock: StepClock, local: LocalDrafters, probes: ProbePlanner):
        """planner, local, probes: the components that learn from committed tokens."""
        self._pool = pool
        self._planner = planner
        self._clock = clock
        self._local = local
        self._probes = probes
        self._asking: list[tuple[SequenceOutcome, list[int]]] = []
        """The step's outcomes that are to have the likeliest tokens, and their rows of the step."""

    def settle(self, job: VerificationJob, rows: AskedRows, now: float) -> SequenceOutcome | None:
        """Gets the accepted path from the sequence's rule, commits it, and rolls back the rest.

        rows: the job's own rows. now: the end of the pass, by time.perf_counter. Returns None if the step must be
        repeated without nodes, since a draft token may be what makes the logits bad. The caller removes a sequence
        whose outcome has a `finish`.
        """
        self._probes.learn(job, rows.drawn)
        sequence = job.sequence
        spec = sequence.spec
        accepted, tokens = job.walk(rows)
        sequence.step_alone = -1 in tokens and bool(job.nodes)
        if sequence.step_alone:
            job.undo(self._pool)
            return None
        drafted: dict[str, int] = {}
        for node in job.nodes:
            drafted[node.source] = drafted.get(node.source, 0) + 1
        tokens, finish = sequence.end_after(tokens, rows)
        sources: list[str | None] = [node.source for node in accepted[: len(tokens)]]
        sources += [None] * (len(tokens) - len(sources))
        hit = sequence.foreseen
        rejected = job.rejected(accepted) if spec.report_rejected and tokens else []
        log_probs = job.log_probs(rows, accepted, tokens)
        if tokens:
            observe_commit(sequence.tree, tokens, self._planner.models)
        if job.nodes:
            self._clock.enter("rollback")
        job.commit(accepted)
        job.rollback(accepted, self._pool)
        # The last part of a prompt may be one token, which is computed like that of an output.
        begins = not sequence.sound and sequence.cached_tokens < len(spec.tokens) - 1
        sequence.settle(sound=finish is not Finish.FAULT)
        if tokens:
            sequence.commit(tokens)
            if begins or len(job.chain) > 1:
                sequence.leave()
        if job.nodes:
            self._clock.enter("walk")
        if tokens and sequence.readers:
            self._local.commit(sequence, tokens)
        state = None
        if finish is None:
            if rows.states is not None and sequence.state_readers:
                state = self._local.see(sequence, rows.states[job.row_behind(accepted)].clone())
            if sequence.clocks and not sequence.tree.size:
                for clock in sequence.clocks.values():
                    clock.asked(len(sequence.tokens), now)
        outcome = SequenceOutcome(
            sequence_id=spec.sequence_id,
            tokens=tokens,
            sources=sources,
            committed_length=len(sequence.tokens),
            drafted=drafted,
            finish=finish,
            hit=hit,
            hidden_state=state,
            log_probs=log_probs,
            cached_tokens=sequence.cached_tokens,
            began=sequence.began or now,
            rejected=rejected,
        )
        if spec.likeliest and tokens:
            self._asking.append((outcome, [rows.first + row for row in job.path_rows(accepted, len(tokens))]))
        return outcome

    def finish(self, outcomes: Sequence[SequenceOutcome], raw: Tensor) -> None:
        """Completes a step's outcomes by what is found or copied for all of them in one go. raw [rows, V]: the target's
        unedited logits of the whole step."""
        _states_to_host(outcomes)
        asking, self._asking = self._asking, []
        if not asking:
            return
        wanted = [row for _, rows in asking for row in rows]
        end = wanted[0] + len(wanted)
        plain = wanted == list(range(wanted[0], end))  # without draft tokens nothing needs to be copied
        found = likeliest(raw[wanted[0] : end] if plain else raw[wanted])
        first = 0
        for outcome, rows in asking:
            outcome.likeliest = found.part(slice(first, first + len(rows)))
            first += len(rows)
