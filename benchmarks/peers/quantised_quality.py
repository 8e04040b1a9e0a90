"""Measures what products of quantised weights lose, here and in llama.cpp on the same GGUF files.

    python -m benchmarks.peers.quantised_quality [--weights q8_0,q4_0,q4_k] [--llama-cpp DIR] [--chunks 40] [--json]
    python -m benchmarks.peers.quantised_quality --model FILE.gguf [--llama-cpp DIR] [--json]

The reference is the same file with its weights expanded to float32, in transformers. All get the same token ids: the
held-out prompts, one after the other, in chunks. Scored are the positions in the second half of each chunk, by the
rules of llama-perplexity: the mean Kullback-Leibler divergence from the reference, and the perplexity. llama.cpp's
figures are those of its own llama-perplexity, which reads the reference's distributions from a file written here.

Without --model the files are of the bundled target, inflated to widths that superblocks divide. Then the distance from
the unquantised weights is measured as well, also of weights that are quantised at load (--weights of the services).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.peers.environment import PLACE
from benchmarks.peers.expanded_model import expanded_model
from benchmarks.peers.llama_programs import add_llama_option, llama_program
from benchmarks.peers.log_probabilities import Quality, Reference, first_scored, quality, write
from benchmarks.peers.runners.gguf_export import WEIGHTS, exported
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.device.choices import QuantisedWeights, TargetWeights
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

_PROMPTS = 160
"""All there are."""
_FIGURES = {"divergence": re.compile(r"Mean +KLD: +(\S+)"), "perplexity": re.compile(r"Mean PPL\(Q\) +: +(\S+)")}
"""The lines of llama-perplexity that carry its figures."""


@dataclass(frozen=True)
class Text:
    """Token ids in chunks, and the positions that are scored."""

    tokens: np.ndarray
    """int64 [chunks, length]"""

    @classmethod
    def of(cls, tokenizer: Tokenizer, chunks: int, length: int) -> Text:
        """Returns at most `chunks` chunks of the held-out prompts; each begins with the tokens that any text does."""
        first = tokenizer.encode("")
        joined = [
            token for text in held_out_prompts(_PROMPTS) for token in tokenizer.encode(text, add_special_tokens=False)
        ]
        own = length - len(first)
        parts = [first + joined[start : start + own] for start in range(0, len(joined) - own, own)]
        return cls(np.array(parts[:chunks], np.int64))

    @property
    def next_tokens(self) -> np.ndarray:
        """The tokens after the scored positions: [chunks, positions]."""
        return self.tokens[:, first_scored(self.tokens.shape[1]) + 1 :]


@torch.inference_mode()
def _references(path: Path, text: Text) -> list[Reference]:
    """Returns the distributions of a file's model in float32, for each chunk."""
    model = expanded_model(GgufFile.open(path))
    first = first_scored(text.tokens.shape[1])
    return [
        Reference.of(model(torch.from_numpy(chunk)[None], use_cache=False).logits[0, first:-1].numpy())
        for chunk in text.tokens
    ]


def _our_logits(model: PackedModel, text: Text) -> Iterator[np.ndarray]:
    """Yields the logits of the scored positions of each chunk, from one packed pass."""
    length = text.tokens.shape[1]
    slots = model.pool.take(length)
    for chunk in text.tokens:
        builder = BatchBuilder()
        scored = range(first_scored(length), length - 1)
        rows = [builder.add_row(int(token), i, int(slots[i]), i in scored) for i, token in enumerate(chunk)]
        builder.add_lane(np.empty(0, dtype=np.int64), rows)
        yield model.forward(builder.build(model.group_size, model.device)).float().numpy()


def _ours(path: Path, text: Text, references: list[Reference], weights: TargetWeights = "checkpoint") -> Quality:
    model = PackedModel.load(str(path), slots=2 * text.tokens.shape[1], dtype="bfloat16", weights=weights)
    return quality(_our_logits(model, text), references, text.next_tokens)


def _llama(program: Path, path: Path, base: Path, length: int, threads: int, positions: int) -> Quality:
    """Runs llama-perplexity. Raises RuntimeError with its last words if it prints no figures."""
    command = [str(program), "--model", str(path), "--kl-divergence", "--kl-divergence-base", str(base)]
    command += ["--ctx-size", str(length), "--threads", str(threads), "--threads-batch", str(threads)]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    printed = ran.stdout + ran.stderr
    found = {name: pattern.search(printed) for name, pattern in _FIGURES.items()}
    if ran.returncode or None in found.values():
        raise RuntimeError(f"{program.name} ends with status {ran.returncode}: {printed[-1000:]}")
    divergence, perplexity = (float(match[1]) for match in found.values() if match is not None)
    return Quality(divergence, perplexity, positions)


