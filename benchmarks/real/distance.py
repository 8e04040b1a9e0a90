"""Measures how close outputs and logits of small published models are to llama.cpp's, on the same GGUF files.

    python -m benchmarks.real.distance [--targets SmolLM2] [--texts 4] [--length 64] [--tokens 32] [--threads 1]
        [--results DIR] [--json]

Outputs: the first greedy tokens after eight short prompts, and how many prompts have equal ones here and in llama.cpp.
Two releases of llama.cpp, both wheels of xllamacpp, are compared with each other likewise. Where outputs part, the
lead is that of the likelier one of the two tokens over the next one, in logits, computed here.

Logits: the Kullback-Leibler divergence from the same file with its weights expanded to float32 (transformers), after
each token of some texts, in nats. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.real_files import REAL_MODELS
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.peers.environment import Environment, PeerUnavailable
from benchmarks.peers.expanded_model import expanded_model
from benchmarks.real.prompts import real_prompts
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_tools.packaged_file import FetchError
from tests.harness.checkout import ROOT

PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "In 1969,",
    "Once upon a time, there was",
    "def fibonacci(n):",
    "The three primary colours are",
    "My favourite recipe for bread is",
    "The largest planet in the solar system",
)
RELEASES = {
    release: Environment(f"llama.cpp-{release}", (f"xllamacpp=={release}", "numpy"), ("xllamacpp",))
    for release in ("2026.10.11549", "2026.4.8929")
}
"""Environments of llama.cpp, the newest release first. The last part of a release is llama.cpp's own number."""
_LONGEST = 512
"""Tokens of a text or an output with its prompt."""


@dataclass(frozen=True)
class Answers:
    """The outputs and logits of one engine, for token ids that all engines get."""

    outputs: list[list[int]]
    """The greedy tokens after each prompt."""
    logits: np.ndarray
    """float32 [positions, vocabulary], text by text."""


def equal_outputs(these: Sequence[Sequence[int]], those: Sequence[Sequence[int]]) -> int:
    """Returns how many outputs are equal."""
    return sum(list(one) == list(other) for one, other in zip(these, those, strict=True))


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Returns the first index at which two outputs differ; None if they are equal."""
    return next((index for index, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def divergences(reference: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Returns the Kullback-Leibler divergence from the reference after each token, in nats: [positions]."""
    found = []
    for base, near in zip(reference, logits, strict=True):
        expected, got = _log_probabilities(base), _log_probabilities(near)
        found.append(float((np.exp(expected) * (expected - got)).sum()))
    return np.array(found)


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    found: np.ndarray = wide - np.log(np.exp(wide).sum())
    return found


class OurModel:
    """A model as the verifier has it, without the verifier."""

    def __init__(self, path: Path):
        self._model = PackedModel.load(str(path), slots=2 * _LONGEST, dtype="bfloat16")
        self._slots = np.array(self._model.pool.take(_LONGEST), np.int64)

    def answers(self, order: dict[str, list[list[int]]], tokens: int) -> Answers:
        """Returns the outputs of prompts and the logits of texts."""
        outputs = [self.greedy(each, tokens) for each in order["prompts"]]
        return Answers(outputs, np.concatenate([self._run(each, 0, True) for each in order["texts"]]))

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """Returns the most likely tokens after a prompt, past any end of the text."""
        found = [int(self._run(prompt, 0, False)[0].argmax())]
        while len(found) < count:
            found.append(int(self._run(found[-1:], len(prompt) + len(found) - 1, False)[0].argmax()))
        return found

    def lead(self, tokens: Sequence[int]) -> float:
        """Returns the lead of the likeliest token after some others over the next one, in logits."""
        second, first = np.sort(self._run(tokens, 0, False)[0])[-2:]
        return float(first - second)

    def _run(self, tokens: Sequence[int], first: int, everywhere: bool) -> np.ndarray:
        builder = BatchBuilder()
        rows = [
            builder.add_row(token, first + i, int(self._slots[first + i]), everywhere or i == len(tokens) - 1)
            for i, token in enumerate(tokens)
        ]
        builder.add_lane(self._slots[:first], rows)
        found: np.ndarray = (
            self._model.forward(builder.build(self._model.group_size, self._model.device)).float().numpy()
        )
        return found


