"""Train the target and, in the same run, distil the draft on it: the recipe behind the bundled pair.

    python models/train.py --minutes 51 --distill-minutes 18 --out /tmp/pair

The schedule follows the clock, because the machine's speed is what limits the run: learning rates and sequence lengths
are functions of the share of the minutes that has passed. Data order and initial weights follow from the seed. Each
worker process computes with one thread on its own part of a step and the gradients are averaged; on a shared machine
this loses far less to waiting than one process with several threads. An interrupted run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from corpus import SEED
from llama import Llama, config_of
from stream import PIECE, STEP_TOKENS, Stream, prepare
from tokenizer import VOCABULARY

TARGET = {"hidden": 384, "layers": 6, "heads": 6, "kv_heads": 2, "mlp": 704}
DRAFT = {"hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 352}
# (up to this share of the time, sequence length in tokens): short sequences first, they are cheaper
LENGTHS = ((0.65, 256), (0.9, 512), (1.0, 1024))
GROWTH = 0.6  # the target trains with half its layers until this share of the time
DRAFT_PAUSE = (0.05, 0.5)  # the draft learns first and later, not from a target that has most of its way before it
DRAFT_RATE = 0.7  # factor of the learning rates for the draft
REPLAYS, KEPT_ANSWERS = 4, 40  # of the target's answers to past batches, when the draft learns alone
WARMUP_STEPS = 60
# Factor of the learning rates at a share of the time: high while there is most to learn, soon lower because steps are
# small, then linearly to zero.
RATES = ((0.0, 0.22, 0.25, 1.0), (1.0, 1.0, 0.6, 0.0))
MUON_RATE, ADAM_RATE, MUON_DECAY = 0.02, 3e-3, 0.04


class Optimizer:
    """Muon for a model's hidden matrices, shared out among the workers, and AdamW for its embedding and norms."""

    def __init__(self, model: Llama) -> None:
        hidden = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
        self.rest = [p for name, p in model.named_parameters() if p.dim() == 1 or "embed" in name]
        self.shares = [hidden[worker :: dist.get_world_size()] for worker in range(dist.get_world_size())]
        mine = self.shares[dist.get_rank()]
        self.muon = torch.optim.Muon(mine, momentum=0.95, nesterov=True, weight_decay=MUON_DECAY)
        self.adam = torch.optim.AdamW(self.rest, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, scale: float) -> None:
        """One update with the learning rates times `scale`; gradients must be averaged already."""
        nn.utils.clip_grad_norm_(self.rest, 1.0)
        for optimizer, rate in ((self.muon, MUON_RATE), (self.adam, ADAM_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for worker, share in enumerate(self.shares):
            _exchange([p.data for p in share], lambda flat, worker=worker: dist.broadcast(flat, worker))
            for parameter in share:
                parameter.grad = None

    def state(self) -> list[dict[str, object]]:
        return [self.muon.state_dict(), self.adam.state_dict()]

    def load(self, state: list[dict[str, object]]) -> None:
        self.muon.load_state_dict(state[0])
        self.adam.load_state_dict(state[1])


def _exchange(tensors: list[Tensor], collective: Callable[[Tensor], object]) -> None:
    """Run a collective on all `tensors` as one flat tensor, in place."""
    flat = torch.cat([t.flatten() for t in tensors])
    collective(flat)
    for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


def average_gradients(model: Llama, clock: float) -> float:
    """Average `model`'s gradients over the workers; returns worker 0's `clock`, so that all agree on the schedule."""
    time_share = torch.tensor([clock if dist.get_rank() == 0 else 0.0]) * dist.get_world_size()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    _exchange([*gradients, time_share], lambda flat: dist.all_reduce(flat.div_(dist.get_world_size())))
    return float(time_share)


def logits_of(model: Llama, ids: Tensor) -> Tensor:
    """bfloat16 logits [batch * time, vocabulary] for ids [batch, time + 1] without their last column."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(ids[:, :-1]).flatten(0, 1)


def learn(logits: Tensor, ids: Tensor) -> Tensor:
    """Backpropagate the cross-entropy of the next token; returns the model's probabilities [positions, vocabulary].

    The gradient on the logits, probabilities minus truth, is written down rather than left to autograd: over a whole
    vocabulary, cross-entropy in float32 costs a small model as much time as all its layers.
    """
    probabilities = torch.softmax(logits.detach(), dim=-1)
    gradient = probabilities / len(logits)
    gradient[torch.arange(len(logits)), ids[:, 1:].flatten()] -= 1 / len(logits)
    logits.backward(gradient)
    return probabilities


def imitate(logits: Tensor, wanted: Tensor) -> None:
    """Backpropagate the divergence from the probabilities `wanted` [positions, vocabulary]."""
    logits.backward(torch.softmax(logits.detach(), dim=-1).sub_(wanted).div_(len(logits)))


@torch.no_grad()
def quick_look(target: Llama, draft: Llama, ids: Tensor) -> tuple[float, float, float]:
    """On ids [batch, time + 1]: nats per token of target and draft, share of positions with the same argmax."""
    outputs = [logits_of(model, ids).float() for model in (target, draft)]
    truth = [float(F.cross_entropy(logits, ids[:, 1:].flatten())) for logits in outputs]
    return truth[0], truth[1], float((outputs[0].argmax(-1) == outputs[1].argmax(-1)).float().mean())


def rate(step: int, progress: float) -> float:
    """The learning rates' factor: warm-up in steps, then what RATES says at `progress` (0 to 1)."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * float(np.interp(progress, *RATES))


@dataclass
class Progress:
    """The state of the run. Phase 0 trains the target with the draft following it, phase 1 the draft alone."""

    phase: int = 0
    step: int = 0  # of the whole run
    phase_step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent in this phase


class Run:
    """One worker's part of the run."""

    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        self.rank, self.options, self.at = rank, options, Progress()
        training, held_out, self.bytes_per_token = prepare(options.out)
        self.stream = Stream(training)
        sample = np.load(held_out, mmap_mode="r")
        starts = np.linspace(0, len(sample) - PIECE - 1, 16, dtype=np.int64)
        self.sample = torch.from_numpy(np.stack([sample[i : i + 513] for i in starts]).astype(np.int64))
        generator = torch.Generator().manual_seed(options.seed)
        self.target = Llama(config_of(**TARGET, vocabulary=VOCABULARY), generator)
        self.draft = Llama(config_of(**DRAFT, vocabulary=VOCABULARY), generator)
        if rank == 0:
            torch.save(self.draft.state_dict(), options.out / "draft-untrained.pt")
        for model in (self.target, self.draft):
            model.silence_residual_writers()
        self.target.start_shallow()
        self.optimizers = {"target": Optimizer(self.target), "draft": Optimizer(self.draft)}
        self.answers: list[tuple[Tensor, Tensor]] = []  # past batches and the target's probabilities on them
        self.budgets = (60 * options.minutes, 60 * options.distill_minutes)
        self.checkpoint = options.out / f"state-{rank}.pt"
        if self.checkpoint.exists():
            self.load()
        elif options.distill_on:
            self.take_exported(options.distill_on)
        self.phase_began = time.monotonic() - self.at.seconds

    @property
    def share(self) -> float:
        """The share of the phase's minutes that has passed."""
        return self.at.seconds / self.budgets[self.at.phase]

    def take_exported(self, pair: Path) -> None:
        """Start where an exported pair stands, with the second phase: the target is finished, the draft goes on."""
        for name, model in (("target", self.target), ("draft", self.draft)):
            model.load_state_dict(load_file(pair / name / "model.safetensors"))
        self.target.active = list(range(TARGET["layers"]))
        self.at.phase = 1

    def load(self) -> None:
        saved = torch.load(self.checkpoint, weights_only=False)
        self.at = Progress(**saved["at"])
        self.target.load_state_dict(saved["target"])
        self.target.active = saved["active"]
        self.draft.load_state_dict(saved["draft"])
        for name, optimizer in self.optimizers.items():
            optimizer.load(saved[name + "_optimizer"])

    def save(self) -> None:
        state: dict[str, object] = {"at": asdict(self.at), "active": self.target.active}
        state |= {"target": self.target.state_dict(), "draft": self.draft.state_dict()}
        state |= {name + "_optimizer": optimizer.state() for name, optimizer in self.optimizers.items()}
        new = self.checkpoint.with_suffix(".new")
        torch.save(state, new)
        new.replace(self.checkpoint)

    def synchronise(self, model: Llama) -> None:
        """Average `model`'s gradients over the workers and set the phase's clock alike in all of them."""
        self.at.seconds = average_gradients(model, time.monotonic() - self.phase_began)

    def step(self) -> float:
        """Train on one new batch; returns the target's loss on it in nats per token."""
        alone = self.at.phase == 1
        with_draft = alone or not DRAFT_PAUSE[0] < self.share < DRAFT_PAUSE[1]
        if len(self.target.active) < TARGET["layers"] and self.share >= GROWTH:
            self.target.grow()
        length = next(length for until, length in LENGTHS if self.share < until or until == 1.0)
        if alone:
            length = LENGTHS[self.at.step % len(LENGTHS)][1]  # all in turn: the draft has to hold up in long contexts
        rows = self.stream.batch(self.at.tokens, length)
        size = len(rows) // self.options.workers
        ids = rows[self.rank * size : (self.rank + 1) * size]
        with torch.set_grad_enabled(not alone):
            logits = logits_of(self.target, ids)
        if alone:
            probabilities = torch.softmax(logits, dim=-1)
        else:
            probabilities = learn(logits, ids)
            self.synchronise(self.target)
            self.optimizers["target"].step(rate(self.at.phase_step, self.share))
        if with_draft:
            self.follow(ids, probabilities)
        if alone:
            # The target's answers cost more than learning from them: go back to some that were given before.
            chance = random.Random(self.at.step)
            for _ in range(REPLAYS if self.answers else 0):
                self.follow(*chance.choice(self.answers))
            if len(self.answers) == KEPT_ANSWERS:
                self.answers.pop(chance.randrange(KEPT_ANSWERS))
            self.answers.append((ids, probabilities))
        self.at.step, self.at.phase_step = self.at.step + 1, self.at.phase_step + 1
        self.at.tokens += STEP_TOKENS
        truth = probabilities.gather(1, ids[:, 1:].reshape(-1, 1)).float()
        return float(-truth.clamp_min(1e-9).log().mean())

    def follow(self, ids: Tensor, probabilities: Tensor) -> None:
        """Move the draft nearer to the target's `probabilities` [positions, vocabulary] on `ids`, in two steps: it
        gains more from their number than from their size."""
        for part, wanted in zip(ids.chunk(2), probabilities.chunk(2), strict=True):
            imitate(logits_of(self.draft, part), wanted)
            self.synchronise(self.draft)
            # The rate falls to zero in the second phase only, when the target stands still.
            left = 1.0 if self.at.phase == 0 else max(0.0, 1 - self.share)
            self.optimizers["draft"].step(DRAFT_RATE * left * min(1.0, (self.at.step + 1) / WARMUP_STEPS))

    def tell(self, truth: float) -> None:
        """Log where the run stands; `truth` is the target's loss on the last batch."""
        print(
            f"phase {self.at.phase} step {self.at.step} tokens {self.at.tokens / 1e6:.2f}M at "
            f"{self.at.seconds / 60:.1f} min ({100 * self.share:.1f} %), target {truth:.3f}",
            flush=True,
        )

    def look(self) -> None:
        target, draft, agreement = quick_look(self.target, self.draft, self.sample)
        bits = 1 / math.log(2) / self.bytes_per_token
        print(
            f"held-out sample: target {target * bits:.4f} bits per byte, draft {draft * bits:.4f}, "
            f"agreement {100 * agreement:.1f} %",
            flush=True,
        )

    def train(self) -> None:
        """Both phases, from wherever the checkpoint stands."""
        saved_at, looked_at, snapshot = time.monotonic(), time.monotonic(), -1
        while self.at.phase < len(self.budgets):
            reached = self.step()
            done = self.share >= 1
            if self.rank == 0:
                if self.at.step % 10 == 0:
                    self.tell(reached)
                if done or time.monotonic() - looked_at > 240:
                    looked_at = time.monotonic()
                    self.look()
                if int(self.share * 50) > snapshot:
                    snapshot = int(self.share * 50)
                    name = f"draft-{self.at.phase}-{2 * snapshot:02d}.pt"
                    torch.save(self.draft.state_dict(), self.options.out / name)
            if done:
                self.at.phase, self.at.phase_step, self.at.seconds = self.at.phase + 1, 0, 0.0
                self.phase_began, snapshot = time.monotonic(), -1
            due = torch.tensor([float(done or time.monotonic() - saved_at > 180)])
            dist.broadcast(due, 0)  # both workers' checkpoints are of the same step
            if due:
                saved_at = time.monotonic()
                self.save()


def work(rank: int, options: argparse.Namespace) -> None:
    """A worker process."""
    torch.set_num_threads(1)
    address = f"file://{(options.out / 'rendezvous').resolve()}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.workers)
    Run(rank, options).train()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=51, help="for the target, with the draft following it")
    parser.add_argument("--distill-minutes", type=float, default=18, help="for the draft alone, afterwards")
    parser.add_argument("--out", type=Path, required=True, help="checkpoints, tokens and tokenizer; kept outside git")
    parser.add_argument(
        "--distill-on", type=Path, help="an exported pair whose draft shall learn on, the target alone kept"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rendezvous").unlink(missing_ok=True)
    if options.distill_on and not (options.out / "tokenizer.json").exists():
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(options.distill_on / "target" / name, options.out / name)
    prepare(options.out)
    torch.multiprocessing.spawn(work, args=(options,), nprocs=options.workers)


if __name__ == "__main__":
    main()
