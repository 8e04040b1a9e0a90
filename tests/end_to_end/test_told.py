"""Log-probabilities and texts of tokens from real services, with the bundled models."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftwire import Client, Generation, Speculation
from tests.harness.checkout import MODELS
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, sometimes

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n    # naïve: "
ASKED: dict[str, Any] = {"max_tokens": 48, "seed": 3, "ignore_eos": True, "logprobs": 5, "prompt_logprobs": 2}


def told(result: Generation) -> Any:
    """Returns everything that depends on the tokens alone; numbers are equal only if all their bits are."""
    return (result.text, result.token_ids, result.text_offsets, result.logprobs, result.prompt, result.finish_reason)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_bits_whoever_drafts(client: Client, good_drafter: str, bad_drafter: str, temperature: float) -> None:
    asked = {**ASKED, "temperature": temperature, "echo": True}
    plain = client.generate(PROMPT, **asked)
    assert len(plain.logprobs) == 48 and plain.prompt is not None and plain.prompt.text == PROMPT
    client.drafters.attach(good_drafter, "good")
    client.drafters.attach("local:ngram", "ngram")

    def drafted() -> int:
        both = client.generate(PROMPT, speculation=Speculation(drafters=["good", "ngram"]), **asked)
        assert both.speculation.accepted_tokens == sum(both.speculation.accepted_per_position)
        assert told(both) == told(plain)
        return both.speculation.accepted_tokens

    sometimes(drafted, "drafts are accepted")
    with client.stream(PROMPT, **asked) as stream:
        next(stream)
        client.drafters.swap("good", bad_drafter)
        list(stream)
    assert told(stream.result) == told(plain)
    assert all(told(each) == told(plain) for each in client.generate_batch([PROMPT] * 4, **asked))


def test_they_are_the_librarys(services: Services) -> None:
    verifier = services.verifier("target", "--dtype", "float32")
    with Client(verifier.address, timeout=PATIENCE) as client:
        result = client.generate(PROMPT, temperature=0.8, **ASKED)
    assert result.prompt is not None
    text = [*result.prompt.token_ids, *result.token_ids]
    model = AutoModelForCausalLM.from_pretrained(MODELS / "target", dtype=torch.float32)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([text])).logits[0].log_softmax(1)
    for position, found in enumerate([*result.prompt.logprobs[1:], *result.logprobs], start=1):
        assert found is not None
        row = expected[position - 1]
        assert abs(found.token.logprob - row[text[position]].item()) < 1e-3
        for each, best in zip(found.top, row.topk(len(found.top)).values.tolist(), strict=True):
            assert abs(each.logprob - best) < 1e-3
    assert b"".join(each.token.text_bytes for each in result.logprobs).decode().startswith(result.text)


def test_ends(client: Client) -> None:
    plain = client.generate(PROMPT, max_tokens=48, seed=3, ignore_eos=True)
    token = plain.token_ids[20]
    stopped = client.generate(PROMPT, max_tokens=48, seed=3, stop_token_ids=[token], ignore_eos=True)
    assert stopped.token_ids == plain.token_ids[: plain.token_ids.index(token) + 1]
    assert (stopped.finish_reason, stopped.stop_token_id) == ("stop", token)
    kept = client.generate(PROMPT, max_tokens=48, seed=3, stop_token_ids=[token], include_stop=True, ignore_eos=True)
    assert kept.text == stopped.text + client.detokenize([token])
    late = client.generate(PROMPT, max_tokens=1800, seed=3, max_time=0.5, ignore_eos=True)
    assert late.finish_reason == "deadline"
    assert late.token_ids[:48] == plain.token_ids[: len(late.token_ids)]


def test_several_results(client: Client) -> None:
    several = client.generate(PROMPT, n=3, max_tokens=16, seed=8, ignore_eos=True)
    for index, each in enumerate(several.choices):
        assert told(each) == told(client.generate(PROMPT, max_tokens=16, seed=8 + index, ignore_eos=True))


def test_tokenization(client: Client) -> None:
    found = client.tokenization(PROMPT)
    assert found.token_ids == client.tokenize(PROMPT)
    for text, offset in zip(found.token_texts, found.text_offsets, strict=True):
        assert "\N{REPLACEMENT CHARACTER}" in text or PROMPT.startswith(text, offset)
