"""The self-test at load: refuses a model that packed passes cannot serve correctly, by trying it, not by its name.

A short script of passes (chunked prompts, sequences of different lengths in one batch, a tree with siblings, rollback,
continuation) runs on the real weights. Its logits are compared with transformers' own forwards of each path. Where
libraries choose the order of sums by shape, as on GPUs, batch invariance (a row has the same bits in any batch) is
tried at the sizes of serving as well (batch_invariance_test.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from draftwire_core.engine.checkpoint.load_errors import LoadAbandonedError, stop_if_abandoned
from draftwire_core.engine.engine.sequence import Sequence, SequenceSpec
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.kv.kv_slots import KvDtypeError, SlotPool
from draftwire_core.engine.loading.altered_model import rounded_name, shortened
from draftwire_core.engine.loading.attention_probe import PROBE_NAME, indexer_of, likely_cause, noted_calls
from draftwire_core.engine.loading.batch_invariance_test import is_batch_invariant, slots_for
from draftwire_core.engine.model.attention.packed_attention import ATTENTION_NAME
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from draftwire_core.engine.model.recurrent.recurrent_layers import recurrent_layers
from draftwire_core.engine.sampling.sampling_params import SamplingParams

__all__ = ["SelfTestReport", "UnsupportedModelError", "check_reproducible", "run_self_test"]

_SEED = 20240811
_SLOTS = 160
_ONLY_ATTENTION = "layers of an unknown kind, with a state of their own, cannot be rolled back"
_UNSUPPORTED_ATTENTION = ("compressed",)
"""Kinds of attention that the script is too short to notice: it has fewer tokens than are compressed to one key."""
_PROMPT = 20
_ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Largest error due to rounding by dtype, in units of the logits' standard deviation; `_COARSE` for 16-bit types."""
_COARSE = 0.04
_COARSE_EXPERTS = 0.5
"""Largest error of 16-bit types in models where rounding can route a token to another expert, layer after layer."""
_NOISE_FACTOR = 4.0
"""Additional tolerance, in units of the difference between two of transformers' own attention functions."""
_FAR_ERROR = {torch.float32: 1e-4, torch.float64: 1e-8}
_FAR_COARSE = 0.01


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """Measurements of the self-test on a model that passed it."""

    bit_exact: bool
    """Whether a row had the same bits alone, in a batch, in a prompt chunk and as a node of a tree; on GPUs also after
    contexts of up to 5000 tokens and in passes of up to 1024 rows. If not, outputs may differ between batches where two
    tokens are nearly tied."""
    error: float
    """Distance from transformers' own forwards, in units of the logits' standard deviation."""
    tolerance: float
    """Largest distance at which the model is accepted."""
    seconds: float
    slot_bytes: int
    """Bytes of a KV slot in all layers."""


def run_self_test(model: PackedModel) -> SelfTestReport:
    """Runs the self-test. Raises UnsupportedModelError; leaves the model, its pool and its cache as they were."""
    started = time.perf_counter()
    stop_if_abandoned()
    with _workbench(model, _SLOTS), shortened(model):
        try:
            _probe_layers(model)
            model.model.set_attn_implementation(ATTENTION_NAME)
            script = _Script(model)
            found = script.run()
            alone = [_chain_logits(model, path) for path in script.paths]
            _check_batch_invariance(model, found, alone)
            error, tolerance = _compare(model, script, found)
            far_exact = _try_far_neighbour(model, script.paths[-1])
            slot_bytes = model.cache.bytes // (model.cache.capacity + 1)
        except (UnsupportedModelError, LoadAbandonedError):
            raise
        except KvDtypeError as problem:
            raise _refusal(model, str(problem)) from problem
        except Exception as problem:
            # Model code may raise anything when it is run in a way that it was not written for.
            raise _refusal(model, f"its code fails in a packed pass: {type(problem).__name__}: {problem}") from problem
    same = far_exact and all(torch.equal(row.logits, alone[row.path][row.index]) for row in found)
    if same and (model.steps is not None or model.device.type != "cpu"):
        with _workbench(model, slots_for(model)):
            same = is_batch_invariant(model)
    return SelfTestReport(same, error, tolerance, time.perf_counter() - started, slot_bytes)


def check_reproducible(model: PackedModel, report: SelfTestReport) -> None:
    """Raises UnsupportedModelError for a model on a GPU whose rows are not batch-invariant there, by its self-test."""
    if model.device.type != "cpu" and not report.bit_exact:
        raise UnsupportedModelError(
            f"model {model.name}: its rows are not batch-invariant on {model.device}, as --reproducible requires: the "
            f"self-test found other bits of a row in other batches (layer kernels: {model.layer_kernels})"
        )