class Comparison:
    """Measures files, and collects the figures."""

    def __init__(self, text: Text, options: argparse.Namespace):
        self._text = text
        self._threads = options.threads
        self._llama = llama_program(options.llama_cpp, "llama-perplexity") if options.llama_cpp else None
        self.figures: dict[str, object] = {}

    def reference(self, name: str, path: Path) -> list[Reference]:
        """Returns the distributions of a file in float32; `name` is that of its figures."""
        print(f"{name}: {path} in float32", file=sys.stderr)
        references = _references(path, self._text)
        exact = quality((each.log_probabilities for each in references), references, self._text.next_tokens)
        self.figures[f"{name}, in float32: perplexity"] = round(exact.perplexity, 4)
        return references

    def file(self, name: str, path: Path, references: list[Reference]) -> None:
        """Measures a file here and in llama.cpp, against itself in float32."""
        print(f"{name}: {path}", file=sys.stderr)
        ours = _ours(path, self._text, references)
        self._add(f"{name}, draftwire", ours)
        if self._llama is None:
            return
        with tempfile.TemporaryDirectory() as place:
            base = Path(place) / "reference"
            vocabulary = references[0].log_probabilities.shape[1]
            write(base, self._text.tokens, vocabulary, references)
            length = self._text.tokens.shape[1]
            theirs = _llama(self._llama, path, base, length, self._threads, ours.positions)
        self._add(f"{name}, llama.cpp", theirs)
        for figure in ("divergence", "perplexity"):
            ratio = getattr(ours, figure) / getattr(theirs, figure)
            self.figures[f"{name}, draftwire / llama.cpp: {figure}"] = round(ratio, 4)

    def distance(self, name: str, path: Path, references: list[Reference], weights: TargetWeights) -> None:
        """Measures a file, or its `weights` quantised at load, against unquantised weights in float32."""
        print(f"{name}: {path} and unquantised weights", file=sys.stderr)
        found = _ours(path, self._text, references, weights)
        self.figures[f"{name}, draftwire: divergence from unquantised weights"] = found.divergence
        self.figures[f"{name}, draftwire: perplexity"] = round(found.perplexity, 4)

    def _add(self, name: str, found: Quality) -> None:
        self.figures[f"{name}: divergence"] = found.divergence
        self.figures[f"{name}: perplexity"] = round(found.perplexity, 4)
        self.figures["positions"] = found.positions


def _weights(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in WEIGHTS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(WEIGHTS)}")
    return names


def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="measure this GGUF file alone")
    parser.add_argument(
        "--weights", type=_weights, default=["bf16", "q8_0", "q4_0", "q4_k"], help=f"of {', '.join(WEIGHTS)}"
    )
    parser.add_argument(
        "--target-millions", type=float, default=75.0, help="parameters of the inflated target, in millions"
    )
    parser.add_argument("--chunks", type=int, default=40)
    parser.add_argument("--length", type=int, default=256, help="tokens of a chunk")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    add_llama_option(parser)
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source = str(options.model or MODELS / "target")
    text = Text.of(Tokenizer.load(source), options.chunks, options.length)
    try:
        compared = Comparison(text, options)
    except FileNotFoundError as error:
        parser.error(str(error))
    compared.figures["text"] = f"held-out prompts, {len(text.tokens)} chunks of {options.length} tokens"
    if options.model is not None:
        compared.figures["model"] = options.model.name
        compared.file(options.model.stem, options.model, compared.reference(options.model.stem, options.model))
    else:
        model = str(inflated(MODELS / "target", options.target_millions))
        compared.figures["model"] = f"bundled target, inflated: {options.target_millions:g} M"
        _compare_bundled(compared, model, options)
    print_report("quantised_quality", compared.figures, options)


def _compare_bundled(compared: Comparison, model: str, options: argparse.Namespace) -> None:
    cache = str(PLACE / "models")
    unquantised = exported(model, cache)
    base = compared.reference("bf16", unquantised)
    for weights in options.weights:
        try:
            path = exported(model, cache, weights, options.llama_cpp)
        except FileNotFoundError as error:
            compared.figures[weights] = f"not measured: {error}"
            continue
        compared.file(weights, path, base if weights == "bf16" else compared.reference(weights, path))
        if weights != "bf16":
            compared.distance(weights, path, base, "checkpoint")
        if weights in get_args(QuantisedWeights):
            compared.distance(f"{weights} at load", unquantised, base, weights)


if __name__ == "__main__":
    main()
