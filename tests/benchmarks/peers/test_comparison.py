"""Comparison with peers: their best settings, equal outputs, ratios within a run, and peers that were not measured."""

from importlib.util import find_spec

import pytest

from benchmarks.peers.catalogue import Method, Peer, peers
from benchmarks.peers.comparison import Contestant, agreement, best, described, figures
from benchmarks.peers.process import PeerBatch
from draftwire_tools.spread import Spread
from draftwire_tools.turns import Arrival, Request


def timing(rate: float, tokens: tuple[int, ...] = (1, 2, 3, 4, 5)) -> PeerBatch:
    """Returns a request that decodes at a rate, after a prompt of one second."""
    seconds = (len(tokens) - 1) / rate
    arrivals = (Arrival(0.0, 1), Arrival(seconds, len(tokens) - 1))
    return PeerBatch((Request(arrivals, tokens, asked_at=-1.0),))


def contestant(name: str, *rates: float, precise: bool = True, failure: str | None = None) -> Contestant:
    runs = [[timing(rate), timing(rate)] for rate in rates]
    return Contestant(name, precise, "K 3", {"K 3": 1.0}, "bfloat16", name.partition(" ")[0], runs, failure)


def test_the_best_setting_is_the_fastest_that_ran() -> None:
    assert best({"K 3": 20.0, "K 5": 31.5, "K 8": "out of memory", "K 7": 30.0}) == "K 5"
    assert best({"K 3": "does not load"}) is None
    assert described({"num_assistant_tokens": 20, "confidence": 0.4}) == "num_assistant_tokens 20, confidence 0.4"
    assert described({}) == "as it is"


def test_agreement_counts_outputs_and_tells_where_they_part() -> None:
    reference = [timing(1, (1, 2, 3)), timing(1, (4, 5, 6)), timing(1, (7, 8, 9))]
    assert agreement(reference, reference) == "3 of 3 the same"
    others = [timing(9, (1, 2, 3)), timing(9, (4, 5, 7)), timing(9, (0, 8, 9))]
    assert agreement(reference, others) == "1 of 3 the same; the others differ after 1 tokens on average"


def test_ratios_are_within_runs() -> None:
    ours = contestant("us two services", 40.0, 80.0, 60.0)
    plain = contestant("us plain", 20.0, 20.0, 20.0)
    slower = contestant("them plain", 10.0, 40.0, 20.0)
    faster = contestant("them draft", 80.0, 160.0, 30.0)
    inexact = contestant("them int8", 400.0, 800.0, 600.0, precise=False)
    shown = figures([plain, ours, slower, faster, inexact], "us plain", "us two services")
    assert shown["us two services, tokens/s"] == Spread(60.0, 40.0, 80.0, 3)
    assert shown["us two services / them plain"] == Spread(3.0, 2.0, 4.0, 3)
    assert shown["us two services / us plain"] == Spread(3.0, 2.0, 4.0, 3)
    assert shown["us plain / them plain"] == Spread(1.0, 0.5, 2.0, 3)
    assert shown["ahead of us"] == "them draft"
    assert shown["them draft, outputs"] == "2 of 2 the same"
    prompts_too = shown["us two services, tokens/s with the prompt"]
    assert isinstance(prompts_too, Spread)
    assert prompts_too.median == pytest.approx(5 / (1 + 4 / 60))


def test_the_best_speculation_of_each_peer_is_compared() -> None:
    plain, slow, fast = contestant("us plain", 20.0), contestant("us two services", 30.0), contestant("us lookup", 60.0)
    theirs = [contestant("them plain", 90.0), contestant("them draft", 40.0), contestant("them lookup", 20.0)]
    others = [contestant("others plain", 90.0), contestant("others draft", failure="it does not load")]
    shown = figures([plain, slow, fast, *theirs, *others], "us plain", "us two services")
    assert shown["us best speculation / them best speculation"] == Spread(1.5, 1.5, 1.5, 1)
    assert "us best speculation / others best speculation" not in shown


def test_a_method_of_ours_is_compared_with_the_same_of_a_peer() -> None:
    inside, lookup = contestant("us draft model in the verifier", 30.0), contestant("us prompt lookup", 60.0)
    theirs = [contestant("them draft model", 20.0), contestant("them prompt lookup", 50.0)]
    shown = figures(
        [contestant("us plain", 20.0), contestant("us two services", 40.0), inside, lookup, *theirs],
        "us plain",
        "us two services",
    )
    assert shown["us draft model in the verifier / them draft model"] == Spread(1.5, 1.5, 1.5, 1)
    assert shown["us prompt lookup / them prompt lookup"] == Spread(1.2, 1.2, 1.2, 1)
    assert "us prompt lookup / them draft model" not in shown


def test_a_method_of_ours_is_compared_with_the_one_that_it_extends() -> None:
    ours, both = contestant("us EAGLE-3", 30.0), contestant("us EAGLE-3 and prompt lookup", 60.0)
    theirs = [
        contestant("them EAGLE-3", 40.0),
        contestant("them EAGLE-3 and trees", 50.0),
        contestant("them plain", 9.0),
    ]
    shown = figures([contestant("us plain", 20.0), ours, both, *theirs], "us plain", "us EAGLE-3")
    assert shown["us EAGLE-3 and prompt lookup / them EAGLE-3"] == Spread(1.5, 1.5, 1.5, 1)
    assert not {each for each in shown if each.startswith("us EAGLE-3 and prompt lookup / them EAGLE-3 and")}
    assert "us EAGLE-3 and prompt lookup / them plain" not in shown


def test_who_was_not_measured_is_named_with_the_reason() -> None:
    ours, plain = contestant("us two services", 40.0), contestant("us plain", 20.0)
    gone = contestant("them draft", failure="it does not load")
    gone.tried = {"K 3": "it does not load", "K 5": "it does not load"}
    shown = figures([plain, ours, gone], "us plain", "us two services")
    assert shown["them draft"] == "not measured: it does not load"
    assert shown["them draft, tried"] == "K 3: it does not load; K 5: it does not load"
    assert not any(name.startswith("them draft, tokens") or " / them" in name for name in shown)
    assert shown["ahead of us"] == "nobody with the same precision"


def test_processes_are_shared_where_a_peer_takes_its_setting_with_the_request() -> None:
    a, b = {"length": 3, "threads": 1}, {"length": 5, "threads": 1}
    one, other = Method("plain", (a, b)), Method("draft", (a, b))

    def keys(peer: Peer) -> int:
        return len({peer.process_key(method, setting) for method in (one, other) for setting in (a, b)})

    assert keys(Peer("them", "them.py", (one, other))) == 1
    assert keys(Peer("them", "them.py", (one, other), process_per_method=True)) == 2
    assert keys(Peer("them", "them.py", (one, other), load_settings=("threads",))) == 1
    assert keys(Peer("them", "them.py", (one, other), process_per_method=True, load_settings=None)) == 4


@pytest.mark.parametrize("llama_cpp", ["", "/opt/llama.cpp"])
def test_every_peer_has_its_runner_and_names_of_its_own(llama_cpp: str) -> None:
    everybody = peers(2, llama_cpp, eagle=True)
    assert all(find_spec(peer.runner) is not None for peer in everybody)
    assert [peer.name for peer in everybody if peer.environment is None] == ["draftwire"]
    for peer in everybody:
        for method in peer.methods:
            assert len({described(setting) for setting in method.settings}) == len(method.settings), method.name
