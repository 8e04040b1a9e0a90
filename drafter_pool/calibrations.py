"""What a planner has learned of drafters, as the contract has it."""

from __future__ import annotations

from drafter_pool.draft_source import drafter_of
from drafter_pool.request_source import RESERVED
from draftwire.v1.calibration_pb2 import AcceptanceClass, Calibration
from service_runtime.duration import duration
from speculative_engine.planning.planner import Planner


def calibrations(planner: Planner) -> list[Calibration]:
    """Of all drafters but those of single requests. May be called while another thread adds and removes drafters."""
    timings = planner.timings.copy()
    found = []
    for source, model in planner.models.copy().items():
        if drafter_of(source) in RESERVED:
            continue
        calibration = Calibration(
            drafter=drafter_of(source),
            classes=[AcceptanceClass(**each._asdict()) for each in model.classes()],
            first_acceptance=model.next_probability(),
        )
        if source in timings:
            calibration.response_time.CopyFrom(duration(timings[source].response))
            calibration.proposal_interval.CopyFrom(duration(timings[source].interval))
        found.append(calibration)
    return found
