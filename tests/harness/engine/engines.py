"""Tiny models, packed passes laid out by hand, and a scripted drafter, shared by the engine's tests."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import transformers
from transformers import PreTrainedModel

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import Sequence as EngineSequence
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.engine.tree.token_tree import Node
from tests.harness.stand_ins.fixed_cost import FixedCost

VOCABULARY = 300
GREEDY = SamplingParams(temperature=0.0)

# Every model has three layers, and weights large enough for sharp attention and well-separated logits.
SIZES: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ALL_HEADS = {**SIZES, "num_key_value_heads": 4}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 176}

ARCHITECTURES: dict[str, dict[str, object]] = {
    "Llama": SIZES,
    "Qwen2": SIZES,
    "Qwen3": {**SIZES, "head_dim": 16},
    "Mistral": {**SIZES, "head_dim": 16, "sliding_window": 8},
    "Gemma2": {**SIZES, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "Gemma3": {**SIZES, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "Phi3": SIZES,
    "GPT2": {
        "vocab_size": VOCABULARY,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 2048,
        "initializer_range": 0.15,
        "eos_token_id": 2,
    },
    "GPTNeoX": _ALL_HEADS,
    "Olmo2": SIZES,
    "Mixtral": {**SIZES, **_EXPERTS},
    "Qwen3Moe": {**SIZES, **_EXPERTS, "head_dim": 16, "moe_intermediate_size": 48},
    "GptOss": {**SIZES, **_EXPERTS, "head_dim": 16, "sliding_window": 8},
    "StableLm": SIZES,
    "Cohere": SIZES,
    "Cohere2": {**SIZES, "sliding_window": 8},
    "Starcoder2": SIZES,
    "Granite": {**SIZES, "attention_multiplier": 0.25},
    "Olmo": SIZES,
    "Olmo3": {**SIZES, "sliding_window": 8},
    "Phi": _ALL_HEADS,
    "SmolLM3": SIZES,
    "Glm": {**SIZES, "head_dim": 16},
}
"""Maps transformers' class prefix to the arguments of its configuration."""


def tiny_model(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> PreTrainedModel:
    """Returns a random transformers model of an architecture, with random biases and norms."""
    model, state = _made(name, dtype, seed, pickle.dumps(changes))
    torch.set_rng_state(state)  # as if it were made now
    return copy.deepcopy(model)


@lru_cache(maxsize=16)
def _made(name: str, dtype: torch.dtype, seed: int, changes: bytes) -> tuple[PreTrainedModel, torch.Tensor]:
    """A model, which takes three times as long to make as to copy, and torch's random state after making it."""
    config_class = getattr(transformers, f"{name}TextConfig", None) or getattr(transformers, f"{name}Config")
    config = config_class(**{**ARCHITECTURES.get(name, SIZES), **pickle.loads(changes)})
    torch.manual_seed(seed)
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype).eval(), torch.get_rng_state()


def packed(model: PreTrainedModel, slots: int = 4000, kv_dtype: KvDtype = "auto") -> PackedModel:
    """Returns a packed copy; `model` itself is not changed."""
    return PackedModel(copy.deepcopy(model), slots, kv_dtype=kv_dtype)


def run_in_parts(model: PackedModel) -> None:
    """Makes the fused layers of a model run as separate operations from now on."""
    model.passes.compiled = None
    for layer in model.model.get_decoder().layers:
        layer.compiled = None


