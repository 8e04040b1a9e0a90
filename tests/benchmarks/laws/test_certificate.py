"""The bundled pair's certificate: the committed document says what the committed certificate found."""

import json
from typing import Any

from benchmarks.harness.sections import with_section
from benchmarks.laws.certificate import HTML, JSON, PAGE, section
from tests.harness.checkout import ROOT


def found() -> dict[str, Any]:
    certificate: dict[str, Any] = json.loads((ROOT / JSON).read_text(encoding="utf-8"))
    return certificate


def test_the_document_is_made_from_the_certificate() -> None:
    document = (ROOT / PAGE).read_text(encoding="utf-8")
    assert with_section(document, "certificate", section(found())) == document


def test_it_found_every_output_equal_in_every_case() -> None:
    certificate = found()
    assert certificate["passed"] and certificate["differences"] == []
    assert {each["case"] for each in certificate["cases"] if not each["compared"]} == set()
    told = certificate["about"]
    assert {"processor", "cores", "torch", "transformers", "commit", "numerics"} <= set(told)
    report = (ROOT / HTML).read_text(encoding="utf-8")
    for text in (certificate["verdict"], told["commit"], told["processor"]):
        assert text in report
        assert text in (ROOT / PAGE).read_text(encoding="utf-8")


def test_a_difference_is_told() -> None:
    certificate = found()
    certificate |= {"passed": False, "verdict": "1 of 20 outputs differ", "notes": ["look | here"]}
    certificate["cases"][0] |= {"equal": 19, "compared": 20, "events": "a | b"}
    text = section(certificate)
    assert "**Different: 1 of 20 outputs differ.**" in text
    assert "| plain decoding again | 19 of 20 |  | a \\| b |" in text
    assert "- look | here" in text
