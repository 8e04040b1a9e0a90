"""The adapter's metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from draftwire_core.adapters.common.metrics import AdapterCollector
from tests.draftwire_core.adapters.sglang.conftest import MakeSglang
from tests.harness.deploy.metrics_document import Row, documented, served
from tests.harness.stand_ins.pool_drafters import Listen


def test_every_metric_is_documented(sglang: MakeSglang, listen: Listen) -> None:
    listen("a:1")
    fake = sglang("a:1")
    request = fake.add("r", [1, 2, 3], max_tokens=4000)
    fake.run(lambda: request.accepted > 5)
    thread: Any = fake.drafts.pool
    faults = {"ValueError": 1}

    async def scrape() -> list[Row]:
        return served(AdapterCollector(thread._host, thread._info, thread._pool, thread.mirror, faults).collect())

    rows = asyncio.run_coroutine_threadsafe(scrape(), thread._loop).result(30)
    assert [row for row in rows if row.name.startswith("draftwire:sglang_")] == documented(
        "Adapters", "draftwire:sglang_"
    )
