"""The parts of the contract that vLLM, as the engine, cannot serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.engine.acceptance.acceptance import RuleName
from draftwire_core.engine.logits.logit_changes import LogitChanges
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.runtime.errors import FieldViolation, invalid_fields, refused_field
from verifier_service.reading.generate_order import GenerateOrder

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 2.0
"""vLLM's range of temperatures above 0."""

_RESUMED = "resume_token_ids+"
_PENALTIES = [each.name for each in fields(LogitChanges) if each.name.endswith("_penalty")]
_OF_OUTPUT = (*(name for name in _PENALTIES if not name.startswith("repetition")), "bad_words")
"""Fields of the sampling parameters that concern the output alone, not the prompt."""
REFUSED: Mapping[str, str] = {
    "Verify": "vLLM verifies no drafts of callers",
    "Score": "vLLM scores no texts",
    "sampling.temperature": f"must be 0, or from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE:g} with vLLM",
    "speculation.acceptance": "must be coupled: vLLM has no other rule",
    "speculation.max_draft_tokens": "must be 0 or absent: vLLM's --speculative-config has the number",
    "speculation.prediction": "is not supported: vLLM verifies drafts of the pool alone",
    "ignore_eos+structured_output": "cannot be combined with vLLM, which ends each form by the end-of-sequence token",
    f"{_RESUMED}structured_output": "cannot be combined with vLLM, which begins each form again",
    **{
        f"{_RESUMED}sampling.{name}": "cannot be combined with vLLM, which takes resumed tokens for the prompt"
        for name in _OF_OUTPUT
    },
}
"""Refused methods, fields and combinations of fields, as `Capabilities.refused` lists them, with the reasons."""
_MOST_IDS, _MOST_SEQUENCES = 1024, 128
"""Most allowed tokens of a request, as of those in banned sequences, and most such sequences, under vLLM's model runner
V2. Beyond them its worker ends, and with it all requests."""


def check_request(request: GenerateRequest) -> None:
    """Raises ServiceError (INVALID_FIELD) that names every refused field of a request, before anything of it is
    read."""
    speculation = request.speculation
    resumed = bool(request.resume_token_ids)
    _refuse(
        {
            "sampling.temperature": request.sampling.HasField("temperature")
            and not _possible_temperature(request.sampling.temperature),
            "speculation.max_draft_tokens": speculation.HasField("max_draft_tokens")
            and speculation.max_draft_tokens > 0,
            "speculation.prediction": bool(speculation.prediction.text or speculation.prediction.token_ids),
            "ignore_eos+structured_output": request.ignore_eos and request.HasField("structured_output"),
            f"{_RESUMED}structured_output": resumed and request.HasField("structured_output"),
            **{f"{_RESUMED}sampling.{name}": resumed and bool(getattr(request.sampling, name)) for name in _OF_OUTPUT},
        }
    )


def check_order(order: GenerateOrder) -> None:
    """Raises ServiceError: INVALID_FIELD for a rule of acceptance that makes a difference, NOTHING_ALLOWED if all
    allowed tokens are banned, of which vLLM would return one."""
    _refuse({"speculation.acceptance": order.acceptance.rule is not RuleName.COUPLED})
    if order.changes.allows_nothing:
        raise refused_field(
            ErrorReason.ERROR_REASON_NOTHING_ALLOWED,
            "sampling.allowed_token_ids",
            f"all of them are banned, which allows no token at position {len(order.spec.tokens)}",
        )


def check_runner_v2(order: GenerateOrder) -> None:
    """Raises ServiceError (INVALID_FIELD) that names every list that is too long for vLLM's model runner V2."""
    changes, banned = order.changes, order.changes.banned
    words = f"sampling.{changes.banning}"
    found = (
        ("sampling.allowed_token_ids", len(changes.allowed_token_ids), _MOST_IDS, "tokens"),
        (words, len(banned), _MOST_SEQUENCES, "banned sequences of tokens"),
        (words, sum(map(len, banned)), _MOST_IDS, "tokens in banned sequences"),
    )
    refused = [
        FieldViolation(
            field,
            f"has {number} {what}; vLLM's model runner V2 takes at most {most} (the verifier's variable "
            "VLLM_USE_V2_MODEL_RUNNER=0 chooses V1, which takes more)",
        )
        for field, number, most, what in found
        if number > most
    ]
    if refused:
        raise invalid_fields(refused)


def _possible_temperature(temperature: float) -> bool:
    """Whether vLLM takes a temperature; what is none is refused by name later, as for any engine."""
    if not temperature >= 0 or SamplingParams(temperature=temperature).greedy:
        return True
    return LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE


def _refuse(found: Mapping[str, bool]) -> None:
    names = [name for name, refused in found.items() if refused]
    if names:
        raise invalid_fields([FieldViolation(name.partition("+")[0], _reason(name)) for name in names])


def _reason(name: str) -> str:
    field, _, other = name.partition("+")
    return f"with {other}: {REFUSED[name]}" if other else REFUSED[name]