def random_tokens(count: int, seed: int = 0) -> list[int]:
    """Returns random token ids other than the special ones."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(count)]


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Returns transformers' own logits after each of `tokens`, without any cache: [tokens, vocabulary]."""
    return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the largest difference, in standard deviations of the expected logits."""
    return ((found.float() - expected.float()).abs().max() / expected.float().std()).item()


# ---- walks: packed passes over known texts, every row's logits by its prefix -----------------------------------------

Rows = dict[tuple[int, ...], torch.Tensor]


def walk(
    model: PackedModel,
    texts: Sequence[Sequence[int]],
    prompts: Sequence[int],
    *,
    seed: int = 0,
    trees: bool = True,
    chunk: int = 11,
    together: bool = True,
) -> Rows:
    """Runs texts through the model as the engine would if the target drew their tokens.

    The first `prompts[i]` tokens of text i are its prompt, computed in chunks of up to `chunk` tokens. Then steps
    verify random trees with siblings, partly right and partly wrong, or one token at a time if `trees` is off. Returns
    the logits of every row, keyed by the tokens up to and including the row's own.
    """
    rng = random.Random(seed)
    rows: Rows = {}
    runs = [_Run(index, text, prompt, rng) for index, (text, prompt) in enumerate(zip(texts, prompts, strict=True))]
    for batch in [runs] if together else [[run] for run in runs]:
        while active := [run for run in batch if not run.done]:
            builder = BatchBuilder()
            for run in active:
                run.lay_out(builder, model, trees, chunk)
            logits = model.forward(builder.build(model.group_size, model.device))
            first = 0
            for run in active:
                first += run.settle(logits[first:], model, rows)
        for run in batch:
            model.pool.give_back(run.sequence.give_up())
    return rows


class _Run:
    """One text of a walk."""

    def __init__(self, index: int, text: Sequence[int], prompt: int, rng: random.Random):
        self.text = list(text)
        self.sequence = EngineSequence(SequenceSpec(index, self.text[:prompt], len(text) + 1, GREEDY))
        self.done = False
        self._rng = rng

    def lay_out(self, builder: BatchBuilder, model: PackedModel, trees: bool, chunk: int) -> None:
        sequence = self.sequence
        count = min(sequence.pending, self._rng.randint(1, chunk))
        nodes = self._grow() if trees and count == sequence.pending else []
        self._job = VerificationJob(sequence, count, nodes)
        self._job.lay_out(builder, model.pool)

    def _grow(self) -> list[Node]:
        """Adds random nodes to the tree; returns those to verify, parents before children."""
        rng, sequence = self._rng, self.sequence
        parent = sequence.tree.root
        for token in self.text[len(sequence.tokens) : len(sequence.tokens) + rng.randint(0, 5)]:
            branches = [(rng.randrange(3, VOCABULARY), False) for _ in range(rng.randint(0, 2))] + [(token, True)]
            rng.shuffle(branches)
            for branch, right in branches:
                node, _ = sequence.tree.add(parent, branch)
                if right:
                    following = node
                elif rng.random() < 0.5:
                    sequence.tree.add(node, rng.randrange(3, VOCABULARY))
            parent = following
        verified: set[int] = {id(sequence.tree.root)}
        nodes = []
        for node in sequence.tree.nodes():
            if id(node.parent) in verified and rng.random() < 0.9 and node.position < len(self.text):
                verified.add(id(node))
                nodes.append(node)
        return nodes

    def settle(self, logits: torch.Tensor, model: PackedModel, rows: Rows) -> int:
        """Records the rows' logits, commits the text's own path, and returns the number of rows."""
        sequence, job = self.sequence, self._job
        if not job.sampled_positions:
            job.commit([])
            return 0
        prefix = tuple(sequence.tokens)
        rows[prefix] = logits[0]
        for node, row in zip(job.nodes, logits[1:], strict=False):
            path = node.path_from(sequence.tree.root)
            rows[prefix + tuple(step.token for step in path)] = row
        # As if the target had drawn the text: one token after the root and one after each node on its path.
        drawn = [self.text[p] if p < len(self.text) else -1 for p in job.sampled_positions]
        accepted, tokens = job.walk(AskedRows(drawn, None, logits, logits, None))
        job.commit(accepted)
        job.rollback(accepted, model.pool)
        self.done = tokens[-1] == -1
        if not self.done:
            sequence.commit(tokens)
        return 1 + len(job.nodes)


def check_against_plain(model: PreTrainedModel, rows: Rows) -> float:
    """Returns the largest `error` of the rows against transformers' own forward passes of each path."""
    expected = plain_rows(model, rows)
    return max((error(row, expected[prefix]) for prefix, row in rows.items()), default=0.0)


def plain_rows(model: PreTrainedModel, prefixes: Iterable[tuple[int, ...]]) -> Rows:
    """Returns transformers' own logits after each of the prefixes, without any cache."""
    covered: dict[tuple[int, ...], tuple[int, int]] = {}
    paths: list[tuple[int, ...]] = []
    for prefix in sorted(prefixes, key=len, reverse=True):
        if prefix not in covered:
            covered.update({prefix[: end + 1]: (len(paths), end) for end in range(len(prefix))})
            paths.append(prefix)
    # Pad shorter paths with an arbitrary token: attention is causal, so no earlier position sees it.
    longest = len(paths[0])
    with torch.inference_mode():
        batch = torch.tensor([[*path, *[0] * (longest - len(path))] for path in paths])
        logits = model(input_ids=batch, use_cache=False).logits
    return {prefix: logits[place] for prefix, place in covered.items()}