def _refusal(model: PackedModel, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"model {model.name}: {model.architecture} cannot be served: {reason}")


@contextmanager
def _workbench(model: PackedModel, slots: int) -> Iterator[None]:
    """Gives the model a small pool, with gaps between its free slots, and a small cache within the context."""
    pool = SlotPool(2 * slots)
    pool.give_back(np.random.default_rng(_SEED).permutation(pool.take(2 * slots))[:slots])
    with model.other_slots(pool):
        try:
            yield
        finally:
            model.model.set_attn_implementation(ATTENTION_NAME)


def _probe_layers(model: PackedModel) -> None:
    """Checks that every decoder layer calls our attention once, with its own index and its configured window, or has a
    recurrent state that can be rolled back, or none."""
    indexer = indexer_of(model.model)
    if indexer is not None:
        raise _refusal(model, f"its attention reads keys that an indexer selects ({indexer}), which packed passes lack")
    model.model.set_attn_implementation(PROBE_NAME)
    layers = int(model.config.num_hidden_layers)
    with noted_calls() as calls:
        try:
            _chain_logits(model, [1, 0, 1])
        except (KvDtypeError, LoadAbandonedError):
            raise
        except Exception as problem:
            raise _refusal(
                model,
                f"a packed pass fails after {len(calls)} of {layers} layers have attended ({type(problem).__name__}: "
                f"{problem}); {_ONLY_ATTENTION}",
            ) from problem
    recurrent = recurrent_layers(model.model)
    if not calls and not recurrent:
        raise _refusal(model, f"no layer attends through transformers' attention interface; {_ONLY_ATTENTION}")
    called = [-1 if call.layer is None else call.layer for call in calls]
    # Layers that attend to images, which passes of text skip.
    skipped = set(getattr(model.config, "cross_attention_layers", None) or ()) & set(range(layers)) - set(called)
    missing = sorted(set(range(layers)) - set(called) - skipped - recurrent - _stateless_layers(model))
    if missing:
        raise _refusal(
            model,
            f"{len(missing)} of its {layers} layers (first: {missing[0]}) keep no keys and values of their own; "
            f"{_ONLY_ATTENTION}",
        )
    if len(called) != len(set(called)):
        raise _refusal(model, f"its {layers} layers attend {len(called)} times, not once each")
    if any(call.biased for call in calls):
        raise _refusal(model, "its attention has a bias of its own, which packed attention does not receive")
    kinds = getattr(model.config, "layer_types", None) or []
    for kind in _UNSUPPORTED_ATTENTION:
        if any(f"{kind}_" in layer for layer in kinds):
            raise _refusal(model, f"some of its layers use {kind} attention, which packed attention does not support")
    window = getattr(model.config, "sliding_window", None)
    for layer, call in zip(called, calls, strict=True):
        sliding = layer < len(kinds) and kinds[layer] == "sliding_attention"
        if sliding and window is not None and call.sliding_window != window:
            raise _refusal(
                model, f"layer {layer} hides keys beyond {window} positions without passing this to its attention"
            )


def _stateless_layers(model: PackedModel) -> set[int]:
    """Layers of hybrid models that only have a feed-forward block."""
    kinds = getattr(model.config, "layers_block_type", None) or []
    return {index for index, kind in enumerate(kinds) if kind in ("mlp", "moe")}


@dataclass(frozen=True, slots=True)
class _Row:
    """Logits of one row of the script, after token `index` of path number `path`."""

    scene: str
    path: int
    index: int
    logits: torch.Tensor


