"""SGLang's arguments, completed for the algorithm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftwire_core.adapters.sglang.server_arguments import complete, unknown_version


def arguments(**changes: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "device": "cuda",
        "pp_size": 1,
        "enable_dp_attention": False,
        "speculative_draft_model_path": None,
        "speculative_ngram_external_corpus_path": None,
        "disable_overlap_schedule": False,
        "max_running_requests": None,
        "enable_mixed_chunk": True,
        "speculative_num_draft_tokens": None,
        "enable_deterministic_inference": False,
        "page_size": 1,
        "attention_backend": "triton",
    }
    return SimpleNamespace(**fields | changes)


def test_defaults_are_those_of_ngram_with_trees() -> None:
    found = arguments()
    complete(found)
    assert (found.speculative_num_draft_tokens, found.max_running_requests) == (6, 48)
    assert not found.enable_mixed_chunk
    assert not found.disable_overlap_schedule
    assert found.speculative_eagle_topk > 1


@pytest.mark.parametrize(
    "changes",
    [{"enable_deterministic_inference": True}, {"page_size": 64, "attention_backend": "fa3"}],
    ids=["deterministic", "pages"],
)
def test_where_a_tree_would_change_output_chains_are_verified(changes: dict[str, Any]) -> None:
    found = arguments(speculative_num_draft_tokens=5, **changes)
    complete(found)
    assert (found.speculative_eagle_topk, found.speculative_num_steps) == (1, 4)


def test_chains_by_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_SGLANG_TREES", "false")
    found = arguments()
    complete(found)
    assert found.speculative_eagle_topk == 1


def test_on_cpus_steps_do_not_overlap() -> None:
    found = arguments(device="cpu")
    complete(found)
    assert found.disable_overlap_schedule


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"device": "npu"}, "--device"),
        ({"pp_size": 2}, "--pp-size"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"speculative_draft_model_path": "x"}, "--speculative-draft-model-path"),
        ({"speculative_ngram_external_corpus_path": "x"}, "--speculative-ngram-external-corpus-path"),
        ({"speculative_num_draft_tokens": 1}, "--speculative-num-draft-tokens"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        complete(arguments(**changes))


def test_versions() -> None:
    assert unknown_version("0.5.23") is None
    assert unknown_version("0.5.23+cpu") is None
    assert "SGLang 0.5.24 is unknown" in str(unknown_version("0.5.24"))
    assert unknown_version("0.5.230") is not None
