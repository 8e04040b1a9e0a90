"""One drafter service for a verifier of draftwire, the adapter to vLLM and the adapter to SGLang at once.

The adapters run without their engines, under the stand-ins of their own tests, whose target is the bundled one: its
texts are known from the verifier. The drafter has slots for fewer sequences than the three keep open.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from draftwire import Client, Speculation
from draftwire.v1.drafter_service_pb2 import DrafterServiceGetModelInfoRequest, VerifierShare
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.adapters.sglang.remote_drafts import RemoteDrafts
from draftwire_core.adapters.sglang.settings import SglangSettings
from draftwire_core.adapters.vllm import RemoteDrafter
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.runtime.process.settings import settings_from_environment
from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.stand_ins import fake_sglang, fake_vllm
from tests.harness.stand_ins.fake_sglang import FakeSglang
from tests.harness.stand_ins.fake_vllm import FakeVllm, vllm_config
from tests.harness.stand_ins.stepping import step_until

pytestmark = pytest.mark.slow

NAMES = ("draftwire", "vllm", "sglang")
SEQUENCES, TOKENS, ROWS = 4, 96, 5
SLOTS = 3 * 2 * 180
"""KV slots of the drafter: for about two sequences of each of the three."""
VOCABULARY = json.loads((MODELS / "target" / "config.json").read_text())["vocab_size"]
PATIENCE = 300.0


def secret(name: str) -> str:
    return f"the-token-of-{name}"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A folder with a token for each of the three, so that the drafter tells them apart, and one of an operator."""
    roles = dict.fromkeys(NAMES, "draft") | {"operator": "admin"}
    (tmp_path / "accepted.toml").write_text(
        "".join(f'[{name}]\ntoken = "{secret(name)}"\nroles = ["{role}"]\n' for name, role in roles.items())
    )
    for name in roles:
        (tmp_path / f"{name}.token").write_text(secret(name))
    return tmp_path


@pytest.fixture
def drafter(services: Services, tokens: Path) -> ServiceProcess:
    flags = ("--accepted-tokens", str(tokens / "accepted.toml"), "--kv-slots", str(SLOTS))
    return services.drafter("draft", *flags)


@pytest.fixture
def verifier(services: Services, tokens: Path, drafter: ServiceProcess) -> ServiceProcess:
    flags = ("--token-file", str(tokens / "draftwire.token"), "--drafter", drafter.address, "--dtype", "float32")
    return services.verifier("target", *flags)


