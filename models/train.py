"""Train the target and, in the same run, distil the draft on it: the recipe behind the bundled pair.

    python models/train.py --minutes 65 --distill-minutes 12 --out /tmp/pair

The schedule follows the clock, because the machine's speed is what limits the run: learning rates and sequence lengths
are functions of the share of the minutes that has passed. Data order and initial weights follow from the seed. Each
worker process computes with one thread on its own part of a step and the gradients are averaged; on a shared machine
this loses far less to waiting than one process with several threads. An interrupted run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

import tokenizer as tokenizer_recipe
from corpus import SEED, documents
from llama import Llama, config_of

TARGET = {"hidden": 384, "layers": 6, "heads": 6, "kv_heads": 2, "mlp": 704}
DRAFT = {"hidden": 128, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 352}
STEP_TOKENS = 8192  # of all workers together
PIECE, GROUP = 1024, 32  # the training stream is cut into pieces of this many tokens, shuffled and taken in groups
# (up to this share of the time, sequence length in tokens): short sequences first, they are cheaper
LENGTHS = ((0.65, 256), (0.9, 512), (1.0, 1024))
GROWTH = 0.6  # the target trains with half its layers until this share of the time
DRAFT_PAUSE = (0.05, 0.5)  # the draft learns first and later, not from a target that has most of its way before it
WARMUP_STEPS = 60
# Factor of the learning rates at a share of the time: high while there is most to learn, soon lower because steps are
# small, then linearly to zero.
RATES = ((0.0, 0.22, 0.25, 1.0), (1.0, 1.0, 0.6, 0.0))
MUON_RATE, ADAM_RATE, MUON_DECAY = 0.02, 3e-3, 0.04


def prepare(out: Path) -> tuple[Path, Path, float]:
    """Tokenizer and token files below `out`, made on the first call: (training, held-out, bytes per held-out token)."""
    files = out / "training.npy", out / "held_out.npy"
    if not (out / "tokenizer.json").exists():
        tokenizer_recipe.save(tokenizer_recipe.train(), out)
    if not all(file.exists() for file in files):
        vocabulary = Tokenizer.from_file(str(out / "tokenizer.json"))
        end = vocabulary.token_to_id(tokenizer_recipe.END_OF_TEXT)
        for file, held_out in zip(files, (False, True), strict=True):
            chosen = [d for d in documents() if d.held_out == held_out]
            order = np.random.default_rng(SEED).permutation(len(chosen))
            encoded = vocabulary.encode_batch_fast([chosen[i].text for i in order])
            ids = [np.array([*encoding.ids, end], dtype=np.uint16) for encoding in encoded]
            np.save(file, np.concatenate(ids))
    size = sum(len(d.text.encode()) for d in documents() if d.held_out)
    return *files, size / len(np.load(files[1], mmap_mode="r"))


class Stream:
    """Training batches in a fixed shuffled order. Every piece is used once before any is used again."""

    def __init__(self, file: Path) -> None:
        tokens = np.load(file, mmap_mode="r")
        self.pieces = tokens[: (len(tokens) - 1) // PIECE * PIECE + 1]
        self.count = len(self.pieces) // PIECE // GROUP * GROUP

    def batch(self, tokens_before: int, length: int) -> Tensor:
        """The step after `tokens_before` tokens: ids [STEP_TOKENS / length, length + 1]."""
        group, step = divmod(tokens_before // STEP_TOKENS, GROUP * PIECE // STEP_TOKENS)
        epoch, group = divmod(group, self.count // GROUP)
        order = np.random.default_rng((SEED, epoch)).permutation(len(self.pieces) // PIECE)
        starts = order[group * GROUP : (group + 1) * GROUP] * PIECE
        starts = (np.arange(0, PIECE, length)[:, None] + starts[None, :]).flatten()
        rows = STEP_TOKENS // length
        chosen = starts[step * rows : (step + 1) * rows]
        return torch.from_numpy(np.stack([self.pieces[s : s + length + 1] for s in chosen]).astype(np.int64))


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


def _exchange(tensors: list[Tensor], collective: object) -> None:
    """Run a collective on all `tensors` as one flat tensor, in place."""
    flat = torch.cat([t.flatten() for t in tensors])
    collective(flat)  # type: ignore[operator]
    for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


def average_gradients(models: Iterable[Llama], clock: float) -> float:
    """Average the gradients over the workers; returns worker 0's `clock`, so that all agree on the schedule."""
    time_share = torch.tensor([clock if dist.get_rank() == 0 else 0.0]) * dist.get_world_size()
    gradients = [p.grad for model in models for p in model.parameters() if p.grad is not None]
    _exchange([*gradients, time_share], lambda flat: dist.all_reduce(flat.div_(dist.get_world_size())))
    return float(time_share)


