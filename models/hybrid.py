"""Train the hybrid pair: a target with gated delta nets, and a draft for it, both distilled within the minutes given.

    python models/hybrid.py --minutes 20 --draft-minutes 5 --out /tmp/hybrid

The target is a Qwen3.5: three layers with a gated delta net, one with attention. It starts from the bundled target's
embedding, feed-forward layers and attention; the delta nets are new. It learns the bundled target's probabilities. Then
the bundled draft, a plain Llama, learns those of the hybrid. Minutes are processor time of one thread, so other work on
the machine makes the run longer, and not worse.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from corpus import SEED
from export import write_model
from learner import Learner
from llama import Llama, config_of
from stream import PIECE, STEP_TOKENS, Stream, prepare
from tokenizer import VOCABULARY
from train import DRAFT, KEPT_ANSWERS, LENGTHS, REPLAYS, TARGET, imitate, logits_of, quick_look

HERE = Path(__file__).parent
LAYERS = (0, 2, 4, 5)  # of the bundled target: the layer that each layer of the hybrid starts from
DELTA = {"heads": 3, "dim": 128}  # of a delta net: heads of keys and of values, and their dimension
DECAYS = (0.25, 1.0, 4.0)  # of the heads at first, times STEP: they forget within 80, 20 and 5 tokens
STEP = 0.05
RATE = 0.5  # factor of the learning rates: neither model starts from nothing
WARMUP_STEPS = 60
PARTS = 2  # updates for each batch of the stream: more is gained from their number than from their size


class Hybrid(Qwen3_5ForCausalLM):
    """Token ids [batch, time] to logits [batch, time, vocabulary]."""

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(input_ids=ids, use_cache=False).logits


def hybrid_config(vocabulary: int = VOCABULARY) -> Qwen3_5TextConfig:
    """The configuration of the hybrid target."""
    return Qwen3_5TextConfig(
        vocab_size=vocabulary, hidden_size=TARGET["hidden"], intermediate_size=TARGET["mlp"],
        num_hidden_layers=len(LAYERS), num_attention_heads=TARGET["heads"], num_key_value_heads=TARGET["kv_heads"],
        head_dim=TARGET["hidden"] // TARGET["heads"],
        linear_num_key_heads=DELTA["heads"], linear_num_value_heads=DELTA["heads"],
        linear_key_head_dim=DELTA["dim"], linear_value_head_dim=DELTA["dim"],
        max_position_embeddings=2048, rms_norm_eps=1e-6, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, architectures=["Qwen3_5ForCausalLM"], dtype="bfloat16",
    )  # fmt: skip


@torch.no_grad()
def transplanted(weights: dict[str, Tensor], seed: int = SEED) -> Hybrid:
    """A hybrid with what it can take from a Llama of the same width, by the names of transformers."""
    torch.manual_seed(seed)
    model = Hybrid(hybrid_config(len(weights["model.embed_tokens.weight"]))).float()
    model.model.embed_tokens.weight.copy_(weights["model.embed_tokens.weight"])
    model.model.norm.weight.copy_(weights["model.norm.weight"].float() - 1)  # it counts from one
    for layer, number in zip(model.model.layers, LAYERS, strict=True):
        old = {name: weights[f"model.layers.{number}.{name}.weight"].float() for name in _MODULES}
        for name in ("input_layernorm", "post_attention_layernorm"):
            getattr(layer, name).weight.copy_(old[name] - 1)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).weight.copy_(old[f"mlp.{name}"])
        if hasattr(layer, "self_attn"):
            _take_attention(layer.self_attn, old)
        else:
            _begin(layer.linear_attn)
    return model


_MODULES = (
    "input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
)  # fmt: skip


def _take_attention(attention: Any, old: dict[str, Tensor]) -> None:
    queries = old["self_attn.q_proj"].unflatten(0, (-1, attention.head_dim))
    # Gates of zero let half of each result pass.
    attention.q_proj.weight.copy_(torch.cat([queries, torch.zeros_like(queries)], 1).flatten(0, 1))
    attention.o_proj.weight.copy_(2 * old["self_attn.o_proj"])
    attention.k_proj.weight.copy_(old["self_attn.k_proj"])
    attention.v_proj.weight.copy_(old["self_attn.v_proj"])


def _begin(net: Any) -> None:
    """Fresh weights of a delta net that writes nothing yet, and whose convolution takes each token alone."""
    for projection in (net.in_proj_qkv, net.in_proj_z, net.in_proj_a, net.in_proj_b):
        nn.init.normal_(projection.weight, std=projection.in_features**-0.5)
    nn.init.zeros_(net.out_proj.weight)
    nn.init.zeros_(net.conv1d.weight)
    net.conv1d.weight[..., -1] = 1
    net.A_log.copy_(torch.tensor(DECAYS).log())
    net.dt_bias.fill_(float(np.log(np.expm1(STEP))))


def bundled(name: str, shape: dict[str, int]) -> Llama:
    """One of the bundled Llamas."""
    model = Llama(config_of(**shape, vocabulary=VOCABULARY), torch.Generator())
    model.load_state_dict(load_file(HERE / name / "model.safetensors"))
    return model


def distil(teacher: nn.Module, student: nn.Module, out: Path, minutes: float, replays: int, lengths: bool) -> None:
    """Teaches a model another's probabilities on the training text for so many minutes of processor time.

    replays: of past batches, after each new one. lengths: whether sequences grow in the course of it; all lengths take
    turns otherwise.
    """
    training, held_out, _ = prepare(out)
    stream, learner, chance = Stream(training), Learner(student), random.Random(SEED)
    sample = np.load(held_out, mmap_mode="r")
    starts = np.linspace(0, len(sample) - PIECE - 1, 16, dtype=np.int64)
    probe = torch.from_numpy(np.stack([sample[i : i + 513] for i in starts]).astype(np.int64))
    answers: list[tuple[Tensor, Tensor]] = []
    began, batch, step, share = time.process_time(), 0, 0, 0.0
    while share < 1:
        length = (
            next(length for until, length in LENGTHS if share < until) if lengths else LENGTHS[batch % len(LENGTHS)][1]
        )
        ids = stream.batch(batch * STEP_TOKENS, length)
        with torch.no_grad():
            answer = (ids, torch.softmax(logits_of(teacher, ids), dim=-1))
        for rows, wanted in (answer, *(chance.choice(answers) for _ in range(replays if answers else 0))):
            for part, probabilities in zip(rows.chunk(PARTS), wanted.chunk(PARTS), strict=True):
                imitate(logits_of(student, part), probabilities)
                share = min(1.0, (time.process_time() - began) / (60 * minutes))
                learner.update(RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - share))
                step += 1
        if replays:
            if len(answers) == KEPT_ANSWERS:
                answers.pop(chance.randrange(KEPT_ANSWERS))
            answers.append(answer)
        batch += 1
        if batch % 10 == 0 or share >= 1:
            truth, own, same = quick_look(teacher, student, probe)
            print(
                f"{batch * STEP_TOKENS / 1e6:.2f}M tokens, {step} updates, {100 * share:.1f} %: held-out sample: "
                f"teacher {truth:.3f} nats a token, student {own:.3f}, agreement {100 * same:.1f} %",
                flush=True,
            )


def exported(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a checkpoint: tied ones once."""
    return {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="for the target, of one processor core")
    parser.add_argument("--draft-minutes", type=float, default=5, help="for the draft, afterwards")
    parser.add_argument("--out", type=Path, required=True, help="tokens of the training text; kept outside git")
    parser.add_argument("--into", type=Path, default=HERE, help="where hybrid-target and hybrid-draft are written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(HERE / "target" / name, options.out / name)
    target = transplanted(load_file(HERE / "target" / "model.safetensors"))
    distil(bundled("target", TARGET), target, options.out, options.minutes, replays=0, lengths=True)
    write_model(options.into / "hybrid-target", target.config, exported(target), options.out)
    draft = bundled("draft", DRAFT)
    distil(target, draft, options.out, options.draft_minutes, replays=REPLAYS, lengths=False)
    write_model(options.into / "hybrid-draft", draft.config, exported(draft), options.out)


if __name__ == "__main__":
    main()
