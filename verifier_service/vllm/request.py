"""Reads requests as the verifier does, and translates them into vLLM's."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.adapters.common.request_options import RequestOptions
from draftwire_core.engine.logits.grammar_form import GrammarForm
from draftwire_core.engine.logits.logit_changes import LogitChanges
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.runtime.errors import invalid_field
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.reading.request import RequestReader
from verifier_service.vllm.refusals import check_order, check_request, check_runner_v2

_LISTED = '{"grammars":'
"""Beginning of the library's notation of schemas and regular expressions; grammars in Lark stay as they are."""
_VLLMS = ("top_k", "top_p")
"""Sampling parameters that vLLM has by the same names and takes with speculation, besides temperature and seed."""
_MOST_SEED = (1 << 63) - 1
"""Largest seed of vLLM, whose runner V2 ends by a larger one. It reads -1 as none."""
_PENALTIES = tuple(each.name for each in fields(LogitChanges) if each.name.endswith("_penalty"))
"""Logit changes that vLLM has by the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOrder(GenerateOrder):
    """A checked request, with its translation."""

    request: Any
    """vLLM's EngineCoreRequest, which vLLM has checked."""


class Translate(Protocol):
    """Makes vLLM's requests; `VllmTarget.translate` does."""

    def __call__(
        self,
        request_id: str,
        tokens: Sequence[int],
        sampling: dict[str, Any],
        *,
        ends: frozenset[int],
        bias: dict[int, float],
        banned: list[list[int]],
        form: dict[str, Any] | None,
        cache_salt: str | None,
        adapter: str,
    ) -> Any:
        """Returns vLLM's EngineCoreRequest.

        tokens: prompt and resumed output. sampling: arguments of vLLM's SamplingParams. ends: tokens that end the
        output. bias: added to the logits of tokens. banned: sequences of tokens that must not occur in it. form:
        arguments of vLLM's StructuredOutputsParams. cache_salt: keeps the request's prefix from others. adapter: name
        of the LoRA adapter; empty for none. Raises ValueError for what vLLM refuses.
        """


class VllmRequestReader(RequestReader):
    """Reads requests for vLLM. Every fault is a ServiceError that names the field."""

    def __init__(
        self,
        *args: Any,
        translate: Translate,
        check_drafters: Callable[[Sequence[str]], Awaitable[None]],
        runner_v2: bool = False,
        **options: Any,
    ):
        """args, options: as of RequestReader. check_drafters: raises ServiceError if a drafter is not attached.
        runner_v2: whether vLLM's model runner is V2."""
        super().__init__(*args, **options)
        self._runner_v2 = runner_v2
        self._translate = translate
        self._check_drafters = check_drafters

    async def read(self, request: GenerateRequest, request_id: str = "", peer: str = "") -> VllmOrder:
        """Checks, completes and translates a request. Raises ServiceError, see `RequestReader.read`."""
        check_request(request)
        order = await super().read(request, request_id, peer)
        check_order(order)
        if self._runner_v2:
            check_runner_v2(order)
        if order.drafter_names:
            await self._check_drafters(order.drafter_names)
        form = order.spec.form
        asked = None
        if form is not None:
            assert isinstance(form, GrammarForm)
            asked = form_arguments(await asyncio.to_thread(form.grammar.notation))
        try:
            translated = self._translate(
                f"{order.request_id}/{order.spec.sequence_id}",
                order.spec.tokens[: order.max_length - 1],  # a resumed request that is complete never runs
                sampling_arguments(order),
                ends=order.spec.eos_token_ids,
                bias=dict(order.changes.logit_bias),
                banned=order.changes.banned,
                form=asked,
                cache_salt=None if order.spec.takes_prefix else secrets.token_hex(16),
                adapter=request.adapter,
            )
        except ValueError as error:
            raise invalid_field("request", f"vLLM refuses it: {error}") from error
        given = {each.name: getattr(order, each.name) for each in fields(order)}
        # What drafts is the business of the pool inside vLLM: the verifier's own has no drafters.
        return VllmOrder(**{**given, "jump_ahead": False, "drafter_names": ()}, request=translated)


def sampling_arguments(order: GenerateOrder) -> dict[str, Any]:
    """Returns the arguments of vLLM's SamplingParams for a request. Text is the verifier's: vLLM gets neither stop
    strings nor the order to decode."""
    spec, sampling, changes = order.spec, order.sampling, order.changes
    options = RequestOptions(
        speculate=order.speculate,
        drafter_names=order.drafter_names,
        labels=order.labels,
        drafters=order.drafters,
        always_draft=order.always_draft,
        filters={} if sampling.greedy else _filters(sampling),
    )
    return {
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        **{name: getattr(sampling, name) for name in _VLLMS},
        "seed": sampling.seed & _MOST_SEED,
        **{name: getattr(changes, name) for name in _PENALTIES},
        "allowed_token_ids": list(changes.allowed_token_ids) or None,
        "max_tokens": max(1, order.max_length - len(spec.tokens)),  # of a resumed request that is complete, 0 are left
        "min_tokens": max(0, changes.min_tokens - len(order.resumed)),
        "stop_token_ids": sorted(spec.eos_token_ids),
        "ignore_eos": True,  # the tokens that end this request are those above
        "logprobs": spec.logprobs,
        "prompt_logprobs": spec.prompt_logprobs,
        "detokenize": False,
        "skip_clone": True,
        "extra_args": options.extra_args(),
    }


def _filters(sampling: SamplingParams) -> dict[str, float]:
    """Returns the sampling parameters that vLLM has not, or refuses with speculation, unless they keep all tokens; and
    a seed that it cannot have."""
    usual = asdict(SamplingParams()) | ({"seed": sampling.seed} if sampling.seed <= _MOST_SEED else {})
    found = {name: value for name, value in asdict(sampling).items() if name not in ("temperature", *_VLLMS)}
    return {name: value for name, value in found.items() if value != usual[name]}


def form_arguments(notation: str) -> dict[str, Any]:
    """Returns the arguments of vLLM's StructuredOutputsParams for a form in the notation of the grammar library, which
    is also that of vLLM's backend `guidance`."""
    if not notation.startswith(_LISTED):
        return {"grammar": notation}
    (grammar,) = json.loads(notation)["grammars"]
    if grammar.get("json_schema") is not None:
        return {"json": json.dumps(grammar["json_schema"])}
    return {"grammar": grammar["lark_grammar"]}
