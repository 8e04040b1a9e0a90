"""The drafts, with their pool and drafters, under a fake SGLang: whatever happens, the text is the target's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tests.draftwire_core.adapters.sglang.conftest import Connect, MakeSglang, unsure
from tests.harness.services.in_process_verifier import Network
from tests.harness.stand_ins.fake_sglang import FakeSglang, Request
from tests.harness.stand_ins.fake_vllm import text_after
from tests.harness.stand_ins.pool_drafters import Listen, knowing, wrong


def check_texts(requests: Iterable[Request]) -> None:
    for request in requests:
        assert request.output == text_after(request.prompt, len(request.output))


def accepted(fake: FakeSglang) -> int:
    return sum(request.accepted for request in fake.running)


@pytest.mark.parametrize("overlap", [False, True], ids=["synchronous", "overlapped"])
@pytest.mark.parametrize("trees", [False, True], ids=["chains", "trees"])
def test_what_drafters_know_is_accepted(
    sglang: MakeSglang, listen: Listen, client: Connect, trees: bool, overlap: bool
) -> None:
    listen("a:1")
    fake = sglang("a:1", trees=trees, overlap=overlap)
    for number in range(4):
        fake.add(f"r{number}", [number + 1, 5, 9])
    fake.run(lambda: accepted(fake) > 50)
    check_texts(fake.running)
    [shown] = client(fake).drafters.list()
    assert (shown.name, shown.state) == ("a:1", "ready")
    assert shown.accepted_tokens > 0
    assert shown.acceptance_rate > 0.5


def test_of_a_tree_the_unlikely_branch_is_accepted_too(sglang: MakeSglang, listen: Listen) -> None:
    listen("a:1", unsure)
    fake = sglang("a:1")
    fake.add("r", [1, 5, 9], max_tokens=4000)
    fake.run(lambda: accepted(fake) > 20)
    assert fake.branches > 0
    check_texts(fake.running)


def test_chains_have_no_branches(sglang: MakeSglang, listen: Listen) -> None:
    listen("a:1", unsure)
    fake = sglang("a:1", trees=False)
    request = fake.add("r", [1, 5, 9], max_tokens=4000)
    fake.run(lambda: len(request.output) > 50)
    assert fake.branches == 0
    check_texts(fake.running)


@pytest.mark.parametrize("overlap", [False, True], ids=["synchronous", "overlapped"])
def test_requests_come_and_go(sglang: MakeSglang, listen: Listen, overlap: bool) -> None:
    drafter = listen("a:1")
    fake = sglang("a:1", overlap=overlap)
    requests = [fake.add(f"r{number}", range(number + 1, number + 12), 10 + 7 * number) for number in range(8)]
    fake.run(lambda: len(fake.running) < 5 and not fake.waiting)
    requests += [fake.add(f"s{number}", [number, 3], 20) for number in range(4)]
    fake.run(lambda: not fake.running and not fake.waiting)
    check_texts(requests)
    assert all(len(each.output) == each.sampling_params.max_new_tokens for each in requests)
    assert sum(each.accepted for each in requests) > 0
    fake.run(lambda: not drafter.open)


def test_prompts_are_opened_while_they_are_computed(sglang: MakeSglang, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = sglang("a:1")
    fake.add("r", range(1, 100))
    fake.step()
    fake.run(lambda: bool(drafter.opened))
    assert list(drafter.opened[0].token_ids[:99]) == list(range(1, 100))


def test_a_retracted_request_comes_back(sglang: MakeSglang, listen: Listen) -> None:
    listen("a:1")
    fake = sglang("a:1", overlap=True)
    stays = fake.add("stays", [1, 2, 3], max_tokens=4000)
    away = fake.add("away", [4, 5, 6], max_tokens=4000)
    fake.run(lambda: away.accepted > 5)
    fake.retract(away)
    before = len(stays.output)
    fake.run(lambda: len(stays.output) > before + 5)
    fake.waiting.append(away)
    known = away.accepted
    fake.run(lambda: away.accepted > known + 5)
    check_texts(fake.running)


def test_an_id_that_is_used_again_is_another_request(sglang: MakeSglang, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = sglang("a:1")
    first = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: first.accepted > 5)
    fake.running.clear()  # as after an abort that nobody reported
    second = fake.add("r", [7, 8, 9, 10], max_tokens=4000)
    fake.run(lambda: second.accepted > 5)
    check_texts([second])
    fake.run(lambda: len(drafter.open) == 1)


def test_an_end_that_sglang_never_reports(sglang: MakeSglang, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = sglang("a:1", request_idle_seconds=0.2)
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 0)
    fake.running.clear()
    fake.run(lambda: not drafter.open)


def test_a_drafter_is_swapped_and_another_lost(
    sglang: MakeSglang, listen: Listen, network: Network, client: Connect
) -> None:
    old, new = listen("old:1"), listen("new:1", unsure)
    fake = sglang("old:1")
    for number in range(3):
        fake.add(f"r{number}", [number + 1, 5, 9], max_tokens=4000)
    fake.run(lambda: accepted(fake) > 5 and len(old.open) == 3)
    client(fake).drafters.swap("old:1", "new:1")
    before = accepted(fake)
    fake.run(lambda: accepted(fake) > before + 20)
    assert len(new.open) == 3
    loop: Any = fake.drafts.pool._loop
    asyncio.run_coroutine_threadsafe(network.kill("new:1"), loop).result(30)
    fake.run(lambda: not new.streams)
    length = len(fake.running[0].output)
    fake.run(lambda: len(fake.running[0].output) > length + 20)
    check_texts(fake.running)


def test_a_drafter_that_is_always_wrong(sglang: MakeSglang, listen: Listen) -> None:
    listen("a:1", wrong)
    fake = sglang("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: len(request.output) > 50)
    assert request.accepted == 0
    check_texts(fake.running)


def test_requests_of_embeddings_are_left_alone(sglang: MakeSglang, listen: Listen) -> None:
    drafter = listen("a:1")
    fake = sglang("a:1")
    embedded = fake.add("e", [1, 2, 3], max_tokens=4000)
    embedded.input_embeds = object()
    other = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: other.accepted > 5)
    assert embedded.accepted == 0
    assert len(drafter.opened) == 1
    check_texts(fake.running)


def test_whatever_breaks_is_counted_and_nothing_is_drafted(sglang: MakeSglang, listen: Listen) -> None:
    listen("a:1")
    fake = sglang("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 0)
    drafts = fake.drafts
    for _ in range(3):
        drafts.prompts([None])
        [tree] = drafts.drafts([None], [[]])
        assert tree.tokens == []
    assert drafts.faults == {"AttributeError": 6}
    drafts.faults.clear()


def test_when_the_pool_is_gone_sglang_goes_on(sglang: MakeSglang, listen: Listen) -> None:
    listen("a:1", knowing)
    fake = sglang("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 0)
    fake.drafts.pool.stop()
    length = len(request.output)
    fake.run(lambda: len(request.output) > length + 10)
    check_texts(fake.running)
