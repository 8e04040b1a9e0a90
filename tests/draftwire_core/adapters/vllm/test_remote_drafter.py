"""The proposer, with its pool and drafters, under a fake vLLM: whatever happens, the text is the target's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwire import Client
from draftwire_core.adapters.common.request_options import RequestOptions
from draftwire_core.adapters.vllm import RemoteDrafter
from draftwire_core.adapters.vllm.vllm_version import WrongRunnerError
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.runtime.process.logs import configure_logs
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.request_id import check_request_id
from tests.draftwire_core.adapters.vllm.conftest import MakeVllm
from tests.harness.services.in_process_verifier import Network
from tests.harness.stand_ins.fake_vllm import FakeVllm, text_after, vllm_config
from tests.harness.stand_ins.pool_drafters import Listen, wrong
from tests.harness.stand_ins.scripted_drafter import Opening, batch

Connect = Callable[[FakeVllm], Client]


def check_texts(fake: FakeVllm) -> None:
    for request in fake.requests.values():
        assert request.output == text_after(request.prompt, len(request.output))


def accepted(fake: FakeVllm) -> int:
    return sum(request.accepted for request in fake.requests.values())


def test_what_drafters_know_is_accepted(vllm: MakeVllm, listen: Listen, client: Connect) -> None:
    listen("a:1")
    fake = vllm("a:1")
    for number in range(4):
        fake.add(f"r{number}", [number + 1, 5, 9])
    fake.run(lambda: accepted(fake) > 50)
    check_texts(fake)
    [shown] = client(fake).drafters.list()
    assert shown.name == "a:1"
    assert shown.state == "ready"
    assert shown.accepted_tokens > 0
    assert shown.acceptance_rate > 0.5


def test_drafters_are_told_names_of_requests_that_they_take(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1")
    fake.add("cmpl-Grüße an\nalle " + "x" * 300, [1, 5, 9])
    fake.run(lambda: bool(drafter.opened))
    assert check_request_id("request_id", drafter.opened[0].request_id).startswith("cmpl-Gr__e_an_alle_x")


def test_what_drafters_cost_is_set_against_the_time_of_a_step(
    vllm: MakeVllm, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices: list[tuple[float, float]] = []
    monkeypatch.setattr(PausePolicy, "price", lambda policy, *price: prices.append(price))
    listen("a:1")
    fake = vllm("a:1")
    fake.add("r", [1, 5, 9])
    fake.run(lambda: accepted(fake) > 20)
    assert prices
    assert all(seconds > 0 for seconds, _ in prices)


def test_rows_move_and_requests_come_and_go(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1", chunk=4)
    texts = {}
    for number in range(12):
        request = fake.add(f"r{number}", list(range(number + 1, number + 12)), max_tokens=10 + 7 * number)
        texts[request.req_id] = request
    fake.run(lambda: len(fake.requests) < 7)
    fake.abort(next(iter(fake.requests)))
    fake.run(lambda: not fake.requests)
    fake.step()  # reports the last end
    for request in texts.values():
        assert request.output == text_after(request.prompt, len(request.output))
    assert sum(request.accepted for request in texts.values()) > 0
    fake.run(lambda: not drafter.open)


def test_prompts_are_opened_before_they_are_computed(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1", chunk=2)
    request = fake.add("r", range(1, 100))
    fake.step()
    assert not request.output
    fake.run(lambda: bool(drafter.opened))
    assert list(drafter.opened[0].token_ids[:99]) == list(range(1, 100))


def test_drafters_are_told_how_a_request_is_sampled(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1")
    fake.add("r", [1, 2, 3], temperature=0.7, top_k=5, top_p=0.9, seed=-2)
    fake.run(lambda: bool(drafter.opened))
    told = drafter.opened[0].sampling
    assert (told.temperature, told.top_k, told.top_p, told.seed) == (0.7, 5, 0.9, 2**64 - 2)


def test_a_verifier_in_front_of_vllm_chooses_the_drafters_of_a_request(vllm: MakeVllm, listen: Listen) -> None:
    one, other = listen("a:1"), listen("b:1")
    fake = vllm("a:1", "b:1")
    assert fake.drafter.drafter_names == ["a:1", "b:1"]
    plain = fake.add("plain", [1, 2, 3], 4000, extra_args=RequestOptions(speculate=False).extra_args())
    named = fake.add("named", [4, 5, 6], 4000, extra_args=RequestOptions(drafter_names=("b:1",)).extra_args())
    fake.run(lambda: named.accepted > 5)
    assert plain.accepted == 0
    assert (len(one.opened), len(other.opened)) == (0, 1)


def test_without_coupled_sampling_drafters_draft_greedily(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1", coupled_sampling=False)
    fake.add("r", [1, 2, 3], temperature=0.7, seed=3)
    fake.run(lambda: bool(drafter.opened))
    assert drafter.opened[0].sampling.temperature == 0


def test_a_preempted_request_comes_back(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1")
    fake.add("stays", [1, 2, 3], max_tokens=4000)
    away = fake.add("away", [4, 5, 6], max_tokens=4000)
    fake.run(lambda: away.accepted > 5)
    fake.preempt("away")
    before = len(fake.requests["stays"].tokens)
    fake.run(lambda: len(fake.requests["stays"].tokens) > before + 5)
    fake.preempted.clear()
    known = away.accepted
    fake.run(lambda: away.accepted > known + 5)
    check_texts(fake)
    assert len(drafter.opened) == 2, "it was never closed"


def test_an_end_that_vllm_never_tells_of(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1", request_idle_seconds=0.2)
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 0)
    fake.requests.clear()  # no further step reports an end
    fake.run(lambda: not drafter.open)


def test_a_drafter_is_swapped_by_the_sdk(vllm: MakeVllm, listen: Listen, client: Connect) -> None:
    old, new = listen("old:1"), listen("new:1")
    fake = vllm("old:1")
    for number in range(3):
        fake.add(f"r{number}", [number + 1, 5, 9], max_tokens=4000)
    fake.run(lambda: accepted(fake) > 5 and len(old.open) == 3)
    client(fake).drafters.swap("old:1", "new:1")
    assert not old.open or old.ended
    assert len(new.open) == 3
    before = accepted(fake)
    fake.run(lambda: accepted(fake) > before + 20)
    check_texts(fake)
    assert [each.name for each in client(fake).drafters.list()] == ["new:1"]


def test_a_drafter_that_is_killed_leaves_vllm_to_itself(
    vllm: MakeVllm, listen: Listen, network: Network, client: Connect
) -> None:
    drafter = listen("a:1")
    fake = vllm("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 5)
    loop: Any = fake.drafter._pool._loop  # type: ignore[union-attr]
    asyncio.run_coroutine_threadsafe(network.kill("a:1"), loop).result(30)
    fake.run(lambda: not drafter.streams and not request.drafts)
    length = len(request.tokens)
    fake.run(lambda: len(request.tokens) > length + 10)
    check_texts(fake)
    listen("a:1")
    before = request.accepted
    fake.run(lambda: request.accepted > before)
    check_texts(fake)


def test_a_drafter_that_is_always_wrong(vllm: MakeVllm, listen: Listen) -> None:
    listen("a:1", wrong)
    fake = vllm("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: len(request.output) > 60)
    check_texts(fake)
    assert request.accepted == 0


def test_a_stalled_drafter(vllm: MakeVllm, listen: Listen) -> None:
    drafter = listen("a:1", alive=False)
    fake = vllm("a:1")
    request = fake.add("r", [1, 2, 3])
    fake.run(lambda: len(request.output) > 50)
    assert fake.drafted == 0
    check_texts(fake)
    assert not drafter.opened


def test_a_drafter_that_talks_nonsense(vllm: MakeVllm, listen: Listen) -> None:
    def nonsense(opening: Opening) -> Any:
        return [batch(opening.proposal([5], first_node_id=1000))]

    drafter = listen("a:1", nonsense)
    fake = vllm("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: bool(drafter.errors))
    check_texts(fake)
    assert fake.drafted == 0
    assert not request.accepted


def test_without_drafters_nothing_is_drafted(vllm: MakeVllm) -> None:
    fake = vllm()
    request = fake.add("r", [1, 2, 3])
    fake.run(lambda: len(request.output) > 20)
    check_texts(fake)
    assert fake.drafted == 0


def test_drafters_are_attached_and_detached_while_it_runs(vllm: MakeVllm, listen: Listen, client: Connect) -> None:
    listen("a:1")
    fake = vllm()
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.step()
    drafters = client(fake).drafters
    drafters.attach("a:1", name="first")
    fake.run(lambda: request.accepted > 0)
    drafters.detach("first")
    assert drafters.list() == []
    check_texts(fake)


def test_a_drafter_in_the_verifier_is_not_to_be_had(vllm: MakeVllm, client: Connect) -> None:
    with pytest.raises(Exception, match="address"):
        client(vllm()).drafters.attach("local:ngram")


def test_the_port_says_that_it_is_well(vllm: MakeVllm) -> None:
    with grpc.insecure_channel(vllm().drafter.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_whatever_breaks_is_counted_and_nothing_is_drafted(vllm: MakeVllm, listen: Listen) -> None:
    listen("a:1")
    fake = vllm("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 0)
    fake.input_batch = None  # type: ignore[assignment]
    drafter = fake.drafter
    for _ in range(3):
        drafter.step_begins(None)
        assert drafter.propose([[1], [2]], None, None) == [[], []]  # type: ignore[arg-type]
    assert drafter.faults == {"AttributeError": 6}
    drafter.faults.clear()


def test_when_the_pool_is_gone_vllm_goes_on(vllm: MakeVllm, listen: Listen) -> None:
    listen("a:1")
    fake = vllm("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 0)
    fake.drafter.shutdown()
    length = len(request.tokens)
    fake.step()
    fake.run(lambda: len(request.tokens) > length + 10)
    check_texts(fake)


def test_a_rank_whose_tokens_do_not_count_calls_nobody(checkpoint: Path) -> None:
    drafter = RemoteDrafter(vllm_config(checkpoint))
    fake = FakeVllm(drafter)
    drafter.bind(fake, speaks=False)
    drafter.load_model(None)
    request = fake.add("r", [1, 2, 3])
    fake.run(lambda: len(request.output) > 3)
    assert drafter.address == ""
    assert fake.drafted == 0
    drafter.shutdown()


@pytest.mark.parametrize(
    ("async_scheduling", "given", "wait"), [(False, None, 0.05), (True, None, 0.0), (True, "7", 0.007)]
)
def test_asynchronous_scheduling_is_not_delayed_unless_the_settings_say_so(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, async_scheduling: bool, given: str | None, wait: float
) -> None:
    if given is not None:
        monkeypatch.setenv("DRAFTWIRE_VLLM_MAX_WAIT_MS", given)
    drafter = RemoteDrafter(vllm_config(checkpoint, async_scheduling=async_scheduling))
    assert drafter.longest_wait == pytest.approx(wait)


def test_what_was_drafted_ahead_is_proposed_without_waiting(vllm: MakeVllm, listen: Listen) -> None:
    listen("a:1")
    fake = vllm("a:1", max_wait_ms=0)
    fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: accepted(fake) > 20)
    check_texts(fake)


def test_it_needs_its_worker(checkpoint: Path) -> None:
    with pytest.raises(RuntimeError, match=r"--worker-cls draftwire_vllm\.worker\.Worker"):
        RemoteDrafter(vllm_config(checkpoint)).load_model(None)


def test_a_port_in_use_is_named(vllm: MakeVllm, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = vllm().drafter.address
    monkeypatch.setenv("DRAFTWIRE_VLLM_LISTEN", address)
    second = RemoteDrafter(vllm_config(checkpoint))
    second.bind(object(), speaks=True)
    with pytest.raises(StartupError, match=address):
        second.load_model(None)


def test_a_drafter_address_without_form_is_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_VLLM_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("DRAFTWIRE_VLLM_DRAFTER", "nonsense")
    drafter = RemoteDrafter(vllm_config(checkpoint))
    drafter.bind(object(), speaks=True)
    with pytest.raises(StartupError, match="DRAFTWIRE_VLLM_DRAFTER"):
        drafter.load_model(None)


def test_steps_whose_drafts_nobody_can_use(vllm: MakeVllm, listen: Listen) -> None:
    """vLLM says so from 0.33 on: the requests are followed, and nothing is waited for or proposed."""
    listen("a:1")
    fake = vllm("a:1")
    fake.add("r", [1, 5, 9])
    fake.run(lambda: accepted(fake) > 5)
    fake.skips_drafts = True
    fake.step()
    drafted = fake.drafted
    for _ in range(5):
        fake.step()
    assert fake.drafted == drafted
    fake.skips_drafts = False
    before = accepted(fake)
    fake.run(lambda: accepted(fake) > before + 5)
    check_texts(fake)


def test_the_runner_is_logged_and_an_unknown_version_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info", names=("draftwire_core",))
    runner = SimpleNamespace(drafter=object())
    RemoteDrafter.check_runner(runner, "0.33.0")
    known = capsys.readouterr()
    RemoteDrafter.check_runner(runner, "0.99.0")
    unknown = capsys.readouterr()
    assert '"runner": "V1"' in known.out + known.err
    assert "unknown version" not in known.out + known.err
    assert "vLLM 0.99.0 is unknown to draftwire_vllm" in unknown.out + unknown.err
    with pytest.raises(WrongRunnerError):
        RemoteDrafter.check_runner(SimpleNamespace(), "0.33.0")
