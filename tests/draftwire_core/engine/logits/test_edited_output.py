"""Effects of a request's logit changes on its output, with real models: the same for any drafter (law 1), equal to
transformers' where it has the same option, and as promised for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish
from draftwire_core.engine.logits.logit_changes import LogitChanges
from draftwire_core.engine.logits.processors import editors_of
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal
from tests.harness.engine.engines import engine_of

MODELS = Path(__file__).resolve().parents[4] / "models"
PROMPT = "def add(first, second):\n    return first + second\n\n\ndef subtract(first, second):\n    return"
TOKENS = 22


@pytest.fixture(scope="module")
def target() -> PackedModel:
    return PackedModel.load(str(MODELS / "target"), slots=6000, dtype="float32")


@pytest.fixture(scope="module")
def draft() -> PackedModel:
    return PackedModel.load(str(MODELS / "draft"), slots=6000, dtype="float32", row_exact=False)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODELS / "target")


@pytest.fixture(scope="module")
def prompt(tokenizer: Any) -> list[int]:
    return list(tokenizer.encode(PROMPT))


@dataclass
class Case:
    """One request of a test."""

    changes: LogitChanges = field(default_factory=LogitChanges)
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    output: Sequence[int] = ()
    """Output tokens that it already has."""


@dataclass
class Ran:
    """The results of some requests."""

    tokens: list[list[int]]
    finishes: list[Finish]
    accepted: int


def run(
    target: PackedModel,
    prompt: Sequence[int],
    cases: Sequence[Case],
    *,
    draft: PackedModel | None = None,
    ngram: bool = False,
    swap_after: int | None = None,
    tokens: int = TOKENS,
    ends: Sequence[int] = (),
) -> Ran:
    """Runs requests side by side. swap_after: number of output tokens after which `ngram` replaces `draft`."""
    engine = engine_of(target, max_sequences=64)
    if ngram:
        engine.add_drafter("ngram", ngram_drafter(NgramOptions(min=1)))
    drafter = None if draft is None else DraftModelDrafter(draft)
    result = Ran([list(case.output) for case in cases], [Finish.LENGTH] * len(cases), 0)
    drafting: set[int] = set()
    for number, case in enumerate(cases):
        text = [*prompt, *case.output]
        editors = editors_of(case.changes, prompt, case.output, ends)
        longest = len(prompt) + tokens
        engine.add(SequenceSpec(number, text, longest, case.sampling, frozenset(ends), editors=editors))
        if drafter is not None:
            engine.attach(number, "draft")
            drafter.open(number, DraftSpec(text, case.sampling, 16, longest))
            drafting.add(number)
        elif ngram:
            engine.attach(number, "ngram")
    while engine.busy:
        for _ in range(3 if drafter is not None and drafting else 0):
            for number, proposal in drafter.grow().proposals.items():
                engine.propose(number, "draft", proposal)
        for outcome in engine.step().outcomes:
            number = outcome.sequence_id
            result.tokens[number] += outcome.tokens
            result.accepted += outcome.accepted
            if outcome.finish is not None:
                result.finishes[number] = outcome.finish
                drafting.discard(number)
            elif swap_after is not None and number in drafting and len(result.tokens[number]) >= swap_after:
                drafter.close(number)
                drafting.discard(number)
                engine.detach(number, "draft")
                engine.attach(number, "ngram")
            elif number in drafting:
                drafter.commit(number, outcome.committed_length, outcome.tokens)
    assert target.pool.used == 0
    return result


def spelled(tokenizer: Any, *words: str) -> list[tuple[int, ...]]:
    return [tuple(tokenizer.encode(text, add_special_tokens=False)) for word in words for text in (word, f" {word}")]


@pytest.fixture(scope="module")
def plain(target: PackedModel, prompt: list[int]) -> list[int]:
    """The greedy output without changes."""
    return run(target, prompt, [Case()]).tokens[0]


@pytest.fixture(scope="module")
def changes(tokenizer: Any, plain: list[int]) -> dict[str, LogitChanges]:
    """Changes that change the greedy output."""
    every = {
        "repetition": LogitChanges(repetition_penalty=1.3),
        "presence": LogitChanges(presence_penalty=2.0),
        "frequency": LogitChanges(frequency_penalty=1.2),
        "bias": LogitChanges(logit_bias={plain[0]: -4.0, plain[3]: 3.0}),
        "allowed": LogitChanges(allowed_token_ids=[token for token in range(4000) if token != plain[1]]),
        "banned": LogitChanges(banned_token_ids=plain[2:6:2]),
        "bad words": LogitChanges(bad_words=[plain[1:3], plain[4:7], *spelled(tokenizer, "first")]),
        "least length": LogitChanges(min_tokens=20),
    }
    every["all"] = LogitChanges(
        repetition_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={plain[0]: -2.0},
        banned_token_ids=plain[5:6],
        bad_words=[plain[1:3]],
        min_tokens=12,
    )
    return every


@pytest.fixture(scope="module")
def cases(changes: dict[str, LogitChanges]) -> list[Case]:
    sampled = SamplingParams(temperature=0.8, seed=5)
    greedy = SamplingParams(temperature=0.0)
    every = [Case(each, sampled if at % 2 else greedy) for at, each in enumerate(changes.values())]
    typical = SamplingParams(temperature=0.8, top_p=0.95, typical_p=0.6, seed=6)
    return [*every, Case(sampling=typical), Case(changes["all"], typical)]


@pytest.fixture(scope="module")
def others(changes: dict[str, LogitChanges]) -> list[Case]:
    """The changes with the sampling that they do not have in `cases`."""
    sampled, greedy = SamplingParams(temperature=0.8, seed=5), SamplingParams(temperature=0.0)
    return [Case(each, greedy if at % 2 else sampled) for at, each in enumerate(changes.values())]


@pytest.fixture(scope="module")
def ends(plain: list[int]) -> list[int]:
    """End-of-sequence tokens for the tests: frequent ones that come early."""
    return [plain[8]]


@pytest.fixture(scope="module")
def expected(target: PackedModel, prompt: list[int], cases: list[Case], ends: list[int]) -> list[list[int]]:
    """The output of each case alone, without a drafter."""
    return [run(target, prompt, [case], ends=ends).tokens[0] for case in cases]


WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "draft model": {"drafts": True},
    "ngram": {"ngram": True},
    "swap in the middle": {"drafts": True, "ngram": True, "swap_after": 6},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_output_is_the_same_however_it_is_drafted(
    way: str,
    target: PackedModel,
    draft: PackedModel,
    prompt: list[int],
    cases: list[Case],
    ends: list[int],
    expected: list[list[int]],
) -> None:
    check_way(way, target, draft, prompt, cases, ends, expected)


@pytest.mark.slow
class TestTheOtherSampling:
    @pytest.mark.parametrize("way", WAYS)
    def test_the_output_is_the_same_however_it_is_drafted(
        self, way: str, target: PackedModel, draft: PackedModel, prompt: list[int], others: list[Case], ends: list[int]
    ) -> None:
        expected = [run(target, prompt, [case], ends=ends).tokens[0] for case in others]
        check_way(way, target, draft, prompt, others, ends, expected)


def check_way(
    way: str,
    target: PackedModel,
    draft: PackedModel,
    prompt: list[int],
    cases: list[Case],
    ends: list[int],
    expected: list[list[int]],
) -> None:
    options = dict(WAYS[way])
    drafts = options.pop("drafts", False)
    ran = run(target, prompt, cases, ends=ends, draft=draft if drafts else None, **options)
    assert ran.tokens == expected
    assert ran.accepted > 0 or way == "together"


def test_a_resumed_request_goes_on_as_it_would_have(
    target: PackedModel, prompt: list[int], cases: list[Case], ends: list[int], expected: list[list[int]]
) -> None:
    """Earlier output still counts as output: for penalties, bad words, and the minimum length."""
    begun = [Case(case.changes, case.sampling, tokens[:3]) for case, tokens in zip(cases, expected, strict=True)]
    assert min(map(len, expected)) > 3
    assert run(target, prompt, begun, ends=ends).tokens == expected


def test_each_change_changes_the_greedy_output(
    target: PackedModel, prompt: list[int], changes: dict[str, LogitChanges], ends: list[int], plain: list[int]
) -> None:
    ran = run(target, prompt, [Case(each) for name, each in changes.items() if name != "least length"])
    assert [tokens for tokens in ran.tokens if tokens == plain] == []
    ended, longer = run(target, prompt, [Case(), Case(changes["least length"])], ends=ends).tokens
    assert ended == plain[: plain.index(ends[0]) + 1]
    assert longer[:20] != plain[:20] and len(longer) > 20


def test_each_does_what_it_promises(
    target: PackedModel, draft: PackedModel, prompt: list[int], plain: list[int], ends: list[int], tokenizer: Any
) -> None:
    hot = [SamplingParams(temperature=1.2, seed=seed) for seed in range(4)]
    banned, allowed, word = plain[:4], list(range(100, 160)), spelled(tokenizer, "first")
    promises = [
        LogitChanges(banned_token_ids=banned),
        LogitChanges(allowed_token_ids=allowed),
        LogitChanges(logit_bias={777: 100.0}),
        LogitChanges(bad_words=word),
    ]
    ran = run(target, prompt, [Case(changes, each) for changes in promises for each in hot], draft=draft).tokens
    banning, allowing, forced, without = (ran[first : first + 4] for first in (0, 4, 8, 12))
    assert not {token for tokens in banning for token in tokens} & set(banned)
    assert {token for tokens in allowing for token in tokens} <= set(allowed)
    assert {token for tokens in forced for token in tokens} == {777}
    for tokens in without:
        assert not any(tuple(tokens[at : at + len(each)]) == each for each in word for at in range(len(tokens)))
    long_enough = run(target, prompt, [Case(LogitChanges(min_tokens=20), each) for each in hot], draft=draft, ends=ends)
    assert all(not set(tokens[:20]) & set(ends) for tokens in long_enough.tokens)


REFERENCE: dict[str, tuple[LogitChanges, dict[str, Any]]] = {
    "plain": (LogitChanges(), {}),
    "repetition 1.3": (LogitChanges(repetition_penalty=1.3), {"repetition_penalty": 1.3}),
    "repetition 0.8": (LogitChanges(repetition_penalty=0.8), {"repetition_penalty": 0.8}),
    "bias": (LogitChanges(logit_bias={100: 3.0, 300: 4.5}), {"sequence_bias": [[[100], 3.0], [[300], 4.5]]}),
    "banned": (LogitChanges(banned_token_ids=[264, 265, 280]), {"bad_words_ids": [[264], [265], [280]]}),
    "least length": (LogitChanges(min_tokens=18), {"min_new_tokens": 18}),
    "all": (
        LogitChanges(repetition_penalty=1.2, logit_bias={300: 2.0}, banned_token_ids=[264], min_tokens=18),
        {
            "repetition_penalty": 1.2,
            "sequence_bias": [[[300], 2.0]],
            "bad_words_ids": [[264]],
            "min_new_tokens": 18,
        },
    ),
}


@pytest.fixture(scope="module")
def library() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32).eval()


@pytest.mark.parametrize("name", REFERENCE)
def test_greedy_output_is_the_librarys(
    name: str, library: Any, target: PackedModel, draft: PackedModel, prompt: list[int], ends: list[int]
) -> None:
    """transformers applies the changes in another order, which makes no difference for these."""
    changes, options = REFERENCE[name]
    with torch.inference_mode():
        expected = library.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=0,
            **options,
        )[0, len(prompt) :].tolist()
    assert run(target, prompt, [Case(changes)], draft=draft, ends=ends).tokens[0] == expected


def test_where_nothing_is_allowed_the_request_ends_and_others_go_on(
    target: PackedModel, draft: PackedModel, prompt: list[int], plain: list[int]
) -> None:
    """After its first token nothing is left: the only allowed token would complete a bad word."""
    dead = LogitChanges(allowed_token_ids=plain[:1], bad_words=[plain[:1] * 2])
    at_once = LogitChanges(allowed_token_ids=[5], banned_token_ids=[5])
    cases = [Case(), Case(dead), Case(at_once), Case(dead, SamplingParams(seed=3))]
    for drafts in (None, draft):
        ran = run(target, prompt, cases, draft=drafts, ngram=drafts is None)
        assert ran.tokens == [plain, plain[:1], [], plain[:1]]
        assert ran.finishes == [Finish.LENGTH, *[Finish.NOTHING_ALLOWED] * 3]


def test_a_drafted_token_after_which_nothing_is_allowed_hurts_nobody(target: PackedModel, prompt: list[int]) -> None:
    dead, right = 700, 701
    changes = LogitChanges(
        logit_bias={right: 100.0}, allowed_token_ids=[dead, right], bad_words=[[dead, dead], [dead, right]]
    )
    engine = engine_of(target)
    editors = editors_of(changes, prompt, [], ())
    engine.add(SequenceSpec(0, prompt, len(prompt) + 5, SamplingParams(temperature=0.0), editors=editors))
    engine.attach(0, "d")
    assert engine.step().outcomes[0].tokens == [right]
    engine.propose(0, "d", Proposal(len(prompt) + 1, 1, [dead, right, dead], [0, 0, 2]))
    outcome = engine.step().outcomes[0]
    assert (outcome.tokens, outcome.drafted, outcome.finish) == ([right, right], {"d": 3}, None)
    engine.remove(0)
    assert target.pool.used == 0
