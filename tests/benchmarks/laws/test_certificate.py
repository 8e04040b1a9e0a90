"""The certificates: the committed document says what the committed certificates found."""

import json
from typing import Any

import pytest

from benchmarks.harness.sections import with_section
from benchmarks.laws.certificate import PAGE, PAIRS, Pair, section
from tests.harness.checkout import ROOT


def found(pair: Pair) -> dict[str, Any]:
    certificate: dict[str, Any] = json.loads((ROOT / pair.json).read_text(encoding="utf-8"))
    return certificate


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.section)
def test_the_document_is_made_from_the_certificate(pair: Pair) -> None:
    document = (ROOT / PAGE).read_text(encoding="utf-8")
    assert with_section(document, pair.section, section(found(pair))) == document


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.section)
def test_it_found_every_output_equal_in_every_case(pair: Pair) -> None:
    certificate = found(pair)
    assert certificate["passed"] and certificate["differences"] == []
    left_out = {each["case"]: each["not_run"] for each in certificate["cases"] if not each["compared"]}
    assert pair is not PAIRS["bundled"] or not left_out
    assert all(case.startswith("kernels ") and why == "the time was over" for case, why in left_out.items())
    told = certificate["about"]
    assert {"processor", "cores", "torch", "transformers", "commit", "numerics"} <= set(told)
    report = (ROOT / pair.html).read_text(encoding="utf-8")
    for text in (certificate["verdict"], told["commit"], told["processor"]):
        assert text in report
        assert text in (ROOT / PAGE).read_text(encoding="utf-8")


def test_a_difference_is_told() -> None:
    certificate = found(PAIRS["bundled"])
    certificate |= {"passed": False, "verdict": "1 of 20 outputs differ", "notes": ["look | here"]}
    certificate["cases"][0] |= {"equal": 19, "compared": 20, "events": "a | b"}
    text = section(certificate)
    assert "**Different: 1 of 20 outputs differ.**" in text
    assert "| plain decoding again | 19 of 20 |  | a \\| b |" in text
    assert "- look | here" in text
