"""Measures how close outputs and logits of small published models are to llama.cpp's, on the same GGUF files.

    python -m benchmarks.real.distance [--targets SmolLM2] [--ways "with AVX-512"] [--more 20] [--texts 8]
        [--length 64] [--tokens 32] [--threads 1] [--answers DIR] [--results DIR] [--json]

Outputs: the first greedy tokens after eight short prompts, and after more of the tasks "chat" and "code". Counted are
prompts with the same output as in llama.cpp compiled for AVX2: of draftwire, of the same release compiled for other
instruction sets, of this build run in other ways, and of an older release. So the figures say how often two users of
llama.cpp get the same outputs. Shares have 95 % intervals (Wilson's), as if prompts had been drawn at random. Where
outputs part, the lead is that of the likelier one of the two tokens over the next one, in logits, computed here.
Ratios of divergences have 95 % intervals, too (bootstrap, as if texts had been drawn at random).

Logits: the Kullback-Leibler divergence from the same file with its weights expanded to float32 (transformers), and from
llama.cpp compiled for AVX2, after each token of some texts, in nats. Nothing here is timed. A run that is killed
continues with the answers in --answers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.real_files import REAL_MODELS
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.peers.environment import Environment, PeerUnavailable
from benchmarks.peers.expanded_model import expanded_model
from benchmarks.peers.llama_builds import llama_builds
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
MORE_TASKS = ("chat", "code")
"""Tasks whose prompts are short."""
_OLDER = "2026.4.8929"
_LIKELY = 1.96
"""Standard deviations of a normal distribution that 95 % are within."""


@dataclass(frozen=True)
class Way:
    """A build of llama.cpp, and how it is run."""

    instructions: str = "AVX2"
    """The instruction set that it is compiled for, of those in llama_builds."""
    options: tuple[str, ...] = ()
    """Options of the runner."""
    environment: Environment | None = None
    """The environment of a release of xllamacpp, instead of a build in llama_builds."""


OURS, BASE = "draftwire", "llama.cpp"
WAYS = {
    "with AVX-512": Way("AVX-512"),
    "with AVX": Way("AVX"),
    "one token a batch": Way(options=("--one-by-one",)),
    "no flash attention": Way(options=("--no-flash-attention",)),
    _OLDER: Way(environment=Environment(f"llama.cpp-{_OLDER}", (f"xllamacpp=={_OLDER}", "numpy"), ("xllamacpp",))),
}
"""Ways to run llama.cpp that are compared with it. The older release is a wheel with AVX2, too."""
_LONGEST = 512
"""Tokens of a text or an output with its prompt."""
_DRAWS = 10_000
"""Samples of texts for an interval."""
_SHOWN = 60
"""Characters of a prompt in the report."""


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


def share(count: int, of: int) -> str:
    """Returns a count with the 95 % interval of its share."""
    part, spread = count / of, _LIKELY**2 / of
    middle = part + spread / 2
    half = math.sqrt(spread * (part * (1 - part) + spread / 4))
    low, high = (100 * (middle + side) / (1 + spread) for side in (-half, half))
    return f"{count} of {of} ({low:.0f} to {high:.0f} %)"


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


def ratio(one: np.ndarray, other: np.ndarray, lengths: Sequence[int]) -> str:
    """Returns the ratio of two means with its 95 % interval: texts are drawn again, with what is alike within each.

    Args:
        one: the divergences after each token, text by text: [positions].
        other: the same of another engine.
        lengths: the texts' tokens.
    """
    ends = np.cumsum(lengths)[:-1]
    sums = np.array([[part.sum() for part in np.split(each, ends)] for each in (one, other)])
    drawn = np.random.default_rng(0).integers(0, len(lengths), (_DRAWS, len(lengths)))
    above, below = sums[:, drawn].sum(2)
    low, high = np.percentile(above / below, [2.5, 97.5])
    return f"{one.mean() / other.mean():.3f} ({low:.3f} to {high:.3f})"


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    found: np.ndarray = wide - np.log(np.exp(wide).sum())
    return found


def kept_answers(place: Path | None, name: str, make: Callable[[], Answers]) -> Answers:
    """Returns the answers that a directory has under a name, or makes and keeps them. place: None keeps nothing."""
    if place is None:
        return make()
    outputs, logits = place / f"{name}.json", place / f"{name}.npy"
    if outputs.exists():
        return Answers(json.loads(outputs.read_text()), np.load(logits))
    made = make()
    place.mkdir(parents=True, exist_ok=True)
    np.save(logits, made.logits)
    outputs.write_text(json.dumps(made.outputs))
    return made


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


def llama_answers(way: Way, path: Path, order: dict[str, list[list[int]]], tokens: int, threads: int) -> Answers:
    """Runs llama.cpp. Raises PeerUnavailable."""
    options = [*way.options, "--model", str(path), "--threads", str(threads)]
    if way.environment is None:
        python, build = sys.executable, llama_builds()[way.instructions]
        options += ["--library", str(build.library), "--backend", str(build.backend)]
    else:
        way.environment.prepare()
        python = str(way.environment.python)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        asked, outputs, logits = place / "order.json", place / "outputs.json", place / "logits.npy"
        asked.write_text(json.dumps({**order, "tokens": tokens}))
        options += ["--order", str(asked), "--outputs", str(outputs), "--logits", str(logits)]
        ran = subprocess.run(
            [python, "-m", "benchmarks.peers.runners.run_llama_logits", *options],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        if ran.returncode:
            raise PeerUnavailable(f"llama.cpp ends with status {ran.returncode}: {ran.stderr[-400:]}")
        return Answers(json.loads(outputs.read_text()), np.load(logits))


def reference_logits(path: Path, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the logits of a file in float32: [positions, vocabulary]."""
    model = expanded_model(GgufFile.open(path))
    with torch.inference_mode():
        return np.concatenate([model(torch.tensor([each]), use_cache=False).logits[0].numpy() for each in texts])


