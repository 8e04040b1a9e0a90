"""Fields of other servers' APIs: each is done, refused by its name, harmless, or named in the response."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway_service.openai.chat_request import ChatRequest
from gateway_service.openai.other_fields import HARMLESS
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier

OPENAI_CHAT = """audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
    metadata modalities model n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention
    reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options temperature
    tool_choice tools top_logprobs top_p user verbosity web_search_options"""
VLLM = """add_generation_prompt add_special_tokens allowed_token_ids bad_words best_of cache_salt chat_template
    chat_template_kwargs continue_final_message documents echo guided_choice guided_decoding_backend guided_grammar
    guided_json guided_regex guided_whitespace_pattern ignore_eos include_reasoning include_stop_str_in_output
    kv_transfer_params length_penalty logits_processors media_io_kwargs min_p min_tokens mm_processor_kwargs priority
    prompt_embeds prompt_logprobs repetition_detection repetition_penalty request_id return_token_ids
    return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens stop_token_ids structural_tag
    structured_outputs thinking_token_budget top_k truncate_prompt_tokens use_beam_search vllm_xargs"""
LLAMA_CPP = """adaptive_decay adaptive_target cache_prompt dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
    dry_sequence_breakers dynatemp_exponent dynatemp_range grammar grammar_lazy grammar_triggers id_slot json_schema
    lora min_keep mirostat mirostat_eta mirostat_tau n_cmpl n_discard n_indent n_keep n_predict n_probs parse_tool_calls
    post_sampling_probs reasoning_budget reasoning_format repeat_penalty response_fields return_progress return_tokens
    samplers t_max_predict_ms thinking_budget_tokens thinking_forced_open timings_per_token top_n_sigma typical_p
    xtc_probability xtc_threshold"""
SGLANG = """custom_logit_processor custom_params ebnf input_embeds lora_path max_new_tokens min_new_tokens no_stop_trim
    regex return_hidden_states
    return_routed_experts rid separate_reasoning session_params stop_regex stream_reasoning"""
OTHERS = """ban_eos_token banned_strings cfg_scale do_sample enable_thinking encoder_repetition_penalty extra_body
    format grammar_string guidance_scale max_length max_tokens_to_sample negative_prompt no_repeat_ngram_size num_beams
    num_predict options penalty_alpha random_seed reasoning regex_pattern rep_pen safe_prompt stop_sequence
    stop_sequences system system_prompt tfs_z think thinking thinking_budget top_a truncate"""
NEUTRAL: dict[str, Any] = {
    "mirostat": 0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "dynatemp_range": 0.0, "n_predict": -1, "n_probs": 0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "repeat_penalty": 1.0,
    "repeat_last_n": 64, "top_n_sigma": -1.0, "min_keep": 0, "n_indent": 0, "samplers": [],
    "grammar": None, "t_max_predict_ms": 0, "response_fields": [], "functions": [], "function_call": "none",
    "lora": [], "stop_regex": None, "best_of": None, "include_reasoning": True, "suffix": "",
    "logprobs": False, "top_logprobs": 0, "use_beam_search": False, "ban_eos_token": False, "do_sample": True,
    "guidance_scale": 1.0, "num_beams": 1, "negative_prompt": "",
}  # fmt: skip
"""What clients of other servers send for what they do not use."""
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
LEFT_OUT = "x-draftwire-left-out"


@pytest.fixture
def fake() -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier() as made:
        made.answer = "So it is."
        yield made


@pytest.mark.parametrize("server", [OPENAI_CHAT, VLLM, LLAMA_CPP, SGLANG, OTHERS])
async def test_no_field_is_ignored_without_a_word(http: httpx.AsyncClient, server: str) -> None:
    for name in server.split():
        response = await http.post("/v1/chat/completions", json=BODY | {name: "0.37"})
        if name in ChatRequest.model_fields or name in HARMLESS:
            continue
        assert response.status_code == 400, name
        error = response.json()["error"]
        assert error["param"] == name and error["message"].startswith(f"{name}: "), name


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_what_is_not_known_is_named(http: httpx.AsyncClient, path: str) -> None:
    prompt: Any = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}.get(path, BODY)
    body = prompt | {"temprature": 0, "user": "me", "metadata": {"a": "b"}, "ünknown,": [1], "empty": None}
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers[LEFT_OUT] == "temprature, ?nknown?"
    assert LEFT_OUT not in (await http.post(path, json=prompt | {"user": "me", "store": True})).headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_what_is_not_stored_is_private(http: httpx.AsyncClient, fake: ScriptedVerifier, path: str) -> None:
    prompt: Any = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}.get(path, BODY)
    for more, private in (({}, False), ({"store": None}, False), ({"store": True}, False), ({"store": False}, True)):
        response = await http.post(path, json=prompt | more)
        assert response.status_code == 200, response.text
        assert LEFT_OUT not in response.headers
        assert fake.requests[-1].private is private, more
    error = (await http.post(path, json=prompt | {"store": "no"})).json()["error"]
    assert error["param"] == "store"


async def test_usage_in_each_chunk_is_left_out(http: httpx.AsyncClient) -> None:
    """GuideLLM asks for it in every stream, and reads the usage of the last chunk that has one."""
    asked = BODY | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    response = await http.post("/v1/chat/completions", json=asked)
    assert (response.status_code, response.headers.get(LEFT_OUT)) == (200, "stream_options.continuous_usage_stats")
    *_, last, _ = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert json.loads(last)["usage"]["completion_tokens"] > 0


async def test_values_that_ask_for_nothing_pass(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/chat/completions", json=BODY | NEUTRAL)
    assert response.status_code == 200, response.text
    assert LEFT_OUT not in response.headers


@pytest.mark.parametrize("name", ["do_sample", "include_reasoning", "parse_tool_calls", "stream_reasoning", "think"])
async def test_false_that_asks_for_something_is_refused(http: httpx.AsyncClient, name: str) -> None:
    error = (await http.post("/v1/chat/completions", json=BODY | {name: False})).json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


async def test_false_of_a_field_that_is_not_known_is_named(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/chat/completions", json=BODY | {"enable_reasoning": False, "echo": False})
    assert (response.status_code, response.headers[LEFT_OUT]) == (200, "enable_reasoning")


async def test_a_window_of_penalties(http: httpx.AsyncClient) -> None:
    body = BODY | {"repeat_last_n": 64, "repetition_penalty": 1.1}
    error = (await http.post("/v1/chat/completions", json=body)).json()["error"]
    assert error["param"] == "repeat_last_n"


SCHEMA = {"type": "object", "properties": {"team": {"type": "string"}}, "required": ["team"]}


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema"),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}}, "json_schema"),
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"grammar": 'root ::= "a"'}, "ebnf"),
        ({"ebnf": 'root ::= "a"'}, "ebnf"),
    ],
)
async def test_forms_of_other_servers(http: httpx.AsyncClient, fake: ScriptedVerifier, body: Any, form: str) -> None:
    response = await http.post("/v1/chat/completions", json=BODY | body)
    assert response.status_code == 200, response.text
    sent = fake.requests[-1].structured_output
    assert sent.WhichOneof("form") == form
    if form == "json_schema":
        assert "team" in sent.json_schema


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
async def test_a_schema_of_the_responses_api(http: httpx.AsyncClient, fake: ScriptedVerifier, kind: str) -> None:
    body = {"input": "x", "text": {"format": {"type": kind, "schema": SCHEMA}}}
    response = await http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    assert "team" in fake.requests[-1].structured_output.json_schema
    response = await http.post("/v1/responses", json=body | {"text": {"format": {"type": "text", "schema": SCHEMA}}})
    assert response.status_code == 400 and response.json()["error"]["param"] == "text.format.schema", response.text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json_schema": SCHEMA}}, "structured_outputs.json_schema"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
    ],
)
async def test_forms_that_are_refused(http: httpx.AsyncClient, body: Any, param: str) -> None:
    response = await http.post("/v1/chat/completions", json=BODY | body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text
