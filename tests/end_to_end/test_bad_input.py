"""Bad input gets a typed error that names the field, and the service continues."""

import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

import draftwire
from draftwire import Client, DraftwireError, RetryPolicy, Speculation
from draftwire._messages.methods import has_receipt
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]

BAD: dict[str, tuple[Any, dict[str, Any], type[DraftwireError], str]] = {
    "an empty prompt": ("", {}, draftwire.EmptyPromptError, "text"),
    "no token ids": ([], {}, draftwire.EmptyPromptError, "token_ids"),
    "a prompt beyond the context": ([5] * 3000, {}, draftwire.ContextExceededError, "token_ids"),
    "prompt and max_tokens beyond it": ([5] * 2000, {"max_tokens": 100}, draftwire.ContextExceededError, "max_tokens"),
    "an id beyond the vocabulary": ([5, 4096], {}, draftwire.TokenOutOfRangeError, "token_ids.ids[1]"),
    "a negative temperature": ("x", {"temperature": -1.0}, draftwire.InvalidFieldError, "sampling.temperature"),
    "a NaN temperature": ("x", {"temperature": math.nan}, draftwire.InvalidFieldError, "sampling.temperature"),
    "an infinite temperature": ("x", {"temperature": math.inf}, draftwire.InvalidFieldError, "sampling.temperature"),
    "top_p 0": ("x", {"top_p": 0.0}, draftwire.InvalidFieldError, "sampling.top_p"),
    "top_p above 1": ("x", {"top_p": 1.5}, draftwire.InvalidFieldError, "sampling.top_p"),
    "min_p above 1": ("x", {"min_p": 2.0}, draftwire.InvalidFieldError, "sampling.min_p"),
    "typical_p 0": ("x", {"typical_p": 0.0}, draftwire.InvalidFieldError, "sampling.typical_p"),
    "a penalty out of range": (
        "x",
        {"presence_penalty": 3.0},
        draftwire.InvalidFieldError,
        "sampling.presence_penalty",
    ),
    "a NaN bias": ("x", {"logit_bias": {5: math.nan}}, draftwire.InvalidFieldError, "sampling.logit_bias[5]"),
    "a banned id beyond the vocabulary": (
        "x",
        {"banned_token_ids": [5, 4096]},
        draftwire.TokenOutOfRangeError,
        "sampling.banned_token_ids[1]",
    ),
    "an empty bad word": ("x", {"bad_words": [""]}, draftwire.InvalidFieldError, "sampling.bad_words[0]"),
    "min_tokens above max_tokens": ("x", {"min_tokens": 9, "max_tokens": 8}, draftwire.InvalidFieldError, "min_tokens"),
    "max_tokens 0": ("x", {"max_tokens": 0}, draftwire.InvalidFieldError, "max_tokens"),
    "too many stop strings": ("x", {"stop": ["."] * 100}, draftwire.InvalidFieldError, "stop"),
    "an empty stop string": ("x", {"stop": [""]}, draftwire.InvalidFieldError, "stop[0]"),
}


@pytest.fixture(autouse=True)
def the_service_goes_on(client: Client) -> Any:
    yield
    assert len(client.generate("def f", max_tokens=4, ignore_eos=True).token_ids) == 4
    assert client.model_info().engine.running_sequences == 0


@pytest.mark.parametrize("name", BAD)
def test_a_request(client: Client, name: str) -> None:
    prompt, options, kind, field = BAD[name]
    with pytest.raises(kind) as caught:
        client.generate(prompt, **options)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.fields == (field,)
    [violation] = caught.value.field_violations
    assert (violation.parameter or field) in str(caught.value)


def test_a_request_that_allows_nothing(client: Client) -> None:
    with pytest.raises(draftwire.NothingAllowedError, match="no token at position"):
        client.generate([5, 6], allowed_token_ids=[7], banned_token_ids=[7])


@pytest.mark.parametrize("size", [17 * 2**20, 40 * 2**20])
def test_a_message_beyond_the_limit(client: Client, size: int) -> None:
    assert client.model_info().limits.max_message_bytes < size
    with pytest.raises(draftwire.MessageTooLargeError) as caught:
        client.generate("x" * size)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_unknown_drafter(client: Client) -> None:
    for call in (
        lambda: client.generate("x", speculation=Speculation(drafter="nobody")),
        lambda: client.drafters.detach("nobody"),
        lambda: client.drafters.swap("nobody", "nobody either"),
    ):
        with pytest.raises(draftwire.DrafterNotFoundError, match="nobody"):
            call()


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", draftwire.InvalidFieldError),
        ("127.0.0.1:0", draftwire.InvalidFieldError),
        ("local:magic", draftwire.UnsupportedDrafterError),
    ],
)
def test_an_address_that_is_none(client: Client, address: str, kind: type[DraftwireError]) -> None:
    with pytest.raises(kind, match=address):
        client.drafters.attach(address)


def test_a_request_is_acknowledged_before_it_is_read(client: Client) -> None:
    with grpc.insecure_channel(client.address) as channel:
        stub: Any = VerifierServiceStub(channel)
        for call in (stub.Generate(pb.GenerateRequest()), stub.Verify(iter([pb.VerifyRequest()]))):
            with pytest.raises(grpc.RpcError):
                next(call)
            assert has_receipt(call.initial_metadata())


def test_a_drafter_that_is_not_there(client: Client) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with Client(client.address, retry=RetryPolicy(attempts_per_address=1)) as once:
            with pytest.raises(draftwire.DrafterUnreachableError, match=address):
                once.drafters.attach(address)
    assert client.drafters.list() == []


def test_a_verifier_is_no_drafter(client: Client) -> None:
    with Client(client.address, retry=RetryPolicy(attempts_per_address=1)) as once:
        with pytest.raises(draftwire.DrafterUnreachableError):
            once.drafters.attach(client.address)


def test_a_drafter_with_another_tokenizer(client: Client, services: Services, tmp_path: Path) -> None:
    drafter = services.drafter(str(write_checkpoint(tmp_path / "foreign-draft")))
    with pytest.raises(draftwire.TokenizerMismatchError) as caught:
        client.drafters.attach(drafter.address)
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
    info = client.model_info()
    for named in ("foreign-draft", info.model_id, info.tokenizer_sha256):
        assert named in str(caught.value)
    assert client.drafters.list() == []


def refusal(module: str, *flags: str) -> str:
    """Returns the last log line of a service that cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", module, *flags],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.rstrip().splitlines()[-1]


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    line = refusal("verifier_service", "--model", str(tmp_path), "--listen", "127.0.0.1:0")
    assert "cannot start" in line
    assert str(tmp_path) in line


@pytest.mark.parametrize("module", ["verifier_service", "drafter_service"])
def test_a_port_in_use(client: Client, module: str) -> None:
    line = refusal(module, "--model", str(ROOT / "models" / "draft"), "--listen", client.address)
    assert "cannot start" in line
    assert client.address in line