@pytest.fixture
def texts(verifier: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Prompts with the target's text, as the stand-ins' target generates it."""
    prompts = [list(range(5 + number, 45 + 2 * number)) for number in range(SEQUENCES)]
    plain = Speculation(enabled=False)
    with Client(verifier.address, timeout=PATIENCE) as client:
        results = client.generate_batch(
            prompts, max_tokens=TOKENS + ROWS, temperature=0.0, ignore_eos=True, speculation=plain
        )
    known = [prompt + list(result.token_ids) for prompt, result in zip(prompts, results, strict=True)]

    def following(path: Sequence[int]) -> int:
        """The target's next token; after a wrong guess, where nobody looks, any."""
        for text in known:
            if text[: len(path)] == list(path):
                return text[len(path)] if len(path) < len(text) else 0
        return 0

    for stand_in in (fake_vllm, fake_sglang):
        monkeypatch.setattr(stand_in, "following", following)
        monkeypatch.setattr(stand_in, "VOCABULARY", VOCABULARY)
    monkeypatch.setattr(PausePolicy, "paused", False)
    return known


@pytest.fixture
def environment(tokens: Path, drafter: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "sglang"):
        for variable, value in {
            "LISTEN": "127.0.0.1:0",
            "DRAFTER": drafter.address,
            "TOKEN_FILE": str(tokens / f"{name}.token"),
        }.items():
            monkeypatch.setenv(f"DRAFTWIRE_{name.upper()}_{variable}", value)


@pytest.fixture
def vllm(texts: list[list[int]], environment: None) -> Iterator[FakeVllm]:
    front = RemoteDrafter(vllm_config(MODELS / "target", draft_tokens=ROWS - 1))
    fake = FakeVllm(front)
    front.bind(fake, speaks=True)
    front.load_model(None)
    yield fake
    front.shutdown()
    assert not front.faults


@pytest.fixture
def sglang(texts: list[list[int]], environment: None) -> Iterator[FakeSglang]:
    info = ModelInfo(model_id="target", vocab_size=VOCABULARY, context_length=2048)
    drafts = RemoteDrafts(settings_from_environment(SglangSettings), info, 16, ROWS, trees=True)
    drafts.pool.start()
    yield FakeSglang(drafts, ROWS, overlap=True)
    drafts.pool.stop()
    assert not drafts.faults


@pytest.fixture
def shares(drafter: ServiceProcess) -> Iterator[Callable[[], dict[str, VerifierShare]]]:
    with grpc.insecure_channel(drafter.address) as channel:
        stub = DrafterServiceStub(channel)

        def read() -> dict[str, VerifierShare]:
            metadata = [("authorization", f"Bearer {secret('operator')}")]
            answer = stub.GetModelInfo(DrafterServiceGetModelInfoRequest(), metadata=metadata, timeout=60)
            return {each.name: each for each in answer.status.verifiers}

        yield read


class Rounds:
    """A stand-in of an engine that generates all texts, again and again."""

    def __init__(self, fake: FakeVllm | FakeSglang, prompts: Sequence[list[int]]) -> None:
        self._fake = fake
        self._prompts = prompts
        self.rounds: list[list[fake_vllm.Request] | list[fake_sglang.Request]] = []

    @property
    def accepted(self) -> int:
        """Number of draft tokens that were accepted so far."""
        return sum(request.accepted for requests in list(self.rounds) for request in requests)

    def step(self) -> None:
        """Runs one step, of new requests if all have ended."""
        if not self.rounds or all(len(request.output) >= TOKENS for request in self.rounds[-1]):
            names = (f"{len(self.rounds)}-{number}" for number in range(SEQUENCES))
            self.rounds.append(
                [self._fake.add(name, prompt, TOKENS) for name, prompt in zip(names, self._prompts, strict=True)]
            )
        self._fake.step()

    def check(self, expected: Sequence[list[int]]) -> None:
        """Asserts that all texts, of which the last may not have ended, are the expected ones."""
        *whole, last = self.rounds
        assert whole
        for requests in whole:
            assert [list(request.output) for request in requests] == expected
        for request, text in zip(last, expected, strict=True):
            assert list(request.output) == text[: len(request.output)]


def test_none_starves_and_all_texts_are_the_targets(
    verifier: ServiceProcess,
    vllm: FakeVllm,
    sglang: FakeSglang,
    texts: list[list[int]],
    shares: Callable[[], dict[str, VerifierShare]],
) -> None:
    """The stand-ins step more and more slowly, so that drafts come in time for them on any machine."""
    prompts = [text[: -TOKENS - ROWS] for text in texts]
    expected = [text[-TOKENS - ROWS : -ROWS] for text in texts]
    over = threading.Event()

    def generate() -> list[list[int]]:
        """Has the verifier generate all texts, again and again."""
        generated: list[list[int]] = []
        with Client(verifier.address, timeout=PATIENCE) as client:
            while not over.is_set():
                results = client.generate_batch(prompts, max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
                generated.extend(list(result.token_ids) for result in results)
        return generated

    engines = [Rounds(fake, prompts) for fake in (vllm, sglang)]
    seen: dict[str, int] = dict.fromkeys(NAMES, 0)
    drafted: dict[str, int] = dict.fromkeys(NAMES, 0)
    together = False

    def missing() -> dict[str, object]:
        """What has not come about yet."""
        wanted = {
            "all three at once": together,
            "open sequences": all(seen.values()),
            "drafted nodes": all(drafted.values()),
            "accepted tokens": all(engine.accepted for engine in engines),
            "a whole round": all(len(engine.rounds) > 1 for engine in engines),
        }
        return {what: (seen, drafted) for what, there in wanted.items() if not there}

    with ThreadPoolExecutor() as threads:
        first = threads.submit(generate)
        stepping = [threads.submit(step_until, engine.step, over.is_set) for engine in engines]
        try:
            while missing() and not any(each.done() for each in (first, *stepping)):
                found = shares()
                together |= set(found) == set(NAMES)
                for name, share in found.items():
                    seen[name] = max(seen[name], share.open_sequences - share.waiting_sequences)
                    drafted[name] = max(drafted[name], share.drafted_nodes)
                over.wait(0.05)
        finally:
            over.set()
        generated = first.result(PATIENCE)
        assert not missing(), [each.exception() for each in stepping]
        for each in stepping:
            each.result(PATIENCE)
    assert generated
    assert all(text == expected[place % SEQUENCES] for place, text in enumerate(generated))
    for engine in engines:
        engine.check(expected)
