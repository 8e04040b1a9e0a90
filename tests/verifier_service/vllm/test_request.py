"""Requests as vLLM gets them, and those that it does not get."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.speculation_pb2 import ACCEPTANCE_RULE_TYPICAL, SpeculationOptions
from draftwire_core.adapters.common.request_options import RequestOptions
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import ServiceError
from tests.harness.checkout import MODELS
from verifier_service.reading.text_pool import TextPool
from verifier_service.vllm.refusals import REFUSED
from verifier_service.vllm.request import VllmOrder, VllmRequestReader, form_arguments

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


class Translated:
    """Keeps what would be made a request of vLLM."""

    def __init__(self) -> None:
        self.sampling: dict[str, Any] = {}
        self.rest: dict[str, Any] = {}

    def __call__(self, request_id: str, tokens: Sequence[int], sampling: dict[str, Any], **rest: Any) -> Any:
        if sampling["temperature"] == 2.0:
            raise ValueError("too hot today")
        self.sampling, self.rest = sampling, {"request_id": request_id, "tokens": list(tokens), **rest}
        return self


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(str(MODELS / "target"))


def read(tokenizer: Tokenizer, translate: Any = None, *, runner_v2: bool = True, **fields: Any) -> VllmOrder:
    async def nobody(names: Sequence[str]) -> None:
        assert list(names) == ["d"]

    async def run() -> VllmOrder:
        pool = TextPool()
        reader = VllmRequestReader(
            tokenizer,
            4096,
            512,
            512,
            [2],
            pool=pool,
            adapters=["sql"],
            translate=translate or Translated(),
            check_drafters=nobody,
            runner_v2=runner_v2,
        )
        try:
            return await reader.read(pb.GenerateRequest(**{"text": "def f(x):", **fields}), "r")
        finally:
            reader.close()

    return asyncio.run(run())


def test_a_complete_request_that_fills_the_context_is_read_as_any(tokenizer: Tokenizer) -> None:
    found = Translated()
    order = read(tokenizer, found, text=None, token_ids={"ids": [5] * 500}, max_tokens=12, resume_token_ids=[6] * 12)
    assert len(order.spec.tokens) == 512 == order.max_length
    assert len(found.rest["tokens"]) + found.sampling["max_tokens"] <= 512, "vLLM refuses more"


def test_a_request_is_translated(tokenizer: Tokenizer) -> None:
    found = Translated()
    order = read(
        tokenizer,
        found,
        sampling={
            "temperature": 0.5,
            "top_k": 7,
            "top_p": 0.9,
            "min_p": 0.1,
            "seed": 2**64 - 1,
            "banned_token_ids": [5],
            "logit_bias": {6: 1.5},
        },
        max_tokens=20,
        min_tokens=3,
        stop=["\n"],
        stop_token_ids=[9],
        log_probs=4,
        resume_token_ids=[11, 12],
        prefix_cache=False,
        adapter="sql",
        speculation=SpeculationOptions(drafter="d", labels={"k": "v"}, planning=2),
    )
    assert order.request is found and order.stops == ("\n",) and not order.drafter_names
    assert found.sampling == {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "seed": 2**63 - 1,  # a larger one would end vLLM's worker
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "allowed_token_ids": None,
        "max_tokens": 18,
        "min_tokens": 1,
        "stop_token_ids": [2, 9],
        "ignore_eos": True,
        "logprobs": 4,
        "prompt_logprobs": None,
        "detokenize": False,
        "skip_clone": True,
        "extra_args": RequestOptions(
            drafter_names=("d",),
            labels={"k": "v"},
            always_draft=order.always_draft,
            filters={"min_p": 0.1, "seed": 2**64 - 1},
        ).extra_args(),
    }
    assert found.rest["tokens"][-2:] == [11, 12]
    assert found.rest["ends"] == {2, 9} and found.rest["banned"] == [[5]] and found.rest["bias"] == {6: 1.5}
    assert len(found.rest["cache_salt"]) == 32 and found.rest["adapter"] == "sql"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("sampling.allowed_token_ids", {"sampling": {"allowed_token_ids": range(1025)}}),
        ("sampling.banned_token_ids", {"sampling": {"banned_token_ids": range(129)}}),
        ("sampling.bad_words", {"sampling": {"bad_words": [f"word{number}" for number in range(100)]}}),
    ],
)
def test_lists_that_would_end_runner_v2_are_refused(tokenizer: Tokenizer, field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ServiceError, match=r"vLLM's model runner V2 takes at most \d+ \(the verifier's") as caught:
        read(tokenizer, **fields)
    assert {each.field for each in caught.value.field_violations} == {field}
    read(tokenizer, **fields, runner_v2=False)


def test_most_requests_need_no_options(tokenizer: Tokenizer) -> None:
    found = Translated()
    read(tokenizer, found, sampling={"temperature": 0.0, "min_p": 0.1}, ignore_eos=True, max_tokens=4)
    assert found.sampling["extra_args"] is None
    assert found.rest["ends"] == frozenset() and found.rest["cache_salt"] is None and not found.rest["adapter"]


def test_a_form_is_checked_here_and_passed_on_in_the_librarys_notation(tokenizer: Tokenizer) -> None:
    found = Translated()
    order = read(tokenizer, found, structured_output={"json_schema": SCHEMA})
    assert '"properties"' in found.rest["form"]["json"] and not order.jump_ahead
    read(tokenizer, found, structured_output={"regex": "[ab]+"})
    assert "[ab]+" in found.rest["form"]["grammar"]
    with pytest.raises(ServiceError, match=r"structured_output\.regex"):
        read(tokenizer, structured_output={"regex": "("})
    assert form_arguments("start: /a/") == {"grammar": "start: /a/"}
    read(tokenizer, found, structured_output={"choice": {"texts": ["yes", "no"]}})
    assert '"yes" | "no"' in found.rest["form"]["grammar"]


TYPICAL = SpeculationOptions(acceptance=ACCEPTANCE_RULE_TYPICAL)
CASES: dict[str, dict[str, Any]] = {
    "sampling.temperature": {"sampling": {"temperature": 2.5}},
    "speculation.acceptance": {"speculation": TYPICAL, "sampling": {"temperature": 1.0}},
    "speculation.max_draft_tokens": {"speculation": {"max_draft_tokens": 3}},
    "speculation.prediction": {"speculation": {"prediction": {"text": "a"}}},
    "ignore_eos+structured_output": {"ignore_eos": True, "structured_output": {"regex": "a"}},
    "resume_token_ids+structured_output": {"resume_token_ids": [5], "structured_output": {"regex": "a"}},
    "resume_token_ids+sampling.presence_penalty": {"resume_token_ids": [5], "sampling": {"presence_penalty": 1.0}},
    "resume_token_ids+sampling.frequency_penalty": {"resume_token_ids": [5], "sampling": {"frequency_penalty": 1.0}},
    "resume_token_ids+sampling.bad_words": {"resume_token_ids": [5], "sampling": {"bad_words": ["a"]}},
}


@pytest.mark.parametrize("name", [name for name in REFUSED if not name[0].isupper()])
def test_what_vllm_cannot_do_is_refused_by_name(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(ServiceError) as caught:
        read(tokenizer, **CASES[name])
    [violation] = caught.value.field_violations
    field, _, other = name.partition("+")
    assert violation.field == field and other in violation.description


def test_what_vllm_refuses_itself_is_the_requests_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(ServiceError, match="vLLM refuses it: too hot today"):
        read(tokenizer, sampling={"temperature": 2.0})


def test_allowed_tokens_that_are_all_banned_leave_nothing(tokenizer: Tokenizer) -> None:
    with pytest.raises(ServiceError, match="no token at position") as caught:
        read(tokenizer, sampling={"allowed_token_ids": [7], "banned_token_ids": [7, 8]})
    assert caught.value.reason_name == "NOTHING_ALLOWED"
    read(tokenizer, sampling={"allowed_token_ids": [7, 9], "banned_token_ids": [7, 8]})
