"""Coupled acceptance under runner V1: the tokens of a request are the same with any draft tokens and with none, and are
those of our engine for the same logits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwire_core.adapters.vllm.coupled_verdict import NO_TOKEN, chain_verdicts, couple
from draftwire_core.adapters.vllm.request_sampling import request_sampling
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.stand_ins.vllm_sampler import Bias, Metadata, drafts_of, penalised, runner_of

VOCABULARY = 130
REQUESTS: dict[str, dict[str, Any]] = {
    "cold": {},
    "warm": {"temperature": 0.8, "seed": 3},
    "hot": {"temperature": 1.0, "seed": -5},
    "filtered": {"temperature": 1.3, "seed": 11, "top_k": 20, "top_p": 0.9},
    "unseeded": {"temperature": 1.0},
}
BIASES = {0: {7: 7.0, 90: 5.0}, 2: {3: -4.0, 12: 2.5}}
"""Bias of tokens by request: of one that is greedy, and of one that is not."""


def logits_after(tokens: Sequence[int]) -> Tensor:
    """The target's logits after a text: flat enough that the noise decides."""
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31)
    return torch.randn(VOCABULARY, generator=generator)


def bias_of(requests: Mapping[str, Any]) -> Tensor:
    return torch.randn(len(requests), VOCABULARY, generator=torch.Generator().manual_seed(9))


def metadata_of(requests: Mapping[str, Mapping[str, Any]]) -> Metadata:
    temperatures = [each.get("temperature", 0.0) for each in requests.values()]
    return Metadata(torch.tensor(temperatures), not any(temperatures), bias_of(requests))


def texts(
    requests: Mapping[str, Mapping[str, Any]], least: int, guess: random.Random | None, bias: Bias | None = None
) -> list[list[int]]:
    """Generates with the objects that `couple` puts into a runner. guess: draws draft tokens; None for none."""
    bias = bias or Bias()
    known = expected(requests, least + 20, bias) if guess else [[]] * len(requests)
    tokens = [[index, 5, 9] for index in range(len(requests))]
    runner = runner_of(requests, [3] * len(requests))
    couple(runner, 0, bias)
    sampling = metadata_of(requests)
    while min(map(len, tokens)) < least + 3:
        runner.input_batch.num_tokens_no_spec[:] = [len(each) for each in tokens]
        if guess is None:
            rows = torch.stack([logits_after(each) for each in tokens])
            table = runner.sampler(logits=rows, sampling_metadata=sampling).sampled_token_ids
        else:
            drafts = []
            for text, right in zip(tokens, known, strict=True):
                ahead = right[len(text) - 3 :][: guess.randrange(5)]
                drafts.append([each if guess.random() < 0.7 else guess.randrange(VOCABULARY) for each in ahead])
            rows = torch.stack(
                [
                    logits_after(text + drafted[:count])
                    for text, drafted in zip(tokens, drafts, strict=True)
                    for count in range(len(drafted) + 1)
                ]
            )
            table = runner.rejection_sampler(drafts_of(drafts), None, rows, sampling).sampled_token_ids
        for text, new in zip(tokens, table.tolist(), strict=True):
            text += [each for each in new if each != NO_TOKEN]
    return [text[3 : least + 3] for text in tokens]


def expected(requests: Mapping[str, Mapping[str, Any]], count: int, bias: Bias) -> list[list[int]]:
    """The tokens that our engine's sampler draws for the same logits, one at a time."""
    outputs = []
    for index, (name, given) in enumerate(requests.items()):
        sampling = request_sampling(name, metadata_params(given), 0)
        text = [index, 5, 9]
        for _ in range(count):
            row = logits_after(text)
            for token, value in bias.biases.get(index, {}).items():
                row[token] += value
            row = penalised(row, bias_of(requests)[index]).unsqueeze(0)
            text.append(int(sample(row, SamplingBatch.build([sampling], [len(text)])).token_ids))
        outputs.append(text[3:])
    return outputs


def metadata_params(given: Mapping[str, Any]) -> Any:
    return runner_of({"r": given}, [1]).requests["r"].sampling_params


@pytest.mark.parametrize("bias", [Bias(), Bias(BIASES)], ids=["free", "biased"])
def test_without_draft_tokens_they_are_our_engines(bias: Bias) -> None:
    assert texts(REQUESTS, 12, None, bias) == expected(REQUESTS, 12, bias)