def llama_answers(
    environment: Environment, path: Path, order: dict[str, list[list[int]]], tokens: int, threads: int
) -> Answers:
    """Runs llama.cpp. Raises PeerUnavailable."""
    environment.prepare()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        asked, outputs, logits = place / "order.json", place / "outputs.json", place / "logits.npy"
        asked.write_text(json.dumps({**order, "tokens": tokens}))
        command = [str(environment.python), "-m", "benchmarks.peers.runners.run_llama_logits", "--model", str(path)]
        command += ["--threads", str(threads), "--order", str(asked)]
        command += ["--outputs", str(outputs), "--logits", str(logits)]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        if ran.returncode:
            raise PeerUnavailable(f"llama.cpp ends with status {ran.returncode}: {ran.stderr[-400:]}")
        return Answers(json.loads(outputs.read_text()), np.load(logits))


def reference_logits(path: Path, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the logits of a file in float32: [positions, vocabulary]."""
    model = expanded_model(GgufFile.open(path))
    with torch.inference_mode():
        return np.concatenate([model(torch.tensor([each]), use_cache=False).logits[0].numpy() for each in texts])


def measure(name: str, path: Path, options: argparse.Namespace) -> dict[str, object]:
    """Measures one model. Raises PeerUnavailable."""
    tokenizer = Tokenizer.load(str(path))
    passages = [each.text for each in real_prompts(options.texts) if each.task == "summary"]
    order = {
        "prompts": [tokenizer.encode(each) for each in PROMPTS],
        "texts": [tokenizer.encode(each)[: options.length] for each in passages],
    }
    llama = {
        release: llama_answers(environment, path, order, options.tokens, options.threads)
        for release, environment in RELEASES.items()
    }
    reference = reference_logits(path, order["texts"])
    model = OurModel(path)
    ours = model.answers(order, options.tokens)
    newest, older = llama.values()
    found: dict[str, object] = {"positions": len(reference)}
    distances = {"draftwire": divergences(reference, ours.logits)} | {
        f"llama.cpp {release}": divergences(reference, each.logits) for release, each in llama.items()
    }
    for engine, each in distances.items():
        found[f"{engine}: divergence, mean"] = float(each.mean())
        found[f"{engine}: divergence, largest"] = float(each.max())
    mine, *theirs = distances.values()
    found["draftwire / llama.cpp: divergence, mean"] = float(mine.mean() / theirs[0].mean())
    found["draftwire / llama.cpp: divergence, largest"] = float(mine.max() / theirs[0].max())
    found["draftwire and llama.cpp: equal outputs"] = equal_outputs(ours.outputs, newest.outputs)
    found["two releases of llama.cpp: equal outputs"] = equal_outputs(newest.outputs, older.outputs)
    leads = {}
    for text, prompt, one, other in zip(PROMPTS, order["prompts"], ours.outputs, newest.outputs, strict=True):
        at = parting(one, other)
        if at is not None:
            leads[text] = f"{model.lead([*prompt, *one[:at]]):.3f} at token {at + 1}"
    found["lead where outputs part"] = leads
    return {f"{name}, {figure}": value for figure, value in found.items()}


def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(REAL_MODELS), help="SmolLM2, Gemma 3, or both")
    parser.add_argument("--texts", type=int, default=4, help="texts whose logits are compared, from 1 to 20")
    parser.add_argument("--length", type=int, default=64, help=f"most tokens of a text, up to {_LONGEST}")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an output")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    add_report_options(parser)
    options = parser.parse_args()
    targets = options.targets.split(",")
    if unknown := [name for name in targets if name not in REAL_MODELS]:
        parser.error(f"--targets: {unknown[0]!r} is not one of {', '.join(REAL_MODELS)}")
    if not 1 <= options.length <= _LONGEST:
        parser.error(f"--length: expected 1 to {_LONGEST}, got {options.length}")
    torch.set_num_threads(options.threads)
    figures: dict[str, object] = {"prompts": len(PROMPTS), "tokens of an output": options.tokens}
    try:
        for name in targets:
            figures |= measure(name, REAL_MODELS[name].file.fetch(), options)
    except (FetchError, PeerUnavailable, ValueError) as problem:
        sys.exit(f"not measured: {problem}")
    print_report("distance", figures, options)


if __name__ == "__main__":
    main()
