"""The options of a draftwire request inside a request of the host engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from draftwire_core.adapters.common.request_options import RequestOptions


@pytest.mark.parametrize(
    "options",
    [
        RequestOptions(),
        RequestOptions(speculate=False),
        RequestOptions(drafter_names=("a", "b"), labels={"k": "v"}, drafters=2, always_draft=True),
        RequestOptions(filters={"min_p": 0.1, "seed": 2**64 - 1}),
    ],
)
def test_they_are_read_as_they_were_written(options: RequestOptions) -> None:
    given = options.extra_args()
    assert (given is None) == (options == RequestOptions())
    assert RequestOptions.of(SimpleNamespace(extra_args=given)) == options


@pytest.mark.parametrize("given", [None, {}, {"other": 1}, {"draftwire": "text of another client"}])
def test_requests_of_others_have_the_defaults(given: Any) -> None:
    assert RequestOptions.of(SimpleNamespace(extra_args=given)) == RequestOptions()
    assert RequestOptions.of(SimpleNamespace()) == RequestOptions()


@pytest.mark.parametrize(
    "given",
    [
        {"drafter_names": 3},
        {"drafters": "many"},
        {"filters": {"top_k": 2**70}},
        {"filters": {"temperature": 1}},
        {"filters": {"seed": 1.5}},
        {"filters": {"seed": -1}},
        {"filters": {"min_p": "x"}},
        {"filters": {"other": 1}},
    ],
)
def test_what_no_verifier_writes_is_ignored(given: Any) -> None:
    assert RequestOptions.of(SimpleNamespace(extra_args={"draftwire": given})) == RequestOptions()