@pytest.mark.parametrize("bias", [Bias(), Bias(BIASES)], ids=["free", "biased"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_draft_tokens_change_nothing(seed: int, bias: Bias) -> None:
    assert texts(REQUESTS, 12, random.Random(seed), bias) == expected(REQUESTS, 12, bias)


def test_a_greedy_batch_may_have_a_bias() -> None:
    cold, bias = {"cold": REQUESTS["cold"]}, Bias({0: BIASES[0]})
    assert texts(cold, 12, random.Random(1), bias) == expected(cold, 12, bias)
    assert expected(cold, 12, bias) != expected(cold, 12, Bias())


def test_a_greedy_batch_is_vllms_own() -> None:
    runner = runner_of({"cold": {}}, [3])
    original = runner.rejection_sampler
    couple(runner, 0, Bias())
    rows = torch.randn(2, VOCABULARY)
    metadata = metadata_of({"cold": {}})
    assert torch.equal(
        runner.rejection_sampler(drafts_of([[4]]), None, rows, metadata).sampled_token_ids,
        original(drafts_of([[4]]), None, rows, metadata).sampled_token_ids,
    )


def test_while_vllm_warms_up_there_are_rows_without_requests() -> None:
    runner = runner_of({}, [])
    couple(runner, 0, Bias())
    metadata = Metadata(torch.ones(2), False, torch.zeros(2, VOCABULARY))
    rows = torch.randn(4, VOCABULARY)
    assert len(runner.sampler(logits=rows[:2], sampling_metadata=metadata).sampled_token_ids) == 2
    assert len(runner.rejection_sampler(drafts_of([[1], [2]]), None, rows, metadata).sampled_token_ids) == 2


def test_logits_that_are_not_numbers_give_a_token_of_the_vocabulary() -> None:
    requests = {"hot": REQUESTS["hot"]}
    runner = runner_of(requests, [3])
    couple(runner, 0, Bias())
    rows = torch.full((2, VOCABULARY), torch.nan)
    table = runner.rejection_sampler(drafts_of([[7]]), None, rows, metadata_of(requests)).sampled_token_ids
    assert table.tolist() == [[0, NO_TOKEN]]


def test_what_log_probabilities_are_computed_from() -> None:
    """vLLM's logits before its processors, and the tokens of the verdict."""
    requests = {"warm": REQUESTS["warm"], "hot": REQUESTS["hot"]}
    runner = runner_of(requests, [3, 3])
    couple(runner, 0, Bias())
    metadata = metadata_of(requests)
    metadata.max_num_logprobs = 2
    rows = torch.randn(3, VOCABULARY)
    before = rows.clone()
    output = runner.rejection_sampler(drafts_of([[7], []]), None, rows, metadata)
    told, _, logits, raw, bonus, table = output.logprobs_tensors
    assert told == 2
    assert torch.equal(logits, before)
    assert torch.equal(raw, before[:1])
    assert len(bonus) == 2
    assert torch.equal(table, output.sampled_token_ids)


def test_another_rejection_sampling_is_refused() -> None:
    runner = runner_of({}, [])
    runner.speculative_config.rejection_sample_method = "synthetic"
    with pytest.raises(StartupError, match=r"synthetic, but coupled .* DRAFTWIRE_VLLM_COUPLED_SAMPLING"):
        couple(runner, 0, Bias())


def test_verdicts_of_chains() -> None:
    drawn, drafts = torch.tensor([4, 5, 6, 7, 8]), torch.tensor([4, 5, 1, 7, 8], dtype=torch.int32)
    bonus = torch.tensor([[90], [91], [92], [93]], dtype=torch.int32)
    table = chain_verdicts(drawn, bonus, drafts, [3, 0, 1, 1])
    assert table.dtype == torch.int32
    assert table.tolist() == [[4, 5, 6, -1], [91, -1, -1, -1], [7, 92, -1, -1], [8, 93, -1, -1]]


def test_verdicts_without_draft_tokens() -> None:
    nothing = torch.tensor([], dtype=torch.int64)
    assert chain_verdicts(nothing, torch.tensor([[3], [4]]), nothing, [0, 0]).tolist() == [[3], [4]]
