"""What `draftwire serve` is to run."""

from dataclasses import replace
from pathlib import Path

import pytest

from draftwire_tools.serve.auto import AUTO
from draftwire_tools.serve.device import Device, device_here
from draftwire_tools.serve.plan import Options, ServePlan, check, name_of, plan_of

OPTIONS = Options(Device("cpu", "auto", "cpu"))


def plan(*drafts: str, threads: int = 8, options: Options = OPTIONS) -> ServePlan:
    return plan_of("target", drafts, threads, options)


def test_models_are_apart_from_drafters_in_the_verifier() -> None:
    made = plan("small", "local:ngram", "local:mtp")
    assert (made.drafts, made.local) == ({"small": "small"}, ("local:ngram", "local:mtp"))
    assert (plan().drafts, plan().local) == ({}, ())


def test_drafters_are_named_after_their_models(tmp_path: Path) -> None:
    here = tmp_path / "tiny"
    here.mkdir()
    made = plan("Qwen/Qwen3-0.6B", "lab/files/draft-q4.gguf", "other/Qwen3-0.6B", str(here))
    assert list(made.drafts) == ["Qwen3-0.6B", "draft-q4", "Qwen3-0.6B-2", "tiny"]
    assert name_of("Qwen/Qwen3-8B") == "Qwen3-8B"


def test_threads_are_divided() -> None:
    assert (plan("a", "b").verifier_threads, plan("a", "b").drafter_threads) == (4, 2)
    assert (plan("a", "b", threads=1).verifier_threads, plan("a", "b", threads=1).drafter_threads) == (1, 1)


@pytest.mark.parametrize(
    ("drafts", "options", "message"),
    [
        (("a", "a"), OPTIONS, "the same draft is given twice"),
        ((), replace(OPTIONS, learn_directory=Path("learned")), "--learn-dir: applies to --learn, which is not given"),
        ((), replace(OPTIONS, learn_prompts=Path("file")), "--learn-prompts: applies to --learn, which is not given"),
        ((), replace(OPTIONS, learn_probabilities=True), "--learn-probabilities: applies to --learn, which is not"),
        ((), replace(OPTIONS, learn=True, learn_prompts=Path("no")), "--learn-prompts: there is no file no"),
        ((), Options(OPTIONS.device, chat_template=Path("/no/such")), "--chat-template: there is no file"),
        (("local:mtp",), Options(OPTIONS.device, target_tokenizer="t"), "--target-tokenizer: applies to draft models"),
    ],
)
def test_what_is_wrong(drafts: tuple[str, ...], options: Options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(drafts, options)


def test_the_targets_tokenizer_is_for_named_draft_models() -> None:
    given = Options(OPTIONS.device, target_tokenizer="t")
    check((AUTO, "small"), given)
    with pytest.raises(ValueError, match="--target-tokenizer: applies to draft models"):
        check((AUTO,), given)


@pytest.mark.parametrize(
    ("flags", "variable", "scheme"),
    [
        ((), None, "http"),
        (("--insecure",), "", "http"),
        (("--tls-cert", "a", "--tls-key", "b"), None, "https"),
        ((), "/certificate.pem", "https"),
    ],
)
def test_the_endpoint_is_served_by_https_where_a_flag_or_a_variable_says_so(
    flags: tuple[str, ...], variable: str | None, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAFTWIRE_GATEWAY_TLS_CERT", raising=False)
    if variable is not None:
        monkeypatch.setenv("DRAFTWIRE_GATEWAY_TLS_CERT", variable)
    assert Options(OPTIONS.device, gateway_flags=flags).scheme == scheme


@pytest.mark.processes
def test_a_device_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"^--device: .*gpu"):
        device_here("gpu")


@pytest.mark.processes
def test_the_device_is_found_out() -> None:
    found = device_here("cpu")
    assert (found.target, found.drafts, found.about) == ("cpu", "cpu", "cpu")
