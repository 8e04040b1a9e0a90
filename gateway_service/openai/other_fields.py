"""Fields of other servers' APIs: those that change the output are refused by name, and no other one goes unmentioned.

A field that a request model declares never comes here. What is neither refused nor known to be harmless is left out,
and the response says so (`gateway_service.http.left_out`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway_service.http.errors import GatewayError

_NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values that ask for nothing. So does False, except of the fields below and of those that nothing is known about."""
_ASKED_BY_FALSE = frozenset(["do_sample", "include_reasoning", "stream_reasoning", "parse_tool_calls", "think"])
"""Fields whose False asks for something: what is not done here, or what is done under another name."""
_REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "functions": ("functions are not supported; tools are", ()),
    "function_call": ("functions are not supported; tools are", ("none",)),
    "audio": ("audio is not supported", ()),
    "web_search_options": ("web search is not supported", ()),
    "use_beam_search": ("beam search is not supported", ()),
    "chat_template": ("only the model's own chat template is supported; chat_template_kwargs are its variables", ()),
    "truncate_prompt_tokens": ("truncating the prompt is not supported", ()),
    "prompt_embeds": ("only text and token ids are supported", ()),
    "input_embeds": ("only text and token ids are supported", ()),
    "logits_processors": ("processors of the caller are not supported", ()),
    "logit_processors": ("processors of the caller are not supported", ()),
    "custom_logit_processor": ("processors of the caller are not supported", ()),
    "custom_params": ("processors of the caller are not supported", ()),
    "vllm_xargs": ("extensions of vLLM are not supported", ()),
    "structural_tag": ("structural tags are not supported; grammar is", ()),
    "guided_whitespace_pattern": ("white space of JSON is fixed; x-guidance in the schema changes it", ()),
    "grammar_lazy": ("a grammar applies to the whole output", ()),
    "grammar_triggers": ("a grammar applies to the whole output", ()),
    "lora": ("an adapter is named as the model", ()),
    "lora_path": ("an adapter is named as the model", ()),
    "adapter_id": ("adapters are not supported", ()),
    "session_params": ("sessions are not supported", ()),
    "thinking_token_budget": ("the length of reasoning cannot be limited; reasoning_effort may be", ()),
    "thinking_budget": ("the length of reasoning cannot be limited; reasoning_effort may be", ()),
    "thinking_budget_tokens": ("the length of reasoning cannot be limited; reasoning_effort may be", (-1,)),
    "reasoning_budget": ("the length of reasoning cannot be limited; reasoning_effort may be", (-1,)),
    "thinking_forced_open": ("reasoning cannot be forced", ()),
    "include_reasoning": ("reasoning is always reported", (True,)),
    "stream_reasoning": ("reasoning is always streamed", (True,)),
    "reasoning_format": ("separate_reasoning: false leaves reasoning in the content", ("auto", "deepseek")),
    "parse_tool_calls": ("calls are always read; without tools there are none", (True,)),
    "return_hidden_states": ("hidden states are not reported", ()),
    "return_routed_experts": ("experts are not reported", ()),
    "return_token_ids": ("token ids are not reported; logprobs are", ()),
    "return_tokens": ("token ids are not reported; logprobs are", ()),
    "return_tokens_as_token_ids": ("tokens are reported by their texts", ()),
    "post_sampling_probs": ("log-probabilities are those before sampling", ()),
    "response_fields": ("the fields of a response cannot be chosen", ()),
    "repetition_detection": ("detecting repetitions is not supported", ()),
    "stop_regex": ("expressions that end the output are not supported; stop is", ()),
    "dynatemp_range": ("a dynamic temperature is not supported", (0,)),
    "xtc_probability": ("XTC sampling is not supported", (0,)),
    "dry_multiplier": ("DRY sampling is not supported", (0,)),
    "mirostat": ("Mirostat sampling is not supported", (0,)),
    "mirostat_mode": ("Mirostat sampling is not supported", (0,)),
    "top_n_sigma": ("top-n-sigma sampling is not supported", (-1, 0)),
    "top_a": ("top-a sampling is not supported", (0,)),
    "tfs_z": ("tail-free sampling is not supported", (1,)),
    "tfs": ("tail-free sampling is not supported", (1,)),
    "eta_cutoff": ("eta sampling is not supported", (0,)),
    "epsilon_cutoff": ("epsilon sampling is not supported", (0,)),
    "smoothing_factor": ("quadratic sampling is not supported", (0,)),
    "adaptive_target": ("adaptive-p sampling is not supported", (-1,)),
    "no_repeat_ngram_size": ("forbidding repeated n-grams is not supported", (0,)),
    "min_keep": ("a least number of kept tokens is not supported", (0, 1)),
    "samplers": ("the order of samplers is fixed", ()),
    "n_indent": ("a least indentation is not supported", (0,)),
    "do_sample": ("temperature: 0 is greedy", (True,)),
    "num_beams": ("beam search is not supported", (1,)),
    "guidance_scale": ("guidance is not supported", (1,)),
    "cfg_scale": ("guidance is not supported", (1,)),
    "negative_prompt": ("guidance is not supported", ()),
    "penalty_alpha": ("contrastive search is not supported", (0,)),
    "encoder_repetition_penalty": ("a penalty of the prompt's tokens alone is not supported", (1,)),
    "safe_prompt": ("the gateway adds no prompt; a message of the role system does", ()),
    "truncate": ("truncating the prompt is not supported", ()),
    "extra_body": ("its fields are fields of the request itself", ()),
    "options": ("its fields are fields of the request itself", ()),
}
"""Fields that change the output or the response and are not supported: why, and further values that ask for nothing."""
_SPELLED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "n_predict": ("max_tokens", (-1,)),
    "max_new_tokens": ("max_tokens", ()),
    "max_output_tokens": ("max_tokens", ()),
    "max_length": ("max_tokens", ()),
    "min_new_tokens": ("min_tokens", (0,)),
    "repeat_penalty": ("repetition_penalty", (1,)),
    "typical": ("typical_p", (1,)),
    "n_probs": ("logprobs", (0,)),
    "n_cmpl": ("n", (1,)),
    "stop_sequences": ("stop", ()),
    "t_max_predict_ms": ("max_time, in seconds", (0, -1)),
    "no_stop_trim": ("include_stop_str_in_output", ()),
    "structured_output": ("structured_outputs", ()),
    "system": ("a message of the role system", ()),
    "random_seed": ("seed", ()),
    "max_tokens_to_sample": ("max_tokens", ()),
    "num_predict": ("max_tokens", (-1,)),
    "rep_pen": ("repetition_penalty", (1,)),
    "stop_sequence": ("stop", ()),
    "system_prompt": ("a message of the role system", ()),
    "think": ("enable_thinking", ()),
    "format": ("response_format", ()),
    "grammar_string": ("grammar", ()),
    "regex_pattern": ("regex", ()),
    "banned_strings": ("bad_words", ()),
    "ban_eos_token": ("ignore_eos", ()),
}
"""Names of other servers for what has another one here, and further values that ask for nothing."""
HARMLESS = frozenset(
    [
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "priority",
        "request_id",
        "rid",
        "cache_salt",
        "cache_prompt",
        "id_slot",
        "slot_id",
        "timings_per_token",
        "return_progress",
        "guided_decoding_backend",
        "kv_transfer_params",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "length_penalty",
        "early_stopping",
        "n_keep",
        "n_discard",
        "spaces_between_special_tokens",
        "dynatemp_exponent",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "xtc_threshold",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_decay",
        "smoothing_curve",
        "truncation",
        "max_tool_calls",
        "client_metadata",
    ]
)
"""Fields that change no token and nothing of the response, or only together with one that is refused."""
_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Penalties, and their values that ask for nothing."""
_WINDOWS = ("repeat_last_n", "penalty_last_n")


def check_others(fields: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuses fields that change the output. fields: those that are not declared. given: the declared ones.

    Raises:
        GatewayError: the field, and what there is in its place.
    """
    for name, value in fields.items():
        if name in _SPELLED:
            there, neutral = _SPELLED[name]
            if not _asks_nothing(name, value, neutral):
                _refuse(name, f"is {there} here")
        elif name in _REFUSED:
            reason, neutral = _REFUSED[name]
            if not _asks_nothing(name, value, neutral):
                _refuse(name, reason)
        elif name in _WINDOWS and value not in (None, -1) and _has_penalty(given):
            _refuse(name, "penalties are of all tokens")


def left_out(fields: Mapping[str, Any]) -> list[str]:
    """Returns the names of undeclared fields about which nothing is known, and that ask for something."""
    known = (_REFUSED, _SPELLED, HARMLESS, _WINDOWS)
    return [
        name for name, value in fields.items() if not any(name in each for each in known) and not _is_empty(value, ())
    ]


def _has_penalty(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) not in (None, neutral) for name, neutral in _PENALTIES.items())


def _asks_nothing(name: str, value: Any, neutral: tuple[Any, ...]) -> bool:
    return _is_empty(value, neutral) or (value is False and name not in _ASKED_BY_FALSE)


def _is_empty(value: Any, neutral: tuple[Any, ...]) -> bool:
    # 0 is not False here, since for some of them it is a value like any other.
    same = isinstance(value, bool)
    return any(value == each and isinstance(each, bool) == same for each in (*_NOTHING, *neutral))


def _refuse(name: str, reason: str) -> None:
    raise GatewayError(f"{name}: {reason}", param=name, code="unsupported_parameter")
