"""Compares drafting with another tokenizer with drafting with the target's: acceptance, without a clock.

    python -m benchmarks.speed.other_tokenizer [--prompts 40] [--tokens 96] [--nodes 8] [--temperatures 0,0.8] [--json]

The target's own outputs for held-out prompts are committed to a drafter as by a verifier with unlimited time: it drafts
until its tree has --nodes nodes, the tree is walked along the output, and the walked tokens and the next one are
committed. So the figures depend on no clock. Both drafters are bundled and have the same shape: `draft` has the
target's tokenizer, `draft-other` its own (models/README.md describes how their training differs).

Acceptance length is the number of tokens committed per tree. `first guesses right` is the share of positions at which
the drafter's best guess after the committed tokens is the target's token. Draft steps are forward passes per tree.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.report import add_report_options, print_report
from draftwire_core.engine.drafters.drafter import Drafter, DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree
from tests.harness.checkout import MODELS

_SLOTS = 16384


def outputs(prompts: Sequence[list[int]], samplings: Sequence[SamplingParams], tokens: int) -> list[list[int]]:
    """Returns the target's outputs, prompt by prompt."""
    model = PackedModel.load(str(MODELS / "target"), slots=_SLOTS, dtype="auto")
    engine = VerificationEngine(
        model, measure_step_cost(model), EngineLimits(max_sequences=16, max_step_rows=128, max_tree_nodes=1)
    )
    pairs = enumerate(zip(prompts, samplings, strict=True))
    specs = [SequenceSpec(index, prompt, len(prompt) + tokens, sampling) for index, (prompt, sampling) in pairs]
    return generate_all(engine, specs)


class Tally:
    """Counts over one drafter's trees."""

    def __init__(self) -> None:
        self.trees = self.committed = self.drafted = self.accepted = self.first_right = self.steps = 0

    def follow(
        self, drafter: Drafter, prompt: list[int], output: list[int], sampling: SamplingParams, nodes: int
    ) -> None:
        """Drafts for one output from its first token to its last."""
        tokens = [*prompt, output[0]]
        end = len(prompt) + len(output)
        tree = TokenTree(len(tokens), tokens[-1])
        reader = ProposalReader("draft", nodes, 1 << 30)
        drafter.open(0, DraftSpec(tokens, sampling, nodes, end))
        while len(tokens) < end:
            while drafter.busy:
                self.steps += 1
                for proposal in drafter.grow().proposals.values():
                    self.drafted += reader.merge(proposal, tree, tokens).added
            rest = output[len(tokens) - len(prompt) :]
            walked = tree.walk(rest)
            first = next(iter(tree.root.children.values()), None)
            self.first_right += first is not None and first.token == rest[0]
            verdict = rest[: len(walked) + 1]
            self.trees += 1
            self.committed += len(verdict)
            self.accepted += len(walked)
            tree.commit(verdict)
            tokens += verdict
            drafter.commit(0, len(tokens), verdict)
        drafter.close(0)

    def figures(self) -> str:
        """Returns the figures in words."""
        return (
            f"acceptance length {self.committed / self.trees:.2f}, acceptance rate {self.accepted / self.drafted:.3f}, "
            f"first guesses right {self.first_right / self.trees:.3f}, draft steps {self.steps / self.trees:.1f}"
        )


@torch.inference_mode()
def main() -> None:
    """Runs the comparison and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=40, help="number of held-out prompts")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each output")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of a tree")
    parser.add_argument("--temperatures", type=lambda text: [float(each) for each in text.split(",")], default=[0, 0.8])
    parser.add_argument("--threads", type=int, default=1)
    add_report_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    prompts = [tokenizer.encode(text) for text in held_out_prompts(options.prompts)]
    models = {
        name: PackedModel.load(str(MODELS / name), slots=_SLOTS, dtype="auto", row_exact=False)
        for name in ("draft", "draft-other")
    }
    other = Tokenizer.load(str(MODELS / "draft-other"))
    token_map = TokenMap(tokenizer.vocabulary(), other.vocabulary())
    figures: dict[str, object] = {
        "target's tokens with one draft token of the same text": sum(len(each) == 1 for each in token_map.pieces),
        "trees": f"{options.nodes} nodes, {options.prompts} prompts, {options.tokens} tokens each",
    }
    for temperature in options.temperatures:
        samplings = [SamplingParams(temperature=temperature, seed=index) for index in range(len(prompts))]
        said = outputs(prompts, samplings, options.tokens)
        for name, model in models.items():
            drafter = DraftModelDrafter(model) if name == "draft" else TranslatingDrafter(model, token_map)
            tally = Tally()
            for prompt, output, sampling in zip(prompts, said, samplings, strict=True):
                tally.follow(drafter, prompt, output, sampling, options.nodes)
            figures[f"T = {temperature:g}, {name}"] = tally.figures()
            assert model.pool.used == 0, "every KV slot is given back"
    print_report("other_tokenizer", figures, options)


if __name__ == "__main__":
    main()
