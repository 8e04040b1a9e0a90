"""A drafter's metrics, which count drafted tokens across model changes."""

from pathlib import Path

from drafter_service.metrics import DrafterCollector
from tests.harness.deploy.metrics_document import documented, served
from tests.harness.drafter.collected_metric import metric
from tests.harness.drafter.model_loads import PROMPT, eventually, loaded
from tests.harness.services.in_process_drafter import InProcessDrafter


async def test_what_is_drafted_is_counted(drafter: InProcessDrafter) -> None:
    assert metric(drafter, "drafting_streams") == 0
    async with drafter.connected() as side:
        await side.open(1, PROMPT)
        await side.until(lambda: metric(drafter, "drafting_nodes_total") > 3)
        assert metric(drafter, "drafting_streams") == 1
        assert metric(drafter, "drafting_sequences") == 1
        assert 0 < metric(drafter, "drafting_kv_cache_used_slots") < metric(drafter, "drafting_kv_cache_slots")
        assert 0 < metric(drafter, "drafting_kv_cache_usage_perc") < 1
        assert metric(drafter, "drafting_step_seconds_count") == metric(drafter, "drafting_step_sequences_sum") > 0
        assert metric(drafter, "drafting_step_part_seconds_total", part="forward") > 0
        assert (await drafter.status()).drafted_nodes >= metric(drafter, "drafting_nodes_total") - 100
    await eventually(lambda: metric(drafter, "drafting_streams") == 0)


async def test_counts_outlive_their_model(drafter: InProcessDrafter, other: Path) -> None:
    async with drafter.connected() as side:
        await side.open(1, PROMPT)
        await side.until(lambda: metric(drafter, "drafting_nodes_total") > 3)
    nodes, steps = metric(drafter, "drafting_nodes_total"), metric(drafter, "drafting_step_seconds_count")
    forward = metric(drafter, "drafting_step_part_seconds_total", part="forward")
    await loaded(drafter, other)
    await loaded(drafter, "/nowhere")
    await eventually(lambda: not drafter.changes._replaced)
    assert metric(drafter, "drafting_nodes_total") >= nodes
    assert metric(drafter, "drafting_step_seconds_count") >= steps
    assert metric(drafter, "drafting_step_part_seconds_total", part="forward") >= forward
    assert metric(drafter, "drafting_model_loads_total", result="done") == 1
    assert metric(drafter, "drafting_model_loads_total", result="failed") == 1


async def test_every_metric_is_documented(drafter: InProcessDrafter) -> None:
    async with drafter.connected("verifier"):
        assert served(DrafterCollector(drafter.changes).collect()) == documented("Drafter service")
