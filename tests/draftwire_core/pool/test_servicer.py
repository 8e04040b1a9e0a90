"""Reports of learners over the servicer."""

import asyncio
import time

from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1.learning_pb2 import LearningRound, LearningStatus
from draftwire_core.pool.servicer import DrafterPoolServicer
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import InProcessVerifier
from tests.harness.verifier.running import failure


async def report(servicer: DrafterPoolServicer, name: str, learning: LearningStatus) -> None:
    await servicer.ReportLearning(pb.ReportLearningRequest(drafter_name=name, learning=learning), None)


async def test_a_report_is_shown_with_its_drafter(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    servicer = DrafterPoolServicer(verifier.pool)
    await verifier.pool.membership.attach("twin:1", "learns")
    assert not verifier.pool.describe()[0].HasField("learning")
    changed = asyncio.ensure_future(verifier.pool.watch.change_after(verifier.pool.watch.version))
    await report(servicer, "learns", LearningStatus(version=2, agreement=0.5, collected_tokens=7))
    await changed
    await report(servicer, "learns", LearningStatus(version=3, last_round=LearningRound(reason="a\x1b" + "b" * 9999)))
    (drafter,) = (await servicer.ListDrafters(pb.ListDraftersRequest(), None)).drafters
    assert (drafter.learning.version, drafter.learning.HasField("agreement")) == (3, False)
    assert abs(drafter.learning.reported_at.ToNanoseconds() / 1e9 - time.time()) < 600
    reason = drafter.learning.last_round.reason
    assert reason.isprintable()
    assert len(reason) <= 1010
    await verifier.pool.changes.detach("learns")
    await verifier.pool.membership.attach("twin:1", "learns")
    assert not verifier.pool.describe()[0].HasField("learning"), "it ends with the drafter"


async def test_reports_that_are_refused(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    servicer = DrafterPoolServicer(verifier.pool)
    await verifier.pool.membership.attach("twin:1", "learns")
    bad = LearningStatus()
    bad.last_round.ended_at.seconds = 1 << 60
    for name, learning, reason in (
        ("", LearningStatus(), "INVALID_FIELD"),
        ("nobody", LearningStatus(), "DRAFTER_NOT_FOUND"),
        ("learns", bad, "INVALID_FIELD"),
    ):
        assert (await failure(report(servicer, name, learning)))[1] == reason
    assert not verifier.pool.describe()[0].HasField("learning")
