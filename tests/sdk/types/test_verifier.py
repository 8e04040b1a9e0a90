"""The ways to specify a client's verifiers."""

import pytest

from draftwire import AsyncClient, Client, Verifier
from draftwire._types.verifier import Verifiers, parse_verifiers


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a:1", [Verifier("a:1")]),
        (" a:1 ", [Verifier("a:1")]),
        (Verifier("a:1", 3), [Verifier("a:1", 3)]),
        (
            ["a:1", "b:2?weight=2", Verifier("c:3", weight=0)],
            [Verifier("a:1"), Verifier("b:2", 2.0), Verifier("c:3", 0)],
        ),
        (["a:1", "a:1"], [Verifier("a:1")]),
        ("dns:///verifiers:50051?weight=0.5", [Verifier("verifiers:50051", 0.5)]),
        ("dns://8.8.8.8/verifiers:1", [Verifier("dns://8.8.8.8/verifiers:1")]),
        ("unix:/tmp/x", [Verifier("unix:/tmp/x")]),
        ("[::1]:50051?weight=1", [Verifier("[::1]:50051")]),
    ],
)
def test_what_is_read(given: Verifiers, found: list[Verifier]) -> None:
    assert list(parse_verifiers(given)) == found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "is not the address of a verifier: expected host:port"),
        ("http://a:1", "is not the address of a verifier"),
        ([], "a client needs the address of at least one verifier"),
        ("a:1?weight=-1", "a:1: weight must be a number of at least 0, got -1.0"),
        ("a:1?weight=nan", "a:1: weight must be a number of at least 0, got nan"),
        ("a:1?weight=inf", "weight must be a number of at least 0, got inf"),
        ("a:1?weight=two", "weight must be a number of at least 0, got 'two'"),
        ("a:1?weight", "weight must be a number of at least 0, got ''"),
        ("a:1?share=2", "unknown option 'share'; an address may end with [?]weight=NUMBER"),
        (["a:1", "a:1?weight=2"], "a:1 is given with two weights"),
    ],
)
def test_what_is_wrong_is_told(given: Verifiers, told: str) -> None:
    for make in (parse_verifiers, Client, AsyncClient):
        with pytest.raises(ValueError, match=told):
            make(given)
