"""The line about what drafting gains."""

import pytest

from draftwire import SpeculationGain
from draftwire_tools.serve.device import Device
from draftwire_tools.serve.gain import gain_line
from draftwire_tools.serve.plan import Options, plan_of

OPTIONS = Options(Device("cpu", "auto", "cpu"))


def line(tokens: int, plain_seconds: float, *drafts: str) -> str | None:
    """tokens: of 250 sequence steps, which took 10 seconds."""
    before = SpeculationGain(7, 5, 1.0, 1.5)
    now = SpeculationGain(7 + tokens, 255, 11.0, 1.5 + plain_seconds)
    return gain_line(now.since(before), plan_of("target", drafts, 4, OPTIONS))


def test_what_is_gained() -> None:
    assert line(535, 18.71) == "2.14 tokens per pass, about 1.87 times plain decoding (535 tokens so far)"
    assert line(0, 0.0) is None


@pytest.mark.parametrize(
    ("drafts", "advice"),
    [
        ((), "needs a draft model: add --draft MODEL"),
        (("local:suffix",), "needs a draft model: add --draft MODEL"),
        (("small",), "draftwire bench compares others"),
    ],
)
def test_what_to_add_where_nothing_is_gained(drafts: tuple[str, ...], advice: str) -> None:
    told = line(255, 10.1, *drafts)
    assert told is not None
    assert told.endswith(advice)