def compare(reference: np.ndarray, answers: Mapping[str, Answers], lengths: Sequence[int]) -> dict[str, object]:
    """Returns the figures of engines, OURS and BASE among them.

    Args:
        reference: the logits in float32.
        answers: those of each engine.
        lengths: the texts' tokens.
    """
    found: dict[str, object] = {"positions": len(reference)}
    base = answers[BASE]
    few, all_ = len(PROMPTS), len(base.outputs)
    away = {engine: divergences(reference, each.logits) for engine, each in answers.items()}
    for engine, each in answers.items():
        found[f"{engine}: divergence, mean"] = float(away[engine].mean())
        found[f"{engine}: divergence, largest"] = float(away[engine].max())
        if engine == BASE:
            continue
        found[f"{engine} / {BASE}: divergence, mean"] = ratio(away[engine], away[BASE], lengths)
        found[f"{engine}: divergence from {BASE}, mean"] = float(divergences(base.logits, each.logits).mean())
        found[f"{engine}: equal outputs"] = equal_outputs(base.outputs[:few], each.outputs[:few])
        found[f"{engine}: equal outputs of all"] = share(equal_outputs(base.outputs, each.outputs), all_)
    found[f"{OURS} / {BASE}: divergence, largest"] = float(away[OURS].max() / away[BASE].max())
    return found


def measure(name: str, path: Path, options: argparse.Namespace) -> dict[str, object]:
    """Measures one model. Raises PeerUnavailable, and ValueError for a number of prompts that there is not."""
    tokenizer = Tokenizer.load(str(path))
    passages = [each.text for each in real_prompts(options.texts) if each.task == "summary"]
    more = [each.text for each in real_prompts(options.more) if each.task in MORE_TASKS] if options.more else []
    prompts = [*PROMPTS, *more]
    order = {
        "prompts": [tokenizer.encode(each) for each in prompts],
        "texts": [tokenizer.encode(each)[: options.length] for each in passages],
    }
    model = OurModel(path)
    engines: dict[str, Callable[[], Answers]] = {OURS: partial(model.answers, order, options.tokens)}
    for engine, way in {BASE: Way(), **{f"{BASE} {each}": WAYS[each] for each in options.ways}}.items():
        engines[engine] = partial(llama_answers, way, path, order, options.tokens, options.threads)
    answers = {engine: kept_answers(options.answers, f"{name}, {engine}", make) for engine, make in engines.items()}
    found = compare(reference_logits(path, order["texts"]), answers, [len(each) for each in order["texts"]])
    leads = {}
    for text, prompt, one, other in zip(
        prompts, order["prompts"], answers[OURS].outputs, answers[BASE].outputs, strict=True
    ):
        at = parting(one, other)
        if at is not None:
            leads[text[:_SHOWN]] = f"{model.lead([*prompt, *one[:at]]):.3f} at token {at + 1}"
    found["lead where outputs part"] = leads
    return {f"{name}, {figure}": value for figure, value in found.items()}


def main() -> None:
    """Runs the measurement and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(REAL_MODELS), help="SmolLM2, Gemma 3, or both")
    parser.add_argument("--ways", default=",".join(WAYS), help="ways to run llama.cpp, by default all")
    parser.add_argument("--more", type=int, default=20, help="further prompts of each task, up to 20")
    parser.add_argument("--texts", type=int, default=8, help="texts whose logits are compared, from 1 to 20")
    parser.add_argument("--length", type=int, default=64, help=f"most tokens of a text, up to {_LONGEST}")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an output")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--answers", type=Path, metavar="DIR", help="keep answers, and use those of an earlier run")
    add_report_options(parser)
    options = parser.parse_args()
    targets = options.targets.split(",")
    if unknown := [name for name in targets if name not in REAL_MODELS]:
        parser.error(f"--targets: {unknown[0]!r} is not one of {', '.join(REAL_MODELS)}")
    options.ways = options.ways.split(",")
    if unknown := [way for way in options.ways if way not in WAYS]:
        parser.error(f"--ways: {unknown[0]!r} is not one of {', '.join(WAYS)}")
    if not 1 <= options.length <= _LONGEST:
        parser.error(f"--length: expected 1 to {_LONGEST}, got {options.length}")
    torch.set_num_threads(options.threads)
    figures: dict[str, object] = {
        "prompts": len(PROMPTS),
        "prompts of all": len(PROMPTS) + options.more * len(MORE_TASKS),
        "tokens of an output": options.tokens,
    }
    try:
        for name in targets:
            figures |= measure(name, REAL_MODELS[name].file.fetch(), options)
    except (FetchError, PeerUnavailable, ValueError) as problem:
        sys.exit(f"not measured: {problem}")
    print_report("distance", figures, options)


if __name__ == "__main__":
    main()