def losses(target: Llama, draft: Llama | None, ids: Tensor, target_trains: bool) -> tuple[Tensor, Tensor]:
    """Nats per token on ids [batch, time + 1]: the target's cross-entropy, the draft's against the target's output."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.set_grad_enabled(target_trains):
            logits = target(ids[:, :-1]).flatten(0, 1).float()
            truth = F.cross_entropy(logits, ids[:, 1:].flatten())
        if draft is None:
            return truth, torch.zeros(())
        student = F.log_softmax(draft(ids[:, :-1]).flatten(0, 1).float(), dim=-1)
        imitation = -(F.softmax(logits.detach(), dim=-1) * student).sum(-1).mean()
    return truth, imitation


@torch.no_grad()
def quick_look(target: Llama, draft: Llama, ids: Tensor) -> tuple[float, float, float]:
    """On ids [batch, time + 1]: nats per token of target and draft, share of positions with the same argmax."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = [model(ids[:, :-1]).flatten(0, 1).float() for model in (target, draft)]
    truth = [float(F.cross_entropy(logits, ids[:, 1:].flatten())) for logits in outputs]
    return truth[0], truth[1], float((outputs[0].argmax(-1) == outputs[1].argmax(-1)).float().mean())


def rate(step: int, progress: float) -> float:
    """The learning rates' factor: warm-up in steps, then what RATES says at `progress` (0 to 1)."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * float(np.interp(progress, *RATES))


def work(rank: int, options: argparse.Namespace) -> None:
    """One worker's whole run."""
    torch.set_num_threads(1)
    address = f"file://{(options.out / 'rendezvous').resolve()}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.workers)
    training, held_out, bytes_per_token = prepare(options.out)
    stream = Stream(training)
    sample = np.load(held_out, mmap_mode="r")
    sample_at = np.linspace(0, len(sample) - PIECE - 1, 16, dtype=np.int64)
    look = torch.from_numpy(np.stack([sample[i : i + 513] for i in sample_at]).astype(np.int64))
    generator = torch.Generator().manual_seed(options.seed)
    vocabulary = tokenizer_recipe.VOCABULARY
    target = Llama(config_of(**TARGET, vocabulary=vocabulary), generator)
    draft = Llama(config_of(**DRAFT, vocabulary=vocabulary), generator)
    if rank == 0:
        torch.save(draft.state_dict(), options.out / "draft-untrained.pt")
    for model in (target, draft):
        model.silence_residual_writers()
    target.start_shallow()
    optimizers = {"target": Optimizer(target), "draft": Optimizer(draft)}
    own = options.out / f"state-{rank}.pt"
    at = {"step": 0, "phase_step": 0, "seconds": 0.0, "phase": 0, "tokens": 0}
    if own.exists():
        saved = torch.load(own, weights_only=False)
        at = saved["at"]
        target.load_state_dict(saved["target"])
        draft.load_state_dict(saved["draft"])
        target.active = saved["active"]
        for name, optimizer in optimizers.items():
            optimizer.load(saved[name + "_optimizer"])
    budgets = [60 * options.minutes, 60 * options.distill_minutes]
    progress = at["seconds"] / budgets[at["phase"]]
    resumed_at, last_save, last_look, last_snapshot = time.monotonic() - at["seconds"], time.monotonic(), 0.0, -1
    while at["phase"] < 2:
        with_draft = at["phase"] == 1 or not DRAFT_PAUSE[0] < progress < DRAFT_PAUSE[1]
        trained = [target] * (at["phase"] == 0) + [draft] * with_draft
        if len(target.active) < TARGET["layers"] and progress >= GROWTH:
            target.grow()
        length = next(length for until, length in LENGTHS if progress < until or until == 1.0)
        if at["phase"] == 1:
            length = LENGTHS[1][1]
        rows = stream.batch(at["tokens"], length)
        share = len(rows) // options.workers
        mine = rows[rank * share : (rank + 1) * share]
        # Alone, the draft makes two steps of each batch: it is past the noise that a larger batch would even out.
        for part in mine.chunk(1 + at["phase"]):
            truth, imitation = losses(target, draft if with_draft else None, part, at["phase"] == 0)
            (truth + imitation if at["phase"] == 0 else imitation).backward()
            seconds = average_gradients(trained, time.monotonic() - resumed_at)
            progress = seconds / budgets[at["phase"]]
            scale = rate(at["phase_step"], progress)
            if at["phase"] == 0:
                optimizers["target"].step(scale)
            if with_draft:  # its rate falls in the second phase only, when the target stands still
                warm = min(1.0, (at["step"] + 1) / WARMUP_STEPS)
                optimizers["draft"].step(max(scale, 0.5 * warm) if at["phase"] == 0 else 0.5 * max(0.0, 1 - progress))
        at["step"], at["phase_step"], at["tokens"] = at["step"] + 1, at["phase_step"] + 1, at["tokens"] + STEP_TOKENS
        at["seconds"] = seconds
        if rank == 0 and at["step"] % 10 == 0:
            print(
                f"phase {at['phase']} step {at['step']} tokens {at['tokens'] / 1e6:.2f}M at {seconds / 60:.1f} min "
                f"({100 * progress:.1f} %), length {length}, rate {scale:.3f}, target {float(truth):.3f}, "
                f"draft {float(imitation):.3f}", flush=True,
            )  # fmt: skip
        done = progress >= 1
        if rank == 0 and (done or seconds - last_look > 240):
            last_look = seconds
            target_loss, draft_loss, agreement = quick_look(target, draft, look)
            bits = 1 / math.log(2) / bytes_per_token
            print(f"held-out sample: target {target_loss * bits:.4f} bits per byte, draft {draft_loss * bits:.4f}, "
                  f"agreement {100 * agreement:.1f} %", flush=True)  # fmt: skip
        if rank == 0 and at["phase"] == 0 and int(progress * 50) > last_snapshot:
            last_snapshot = int(progress * 50)
            torch.save(draft.state_dict(), options.out / f"draft-{2 * last_snapshot:02d}.pt")
        if done:
            at.update(phase=at["phase"] + 1, phase_step=0, seconds=0.0)
            progress, resumed_at, last_look = 0.0, time.monotonic(), 0.0
        saves = torch.tensor([float(done or time.monotonic() - last_save > 180)])
        dist.broadcast(saves, 0)
        if saves:
            last_save = time.monotonic()
            state = {name + "_optimizer": optimizer.state() for name, optimizer in optimizers.items()}
            state |= {"at": at, "active": target.active, "target": target.state_dict(), "draft": draft.state_dict()}
            torch.save(state, own.with_suffix(".new"))
            own.with_suffix(".new").replace(own)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=65, help="for the target, with the draft following it")
    parser.add_argument("--distill-minutes", type=float, default=12, help="for the draft alone, afterwards")
    parser.add_argument("--out", type=Path, required=True, help="checkpoints, tokens and tokenizer; kept outside git")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "rendezvous").unlink(missing_ok=True)
    prepare(options.out)
    torch.multiprocessing.spawn(work, args=(options,), nprocs=options.workers)


if __name__ == "__main__":
    main()
