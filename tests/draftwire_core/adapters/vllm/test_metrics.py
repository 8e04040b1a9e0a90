"""The adapter's metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from draftwire_core.adapters.common.metrics import AdapterCollector
from tests.draftwire_core.adapters.vllm.conftest import MakeVllm
from tests.harness.deploy.metrics_document import Row, documented, served
from tests.harness.stand_ins.fake_vllm import FakeVllm
from tests.harness.stand_ins.pool_drafters import Listen


def scraped(fake: FakeVllm) -> list[Row]:
    thread: Any = fake.drafter._pool
    collector = AdapterCollector(thread._host, thread._info, thread._pool, thread.mirror, fake.drafter.faults)

    async def scrape() -> list[Row]:
        return served(collector.collect())

    return asyncio.run_coroutine_threadsafe(scrape(), thread._loop).result(30)


def test_every_metric_is_documented(vllm: MakeVllm, listen: Listen) -> None:
    listen("a:1")
    fake = vllm("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 5)
    fake.drafter.faults["ValueError"] += 1
    rows = scraped(fake)
    fake.drafter.faults.clear()
    own = [row for row in rows if row.name.startswith("draftwire:vllm_")]
    assert own == documented("Adapters", "draftwire:vllm_")
    verifiers = {row.name: row for row in documented("Verifier")}
    others = [row for row in rows if row not in own]
    assert others
    of_the_pool = ("draftwire:drafter", "draftwire:learner_")
    assert {row.name for row in others} == {name for name in verifiers if name.startswith(of_the_pool)}
