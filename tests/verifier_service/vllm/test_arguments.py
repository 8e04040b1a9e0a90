"""vLLM's arguments, and the variables of the pool inside it, from the verifier's settings."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

import pytest

from draftwire_core.runtime.process.settings import load_settings
from draftwire_core.runtime.process.startup_error import StartupError
from verifier_service.settings import VerifierSettings, with_engine_arguments
from verifier_service.vllm.arguments import WORKER, engine_arguments, pool_variables


class Arguments(SimpleNamespace):
    """Has the making of vLLM's AsyncEngineArgs."""

    @classmethod
    def from_cli_args(cls, given: argparse.Namespace) -> Arguments:
        return cls(**vars(given))


def parser() -> argparse.ArgumentParser:
    """A parser with those of vLLM's arguments that the verifier looks at."""
    made = argparse.ArgumentParser()
    for flag in (
        "--model",
        "--revision",
        "--tokenizer",
        "--tokenizer-revision",
        "--worker-cls",
        "--generation-config",
        "--logprobs-mode",
        "--dtype",
    ):
        made.add_argument(flag)
    for flag in ("--skip-tokenizer-init", "--trust-remote-code", "--disable-log-stats", "--enable-lora"):
        made.add_argument(flag, action="store_true")
    made.add_argument("--speculative-config", type=json.loads)
    made.add_argument("--max-num-seqs", type=int)
    made.add_argument("--data-parallel-size", type=int, default=1)
    made.add_argument("--max-logprobs", type=int, default=20)
    return made


def settings(*flags: str) -> VerifierSettings:
    return load_settings(VerifierSettings, with_engine_arguments(["--engine", "vllm", "--model", "m", *flags]))


def arguments(*flags: str) -> Any:
    return engine_arguments(settings(*flags), parser(), Arguments)[0]


def test_what_follows_the_dashes_is_vllms() -> None:
    found = arguments("--max-sequences", "8", "--", "--dtype", "float32", "--speculative-config", "{}")
    assert (found.model, found.dtype, found.worker_cls) == ("m", "float32", WORKER)
    assert (found.max_num_seqs, found.max_logprobs) == (8, 64)
    assert found.speculative_config["num_speculative_tokens"] == 5


def test_a_model_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert arguments("--model", "~/models/target").model == "/home/somebody/models/target"
    assert arguments("--model", "hf://lab/target").model == "lab/target"


def test_the_number_of_draft_tokens_may_be_said() -> None:
    found = arguments("--", "--speculative-config", '{"num_speculative_tokens": 3}', "--max-num-seqs", "4")
    assert found.speculative_config["num_speculative_tokens"] == 3
    assert found.speculative_config["model"] == "draftwire_vllm.RemoteDrafter"
    assert found.max_num_seqs == 4


def test_adapters_have_names() -> None:
    given = settings("--", "--lora-modules", "sql=adapters/sql", "chat=owner/chat=2")
    found, adapters = engine_arguments(given, parser(), Arguments)
    assert (found.enable_lora, adapters) == (True, {"sql": "adapters/sql", "chat": "owner/chat=2"})
    assert not arguments("--", "--dtype", "float32").enable_lora


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--model", "other"], "--model after --"),
        (["--revision", "v2"], "--revision after --: .* name the directory of this one by --model"),
        (["--tokenizer-revision", "v2"], "--tokenizer-revision after --"),
        (["--worker-cls", "mine"], "--worker-cls after --"),
        (["--disable-log-stats"], "--disable-log-stats after --"),
        (["--lora-modules", "a"], "--lora-modules after --: expected NAME=PATH with different names, got a"),
        (["--lora-modules", "a=b", "a=c"], "--lora-modules after --: expected .* different names, got a=b a=c"),
        (["--data-parallel-size", "2"], "--data-parallel-size after --: .* start a verifier for each"),
        (["--speculative-config", '{"method": "eagle"}'], "--speculative-config after --: .* got method"),
    ],
)
def test_what_the_verifier_sets_is_refused_by_name(given: list[str], named: str) -> None:
    with pytest.raises(StartupError, match=named):
        arguments("--", *given)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--engine", "vllm", "--kv-slots", "1024", "--dtype", "float32"], "--dtype, --kv-slots: not with"),
        (["--engine", "vllm", "--preflight", "--allow-slow-layers"], "--allow-slow-layers, --preflight: not with"),
        (["--engine", "vllm", "--drafter", "auto"], "--drafter: auto requires --engine draftwire"),
        (["--", "--dtype", "float32"], "--engine-arguments: requires --engine vllm"),
    ],
)
def test_a_setting_of_the_other_engine_is_refused(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load_settings(VerifierSettings, with_engine_arguments(["--model", "m", *flags]))
    assert named in capsys.readouterr().err


def test_a_quotation_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings("--engine-arguments=--dtype 'float32")
    assert '--engine-arguments: No closing quotation, got "--dtype \'float32"' in capsys.readouterr().err


def test_the_pool_has_the_verifiers_settings_and_a_port_of_its_own() -> None:
    found = pool_variables(
        settings("--drafter", "a:1", "--drafter", "b:2", "--max-drafters", "3", "--listen", "127.0.0.1:7"),
        {"DRAFTWIRE_VLLM_MAX_WAIT_MS": "5", "DRAFTWIRE_VLLM_COUPLED_SAMPLING": "false", "HOME": "/"},
    )
    assert found == {
        "DRAFTWIRE_VLLM_LISTEN": "127.0.0.1:0",
        "DRAFTWIRE_VLLM_COUPLED_SAMPLING": "true",
        "DRAFTWIRE_VLLM_DRAFTER": "a:1,b:2",
        "DRAFTWIRE_VLLM_MAX_DRAFTERS": "3",
        "DRAFTWIRE_VLLM_MAX_WAIT_MS": "5",
    }


@pytest.mark.parametrize("own", [(), ("--tls-client-cert", "client.pem", "--tls-client-key", "client.key")])
def test_the_pool_shows_drafters_the_verifiers_certificate(own: tuple[str, ...]) -> None:
    given = ("--tls-cert", "own.pem", "--tls-key", "own.key", "--tls-ca", "ca.pem", "--tls-server-name", "drafter")
    found = pool_variables(settings(*given, *own), {})
    shown = own[1::2] or ("own.pem", "own.key")
    assert {name: value for name, value in found.items() if "TLS" in name} == {
        "DRAFTWIRE_VLLM_TLS_CA": "ca.pem",
        "DRAFTWIRE_VLLM_TLS_SERVER_NAME": "drafter",
        "DRAFTWIRE_VLLM_TLS_CLIENT_CERT": shown[0],
        "DRAFTWIRE_VLLM_TLS_CLIENT_KEY": shown[1],
    }


def test_certificates_alone_do_not_protect_the_pools_port() -> None:
    one = settings().model_copy(update={"tls_client_ca": "ca.pem"})
    with pytest.raises(StartupError, match=r"--tls-client-ca: .* requires --accepted-tokens"):
        pool_variables(one, {})