# ---- the engine ------------------------------------------------------------------------------------------------------


class ScriptedDrafter:
    """Proposes a given continuation of each sequence, with wrong siblings and some wrong tokens."""

    def __init__(self, outputs: dict[int, list[int]], *, accuracy: float = 0.85, siblings: bool = True, seed: int = 0):
        """outputs: the tokens each sequence will generate. accuracy: probability that a right token is drafted."""
        self._outputs = outputs
        self._accuracy = accuracy
        self._siblings = siblings
        self._rng = random.Random(seed)
        self._next_id: dict[int, int] = {}

    def open(self, sequence_id: int) -> None:
        """Opens a sequence, a new one or one that is attached again."""
        self._next_id[sequence_id] = 1

    def propose(self, spec: SequenceSpec, committed: int) -> Proposal | None:
        """Proposes nodes below `committed` tokens; returns None at the end of the known output."""
        text = [*spec.tokens, *self._outputs[spec.sequence_id]]
        first = self._next_id[spec.sequence_id]
        tokens: list[int] = []
        parents: list[int] = []
        parent = 0
        for right in text[committed : committed + self._rng.randint(1, 5)]:
            wrong = self._rng.choice([token for token in range(3, 40) if token != right])
            good = self._rng.random() < self._accuracy
            if self._siblings or not good:
                tokens.append(wrong)
                parents.append(parent)
            if good:
                tokens.append(right)
                parents.append(parent)
            parent = first + len(tokens) - 1
        if not tokens:
            return None
        self._next_id[spec.sequence_id] = first + len(tokens)
        return Proposal(committed, first, tokens, parents)


@dataclass
class Generated:
    """The output of an engine run."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, Finish] = field(default_factory=dict)
    accepted: int = 0
    drafted: int = 0
    steps: int = 0


def engine_of(model: PackedModel, **limits: int) -> VerificationEngine:
    """Returns an engine for which drafting always pays: its steps have a high and constant cost."""
    limits = {"max_sequences": 8, "prefix_cache": True, **limits}
    return VerificationEngine(model, FixedCost([1, 64], [1.0, 1.0]), EngineLimits(**limits))


def generate(
    engine: VerificationEngine,
    specs: Sequence[SequenceSpec],
    drafter: ScriptedDrafter | None = None,
    *,
    together: bool = True,
) -> Generated:
    """Runs sequences to their end, all at once or one after another, drafting whenever a tree is empty."""
    result = Generated(tokens={spec.sequence_id: [] for spec in specs})
    for group in [list(specs)] if together else [[spec] for spec in specs]:
        open_specs = {spec.sequence_id: spec for spec in group}
        length = {spec.sequence_id: len(spec.tokens) for spec in group}
        empty = set(open_specs)
        for spec in group:
            engine.add(spec)
            if drafter is not None:
                drafter.open(spec.sequence_id)
                engine.attach(spec.sequence_id, "scripted")
        while open_specs:
            for sequence_id in sorted(empty) if drafter is not None else ():
                proposal = drafter.propose(open_specs[sequence_id], length[sequence_id])
                if proposal is not None:
                    engine.propose(sequence_id, "scripted", proposal)
            empty.clear()
            step = engine.step()
            result.steps += 1
            for outcome in step.outcomes:
                result.tokens[outcome.sequence_id] += outcome.tokens
                result.accepted += outcome.accepted
                result.drafted += sum(outcome.drafted.values())
                length[outcome.sequence_id] = outcome.committed_length
                empty.add(outcome.sequence_id)
                if outcome.finish is not None:
                    result.finishes[outcome.sequence_id] = outcome.finish
                    empty.discard(outcome.sequence_id)
                    del open_specs[outcome.sequence_id]
    return result


def specs_of(
    prompts: Sequence[Sequence[int]], count: int, sampling: SamplingParams | Sequence[SamplingParams] = GREEDY
) -> list[SequenceSpec]:
    """Returns one sequence per prompt, with `count` tokens each."""
    params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
    return [SequenceSpec(index, prompt, len(prompt) + count, params[index]) for index, prompt in enumerate(prompts)]
