"""The certificate's verdict, its page and its tables."""

import json
import re

import pytest

from draftwire._types.speculation import SpeculationStats
from draftwire_tools.check.case import Case, Ran
from draftwire_tools.check.distribution import DistributionTest
from draftwire_tools.check.output import Difference
from draftwire_tools.check.report.certificate import Certificate
from draftwire_tools.check.report.page import page
from draftwire_tools.check.report.tables import print_summary

RAN = Ran(None, SpeculationStats(3, 8, 10, 5, 0, []), 1.0)
REQUEST = {"prompt": "<b>&", "kind": "code", "sampling": "greedy", "options": {"seed": 3}}
TEST = DistributionTest("all drafters, T=1", 800, 100, 12.5, 10, 0.25, 1e-7, 0)


def certificate(*, differs: bool = False, p_value: float = 0.25) -> Certificate:
    case, left_out = Case("all drafters together", events="3 swaps"), Case("preemption", not_run="the time was over")
    case.of("greedy").add(RAN, None)
    if differs:
        case.of("greedy").add(RAN, Difference(case.name, "token ids", 4, "[1] 'a'", "[2] '<i>'", REQUEST))
    test = DistributionTest("all drafters, T=1", 800, 100, 12.5, 10, p_value, 1e-7, 0)
    return Certificate(
        "target at host:1", {"cores": "2"}, [case, left_out], [test], None, ["a note"], ["draftwire check"]
    )


def test_all_equal() -> None:
    found = certificate()
    assert found.passed
    assert found.verdict == "all 1 outputs are equal to the plain ones, with 10 draft tokens verified"
    assert found.to_json()["false_alarm_probability"] == 1e-6


def test_differences_and_failed_tests_are_counted() -> None:
    found = certificate(differs=True, p_value=1e-9)
    assert not found.passed
    assert found.verdict == "1 of 2 outputs differ; 1 of 1 tests of distributions failed"
    assert certificate(p_value=1e-9).verdict == "1 of 1 tests of distributions failed"


def test_nothing_compared_is_said_and_proves_nothing() -> None:
    found = Certificate("x", {}, [Case("a", not_run="no time")])
    assert (found.verdict, found.word, found.passed) == ("nothing was compared", "not checked", False)


def test_a_token_that_the_target_excludes_fails_the_test() -> None:
    assert TEST.passed
    assert not DistributionTest("x", 800, 100, 12.5, 10, 0.25, 1e-7, impossible=1).passed


def test_json() -> None:
    value = json.loads(json.dumps(certificate(differs=True).to_json()))
    assert value["passed"] is False
    assert value["cases"][0]["samplings"] == [
        {"sampling": "greedy", "compared": 2, "equal": 1, "draft_tokens": 20, "accepted_tokens": 10}
    ]
    assert value["cases"][1]["not_run"] == "the time was over"
    assert value["differences"][0]["request"] == REQUEST
    assert value["distributions"][0]["passed"] is True


def test_the_page_needs_nothing_else_and_escapes_what_it_shows() -> None:
    shown = page(certificate(differs=True))
    assert shown.index("Different: 1 of 2") < shown.index("<h2>")
    assert "<i>" not in shown and "&lt;i&gt;" in shown and "&lt;b&gt;&amp;" in shown
    assert not re.search(r"(src|href)=|@import|url\(|<script", shown)
    assert "prefers-color-scheme: dark" in shown
    assert "Equal: all 1 outputs" in page(certificate())


def test_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(certificate(differs=True))
    out = capsys.readouterr().out
    assert "all drafters together   1 of 2" in out
    assert "differs: all drafters together; code, greedy, seed 3" in out
    assert "note: a note" in out
    assert out.splitlines()[-1] == "DIFFERENT: 1 of 2 outputs differ"
