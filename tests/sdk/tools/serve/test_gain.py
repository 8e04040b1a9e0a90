"""The line about what drafting gains."""

import pytest

from draftwire_tools.serve.device import Device
from draftwire_tools.serve.gain import gain_line
from draftwire_tools.serve.plan import Options, plan_of
from draftwire_tools.top.planner_figures import PlannerFigures

OPTIONS = Options(Device("cpu", "auto", "cpu"))


def line(tokens_per_pass: float | None, speed_up: float | None, *drafts: str) -> str | None:
    figures = PlannerFigures(1.0, 1.0, tokens_per_pass, 0, 50.0, speed_up, 0.0, 0.0)
    return gain_line(figures, 600, plan_of("target", drafts, 4, OPTIONS))


def test_what_is_gained() -> None:
    assert line(2.136, 1.871) == "2.14 tokens per pass, about 1.87 times plain decoding (600 tokens so far)"
    assert line(2.136, None) == "2.14 tokens per pass (600 tokens so far)"
    assert line(None, None) is None


@pytest.mark.parametrize(
    ("drafts", "advice"),
    [
        ((), "needs a draft model: add --draft MODEL"),
        (("local:suffix",), "needs a draft model: add --draft MODEL"),
        (("small",), "draftwire bench compares others"),
    ],
)
def test_what_to_add_where_nothing_is_gained(drafts: tuple[str, ...], advice: str) -> None:
    told = line(1.02, 1.01, *drafts)
    assert told is not None
    assert told.endswith(advice)
