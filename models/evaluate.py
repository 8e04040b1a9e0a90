"""Measure the bundled pair, or the hybrid one, on held-out text; what the model card quotes is this script's output.

Weights are read as committed (bfloat16) and computed with in float32, so that no argmax is a tie of rounded numbers.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from corpus import documents

HERE = Path(__file__).parent
DRAFTS = ("draft", "draft-early", "draft-untrained")
WINDOW = 1024  # tokens; every window starts without context


def load(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def windows(tokenizer_at: Path) -> Iterator[tuple[str, Tensor, int]]:
    """(package, ids [1, up to WINDOW + 1], bytes that ids[1:] stand for) for all held-out documents."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_at)
    for document in (d for d in documents() if d.held_out):
        ids = [tokenizer.eos_token_id, *tokenizer(document.text).input_ids]
        for start in range(0, len(ids) - 1, WINDOW):
            part = ids[start : start + WINDOW + 1]
            # A byte-level vocabulary spells every byte as one character.
            size = sum(map(len, tokenizer.convert_ids_to_tokens(part[1:])))
            yield document.package, torch.tensor([part]), size


@torch.inference_mode()
def teacher_forced(models: dict[str, PreTrainedModel], every: int) -> dict[str, dict[str, float]]:
    """Bits per byte of each model and its agreement with the target in greedy choices, on every `every`-th window of
    the whole, and on all windows of the standard library."""
    bits = {scope: dict.fromkeys(models, 0.0) for scope in ("all", "stdlib", "without transformers")}
    same = {scope: dict.fromkeys(models, 0) for scope in bits}
    right = {scope: dict.fromkeys(models, 0) for scope in bits}
    size, positions = dict.fromkeys(bits, 0), dict.fromkeys(bits, 0)
    for number, (package, ids, count) in enumerate(windows(HERE / "target")):
        sampled = number % every == 0
        scopes = ["all"] * sampled + ["stdlib"] * (package == "stdlib")
        scopes += ["without transformers"] * (sampled and package != "transformers")
        if not scopes:
            continue
        outputs = {name: model(ids[:, :-1]).logits[0] for name, model in models.items()}
        greedy = outputs["target"].argmax(-1)
        for scope in scopes:
            size[scope] += count
            positions[scope] += ids.shape[1] - 1
            for name, logits in outputs.items():
                bits[scope][name] += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum")) / math.log(2)
                same[scope][name] += int((logits.argmax(-1) == greedy).sum())
                right[scope][name] += int((logits.argmax(-1) == ids[0, 1:]).sum())
    result: dict[str, dict[str, float]] = {}
    for scope in bits:
        result[scope] = {"bytes": size[scope], "positions": positions[scope]}
        for name in models:
            result[scope][f"bits per byte, {name}"] = round(bits[scope][name] / size[scope], 4)
            result[scope][f"agreement with target, {name}"] = round(same[scope][name] / positions[scope], 4)
            result[scope][f"right next token, {name}"] = round(right[scope][name] / positions[scope], 4)
    return result


def continued(model: PreTrainedModel, ids: Tensor, length: int) -> Tensor:
    """`ids` [1, time] with the model's greedy continuation of up to `length` tokens."""
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False)


@torch.inference_mode()
def on_generated(models: dict[str, PreTrainedModel], prompts: int, length: int) -> dict[str, float]:
    """Share of the target's own greedy tokens that each draft would have proposed in the same place: what decides how
    many proposals are accepted in greedy decoding."""
    tokenizer = AutoTokenizer.from_pretrained(HERE / "target")
    rows = [json.loads(line) for line in (HERE / "prompts.jsonl").read_text().splitlines()]
    same = dict.fromkeys(models, 0)
    positions = 0
    for row in rows[:: max(1, len(rows) // prompts)]:
        ids = tokenizer(row["text"], return_tensors="pt").input_ids
        full = continued(models["target"], ids, length)
        new = full[0, ids.shape[1] :]
        positions += len(new)
        for name, model in models.items():
            proposed = model(full[:, :-1]).logits[0, ids.shape[1] - 1 :].argmax(-1)
            same[name] += int((proposed == new).sum())
    return {"positions": positions, **{f"agreement, {name}": round(same[name] / positions, 4) for name in models}}


@torch.inference_mode()
def samples(target: PreTrainedModel, numbers: list[int], length: int) -> list[dict[str, str]]:
    """Greedy continuations of some prompts."""
    tokenizer = AutoTokenizer.from_pretrained(HERE / "target")
    rows = [json.loads(line) for line in (HERE / "prompts.jsonl").read_text().splitlines()]
    result = []
    for row in (rows[number] for number in numbers):
        ids = tokenizer(row["text"], return_tensors="pt").input_ids
        full = continued(target, ids, length)
        result.append({**row, "continuation": tokenizer.decode(full[0, ids.shape[1] :])})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=4, help="use every n-th window of the whole held-out text")
    parser.add_argument("--prompts", type=int, default=40, help="how many prompts to let the target continue")
    parser.add_argument("--length", type=int, default=96, help="new tokens per prompt")
    parser.add_argument("--target", default="target", help="name of the target's directory")
    parser.add_argument("--drafts", nargs="+", default=DRAFTS, help="likewise of the drafts")
    parser.add_argument("--out", type=Path, default=HERE / "figures.json")
    options = parser.parse_args()
    models = {"target": load(HERE / options.target), **{name: load(HERE / name) for name in options.drafts}}
    figures: dict[str, object] = {"parameters": {name: model.num_parameters() for name, model in models.items()}}
    figures["held-out text"] = teacher_forced(models, options.every)
    print(json.dumps(figures, indent=2), flush=True)
    figures["target's own greedy text"] = on_generated(models, options.prompts, options.length)
    options.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    for sample in samples(models["target"], [1, 14, 60], options.length):
        print(f"--- {sample['id']} {sample['source']}\n{sample['text']}\n>>>{sample['continuation']}")


if __name__ == "__main__":
    main()