class _Script:
    """A script that runs two sequences through chunks, a tree, a rollback and single steps.

    paths: token lists; 0 is the final first sequence, 1 and 2 are branches of its tree that are rolled back, 3 is the
    second sequence.
    """

    def __init__(self, model: PackedModel):
        self._model = model
        rng = np.random.default_rng(_SEED)

        def draw(count: int, but: int = -1) -> list[int]:
            tokens: list[int] = []
            while len(tokens) < count:
                token = int(rng.integers(model.vocab_size))
                if token != but:
                    tokens.append(token)
            return tokens

        prompt = draw(min(_PROMPT, max(2, model.context_length - 8)))
        first, second, bonus, right, last = draw(5)
        self._length = len(prompt)
        self._wrong = draw(1, but=right)[0]
        path = [*prompt, first, second, bonus, right, last]
        self.paths = [
            path,
            [*prompt, first, *draw(1, but=second)],
            [*prompt, *draw(1, but=first)],
            draw(self._length // 2 + 3),
        ]
        self._rows: list[_Row] = []

    def run(self) -> list[_Row]:
        """Runs all passes; returns every row whose logits were requested."""
        path, other = self.paths[0], self.paths[3]
        n, m = self._length, len(other) - 3
        one = _sequence(0, path[:n], len(path) + 1)
        two = _sequence(1, other[:m], len(other) + 1)
        self._pass("prompt", [_part(one, n // 2 + 3)])
        tree, root = one.tree, one.tree.root
        # Siblings come before the right branch, so that its rows would see them under a plain causal mask.
        wrong_first, _ = tree.add(root, self.paths[2][n])
        first, _ = tree.add(root, path[n])
        wrong_second, _ = tree.add(first, self.paths[1][n + 1])
        second, _ = tree.add(first, path[n + 1])
        verify = VerificationJob(one, one.pending, [wrong_first, first, wrong_second, second])
        self._pass("tree", [(verify, [(0, n - 1), (2, n), (0, n), (1, n + 1), (0, n + 1)]), _whole(two, 3)])
        verify.commit([first, second])
        verify.rollback([first, second], self._model.pool)
        one.commit(path[n : n + 3])
        two.commit(other[m : m + 1])
        wrong, _ = one.tree.add(one.tree.root, self._wrong)
        right, _ = one.tree.add(one.tree.root, path[n + 3])
        verify = VerificationJob(one, 1, [wrong, right])
        self._pass("after a rollback", [_whole(two, 3), (verify, [(0, n + 2), None, (0, n + 3)])])
        verify.commit([right])
        verify.rollback([right], self._model.pool)
        one.commit(path[n + 3 :])
        two.commit(other[m + 1 : m + 2])
        self._pass("after a rollback", [_whole(one, 0)])
        self._pass("after a rollback", [_whole(two, 3)])
        return self._rows

    def _pass(self, scene: str, parts: list[tuple[VerificationJob, list[tuple[int, int] | None]]]) -> None:
        """Runs jobs in one batch and records their logits; jobs without nodes are committed."""
        builder = BatchBuilder()
        for job, _ in parts:
            job.lay_out(builder, self._model.pool)
        logits = self._model.forward(builder.build(self._model.group_size, self._model.device))
        names = [name for _, wanted in parts for name in wanted]
        for name, row in zip(names, logits, strict=True):
            if name is not None:
                self._rows.append(_Row(scene, *name, row))
        for job, _ in parts:
            if not job.nodes:
                job.commit([])


def _sequence(sequence_id: int, tokens: list[int], max_length: int) -> Sequence:
    return Sequence(SequenceSpec(sequence_id, tokens, max_length, SamplingParams(temperature=0.0)))


def _part(sequence: Sequence, count: int) -> tuple[VerificationJob, list[tuple[int, int] | None]]:
    """A job of the first `count` pending tokens, without logits."""
    return VerificationJob(sequence, count, []), []


def _whole(sequence: Sequence, path: int) -> tuple[VerificationJob, list[tuple[int, int] | None]]:
    """A job of all pending tokens, with the logits after the last."""
    return VerificationJob(sequence, sequence.pending, []), [(path, len(sequence.tokens) - 1)]


def _chain(model: PackedModel, builder: BatchBuilder, tokens: list[int]) -> np.ndarray:
    """Adds a sequence without computed tokens, with logits for all rows; returns its slots."""
    slots = model.pool.take(len(tokens))
    rows = [builder.add_row(token, index, int(slots[index]), True) for index, token in enumerate(tokens)]
    builder.add_lane(np.empty(0, dtype=np.int64), rows)
    return slots


def _chain_logits(model: PackedModel, tokens: list[int]) -> torch.Tensor:
    """Packed logits after each token of a sequence that runs alone, [tokens, vocabulary]."""
    stop_if_abandoned()
    builder = BatchBuilder()
    slots = _chain(model, builder, tokens)
    logits = model.forward(builder.build(model.group_size, model.device))
    model.pool.give_back(slots)
    return logits


def _compare(model: PackedModel, script: _Script, found: list[_Row]) -> tuple[float, float]:
    """Compares the script's rows with transformers' plain forwards; returns the worst scene's error and the tolerance.

    A scene's error is that of its second worst row: a wrong mask or slot affects several rows, while rounding that
    routes a token to another expert may affect only one.
    """
    plain = _plain_logits(model, script.paths, "eager")
    again = _plain_logits(model, script.paths, "sdpa")
    model.model.set_attn_implementation(ATTENTION_NAME)
    noise = 0.0
    if plain is None or again is None:
        plain = plain if plain is not None else again
        if plain is None:
            raise _refusal(model, "it has no attention of its own to compare with")
    else:
        noise = _second_worst([_error(again[row.path, row.index], plain[row.path, row.index]) for row in found])
    coarse = _COARSE_EXPERTS if _has_experts(model) else _COARSE
    tolerance = _ROUNDING.get(model.dtype, coarse) + _NOISE_FACTOR * noise
    errors = [(row.scene, _error(row.logits, plain[row.path, row.index])) for row in found]
    return _worst_scene(model, errors, tolerance, "a plain forward pass"), tolerance


def _worst_scene(model: PackedModel, errors: list[tuple[str, float]], tolerance: float, reference: str) -> float:
    """Returns the error of the worst scene, which is that of its second worst row. Raises for one above the tolerance.

    errors: of rows, with their scenes. reference: what the rows were compared with.
    """
    scenes: dict[str, list[float]] = {}
    for scene, error in errors:
        scenes.setdefault(scene, []).append(error)
    worst = 0.0
    for scene, found in scenes.items():
        error = _second_worst(found)
        if not error <= tolerance:  # also true of NaN
            raise _refusal(
                model,
                f"logits of the scene {scene!r} are {error:.3g} standard deviations away from those of {reference} "
                f"(rounding explains up to {tolerance:.3g}); {likely_cause(model.model)}",
            )
        worst = max(worst, error)
    return worst


def _check_batch_invariance(model: PackedModel, found: list[_Row], alone: list[torch.Tensor]) -> None:
    """Checks that rows in a batch give the logits that they give alone, but for rounding.

    A comparison with transformers allows for other sums, too, which is much in 16-bit types, in which rounding routes
    tokens to other experts.
    """
    errors = [(row.scene, _error(row.logits, alone[row.path][row.index])) for row in found]
    tolerance = _ROUNDING.get(model.dtype, _COARSE_EXPERTS if _has_experts(model) else _COARSE)
    _worst_scene(model, errors, tolerance, "the same tokens alone")


def _has_experts(model: PackedModel) -> bool:
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any((getattr(model.config, name, None) or 0) > 1 for name in names)


def _second_worst(errors: list[float]) -> float:
    return sorted(math.inf if math.isnan(error) else error for error in errors)[-2]


def _plain_logits(model: PackedModel, paths: list[list[int]], attention: str) -> torch.Tensor | None:
    """Transformers' logits after each token, [paths, longest path, vocabulary]; None if it lacks that attention."""
    try:
        model.model.set_attn_implementation(attention)
    except (ValueError, ImportError):
        return None
    if model.cache.dtype != "auto":
        model.model.set_attn_implementation(rounded_name(attention, model.cache.dtype))
    longest = max(map(len, paths))
    # Shorter paths are padded with any token, which no earlier token of a causal model sees.
    padded = torch.tensor([path + [0] * (longest - len(path)) for path in paths], device=model.device)
    with torch.inference_mode():
        logits: torch.Tensor = model.model(input_ids=padded, use_cache=False).logits
    return logits


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over the standard deviation of the expected logits."""
    found, expected = found.float(), expected.float()
    return float((found - expected).square().mean().sqrt() / expected.std().clamp(min=1e-9))


def _try_far_neighbour(model: PackedModel, tokens: list[int]) -> bool:
    """Checks that a neighbour at the end of the context does not change a row; returns whether all bits are equal."""
    last = model.context_length - 1

    def logits_beside(position: int) -> torch.Tensor:
        builder = BatchBuilder()
        slots = np.concatenate([_chain(model, builder, tokens), _chain(model, builder, tokens[:1])])
        batch: PackedBatch = builder.build(model.group_size, model.device)
        batch.numbers[1, len(tokens)] = position
        logits = model.forward(batch)
        model.pool.give_back(slots)
        return logits[: len(tokens)]

    near, far = logits_beside(0), logits_beside(last)
    if torch.equal(near, far):
        return True
    error = _error(far, near)
    if not error <= _FAR_ERROR.get(model.dtype, _FAR_COARSE):
        raise _refusal(
            model,
            f"a neighbour at position {last} moves a row's logits by {error:.3g} standard deviations; its rotary "
            "embedding depends on the longest sequence of a batch (as rope type 'dynamic' does)",
        )
    return False
