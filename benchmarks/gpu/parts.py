"""The parts of the GPU benchmark over models: checks, step costs, speed, flips."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from functools import cached_property

import torch
from transformers import PreTrainedModel

from benchmarks.gpu.checks import flip_figures
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.models import described, grown, packed, shaped
from benchmarks.gpu.steps import Generator, batch_seconds, milliseconds, prompt_seconds, several_passes, step_seconds
from benchmarks.harness.held_out import held_out_prompts
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SEQUENCES = (4, 16, 64)
PAIR = "pair"
"""The shape of the bundled pair, inflated."""
_LAYERS = {"target": 32, "draft": 16}


class ModelParts:
    """The models of a run, made when a part first needs them, and the parts that use them."""

    def __init__(self, options: argparse.Namespace, device: torch.device):
        self._options = options
        self._device = device
        self._models: dict[str, PackedModel] = {}
        self.names = ("target", "draft") if options.shape == PAIR else ("target",)
        """Names of the models that there are."""

    def check(self, name: str) -> Iterator[Figures]:
        """Compares a model's passes with the library's forwards, and captured passes with others."""
        model = self._model(name)
        yield {name: described(model), f"{name}: layer kernels": model.layer_kernels}
        report = run_self_test(model)
        yield {
            f"{name}: error against the library's forward": f"{report.error:.3g} of {report.tolerance:.3g} spreads",
            f"{name}: same bits in any batch": report.bit_exact,
        }
        context = min(*self._options.context, model.pool.capacity - 16)
        found = []
        for kind in ("no graphs", "graphs"):
            found.append(several_passes(self._model(name, kind), context))
        yield {f"{name}: captured steps have the same bits": all(map(torch.equal, *found))}
        yield {f"{name}: graphs": model.graphs}

    def cost(self, name: str) -> Iterator[Figures]:
        """Measures c(n) with graphs and without, by context, passes of one row of each of several sequences, and the
        reading of a prompt. What a service does comes first, since time may run out."""
        for kind in ("graphs", "no graphs"):
            model = self._model(name, kind)
            for number, context in enumerate(self._options.context):
                yield from cost_figures(name, model, context, self._options.runs, kind)
                if kind == "graphs" and not number:
                    yield from prompt_figures(name, model, self._options.prompt_tokens, self._options.runs)

    def flips(self) -> Iterator[Figures]:
        """Counts rows that differ between batches."""
        yield from flip_figures("fast", self._model("target"), self._texts)

    def speed(self, kind: str, bytes_per_second: float) -> Iterator[Figures]:
        """Measures plain decoding against the roof, and with the draft. kind: "graphs" or "no graphs"."""
        target, draft = self._model("target", kind), self._model("draft", kind)
        cost = measure_step_cost(target)
        size = target.parameters * target.model.dtype.itemsize
        for temperature in (0.0, 1.0):
            plainly, drafting = Generator(target, cost), Generator(target, cost, draft)
            for generator in (plainly, drafting):
                generator.run(self._prompts[:1], self._options.tokens, temperature)
            plain = plainly.run(self._prompts, self._options.tokens, temperature)
            passes = statistics.median(step_seconds(target, self._options.context[0], (1,), self._options.runs)[1])
            name = f"{kind}, T = {temperature:g}"
            yield {
                f"{name}: plain tokens/s": round(plain.tokens_per_second, 1),
                f"{name}: plain, share of the roof": round(size * plain.tokens_per_second / bytes_per_second, 3),
                f"{name}: plain, ms a step beside a pass": round(1e3 * (plain.step_seconds - passes), 3),
            }
            drafted = drafting.run(self._prompts, self._options.tokens, temperature)
            same = sum(
                ours == theirs
                for mine, other in zip(plain.tokens, drafted.tokens, strict=True)
                for ours, theirs in zip(mine, other, strict=True)
            )
            yield {
                f"{name}: drafted tokens/s": round(drafted.tokens_per_second, 1),
                f"{name}: speed-up": round(drafted.tokens_per_second / plain.tokens_per_second, 3),
                f"{name}: accepted of drafted": f"{drafted.accepted} of {drafted.drafted}",
                f"{name}: tokens a step": round(drafted.decoded / drafted.steps, 2),
                f"{name}: drafted tokens that are the plain ones": f"{same} of {sum(map(len, plain.tokens))}",
            }

    @cached_property
    def _prompts(self) -> list[list[int]]:
        tokenizer = Tokenizer.load(str(MODELS / "target"))
        return [tokenizer.encode(text) for text in held_out_prompts(self._options.prompts)]

    @cached_property
    def _texts(self) -> list[list[int]]:
        """The prompts with what the target continues them with."""
        generator = Generator(self._model("target"), StepCost([1], [1.0]))
        outputs = generator.run(self._prompts, self._options.tokens, 0.0).tokens
        return [[*prompt, *output] for prompt, output in zip(self._prompts, outputs, strict=True)]

    def _model(self, name: str, kind: str = "no graphs") -> PackedModel:
        if name not in self._models:
            self._models[name] = packed(self._make(name), self._options.slots, name, self._options.layers)
        model = self._models[name]
        if model.steps is not None:
            model.steps.replays = kind == "graphs"
            if model.steps.replays and not model.captured:
                model.capture_graphs()
        return model

    def _make(self, name: str) -> PreTrainedModel:
        if self._options.shape != PAIR:
            return shaped(self._options.shape, self._device)
        parameters = getattr(self._options, f"{name}_parameters") if self._device.type == "cuda" else None
        layers = _LAYERS[name] if self._device.type == "cuda" else None
        return grown(MODELS / name, parameters, layers, self._device)


def prompt_figures(name: str, model: PackedModel, tokens: int, runs: int) -> Iterator[Figures]:
    """Measures how fast a prompt is read, in chunks as a verifier reads it."""
    tokens = min(tokens, model.pool.capacity, model.context_length)
    times = prompt_seconds(model, tokens, runs)
    yield {
        f"{name}: prompt of {tokens} tokens, ms": milliseconds(times),
        f"{name}: prompt tokens/s": round(tokens / statistics.median(times), 1),
    }


def cost_figures(name: str, model: PackedModel, context: int, runs: int, kind: str) -> Iterator[Figures]:
    """Measures c(n), the cost of n rows relative to one row, and passes of several sequences."""
    after = f"{name}, {kind}, context {context}"
    room = min(model.pool.capacity, model.context_length)
    rows = [count for count in ROWS if context + count <= room]
    if not rows:
        yield {f"{after}: left out": f"{model.pool.capacity} KV slots (--slots), {model.context_length} positions"}
        return
    medians: dict[int, float] = {}
    for count in rows:
        times = step_seconds(model, context, (count,), runs)[count]
        medians[count] = statistics.median(times)
        yield {f"{after}: ms of {count} rows": milliseconds(times)}
    yield {f"{after}: c(n) / c(1)": ", ".join(f"{medians[count] / medians[rows[0]]:.2f}" for count in rows)}
    for sequences in SEQUENCES:
        if sequences * (context + 1) <= model.pool.capacity:
            yield {
                f"{after}: ms of {sequences} sequences": milliseconds(batch_seconds(model, context, sequences, runs))
            }
