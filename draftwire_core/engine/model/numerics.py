"""The numerics of a target: everything besides the weights that determines the bits of its logits.

The bits decide between two nearly tied tokens, and they depend on the order in which the weights are multiplied and
summed. Two processes with equal numerics and equal weights give the same tokens, so one can continue a request that
the other has begun.

The hash covers a declaration and a trial. The declaration names the code that computes; it stands for numbers of rows
and lengths of context that are not tried. The trial runs this code on this processor: sums of each linear layer's
shape that consist of rounding errors alone, for 1 to 256 rows (see `row_range`), the frequencies of rotary
embeddings, and the model's own logits, of prompts and single rows, after short and long contexts. The processor's
model is not declared, since a processor that gives other bits shows in the trial. Where compiled code computes the
whole model (see `runs_compiled`), neither are its architecture and its vectors: that code gives the same bits on
every processor. Threads, KV slots and limits are in neither, since they change no bit.
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch
import transformers

from draftwire_core.engine.kernels import library as compiled_library
from draftwire_core.engine.kernels.build import source_hash
from draftwire_core.engine.kernels.library import BF16_PRODUCTS
from draftwire_core.engine.kernels.products.gemm import CompiledGemm
from draftwire_core.engine.model.attention.rotary_angles import RotaryAngles
from draftwire_core.engine.model.layers.fused_layer import FusedLayer
from draftwire_core.engine.model.layers.layer_fusion import runs_compiled
from draftwire_core.engine.model.linear.block_linear import BlockLinear
from draftwire_core.engine.model.linear.row_exact import PackedProduct, RowExactLinear, TurnedProduct
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.coupled_sampler import top_candidates
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams

_SEED = 20261123
_PROMPT = 24
_SHORT_CONTEXT, _LONG_CONTEXT = 40, 300
"""Lengths of the probe's contexts: within one block of keys of torch's attention, and beyond two."""
_CHAIN = 3
_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class Numerics:
    """The numerics of a loaded model, which determine the bits of its logits."""

    digest: str
    """SHA-256 (hex) of the declaration and the trial. Equal digests mean equal bits."""
    description: str
    """The declaration, for people, to explain why two digests differ. If two descriptions are equal and the digests are
    not, the processors or the libraries below torch compute differently."""


def model_numerics(model: PackedModel, ranks: int = 1) -> Numerics:
    """Determines the numerics of a loaded model by running a few passes. Frees the KV slots that it takes.

    ranks: number of processes that the layers are split among. Raises RankLostError if one of them is lost.
    """
    description = ", ".join(_declared(model, ranks))
    found = hashlib.sha256(description.encode())
    for line in sorted(_tried_sums(model)):
        found.update(line.encode())
    for each in model.model.modules():
        if isinstance(each, RotaryAngles):
            for frequencies in each.frequencies.values():
                found.update(_bytes(frequencies))
        elif isinstance(each, FusedLayer) and each.rates is not None:
            found.update(_bytes(each.rates))
    for logits in _probe(model):
        found.update(_bytes(logits))
        found.update(_bytes(_candidates(logits)))
    return Numerics(found.hexdigest(), description)


def _declared(model: PackedModel, ranks: int) -> list[str]:
    """The declaration: everything that may change bits for rows and contexts that the probe does not try."""
    found = [str(model.dtype).removeprefix("torch.")]
    compiled = model.device.type == "cpu" and runs_compiled(model.model)
    if model.device.type == "cuda":
        found += _declared_of_gpu(model)
    else:
        found += ["any cpu" if compiled else f"cpu {platform.machine()}", _declared_of_library()]
        products = {_name(type(layer.product)) for layer in _linear_layers(model)}
        blocks = {layer.product.weight_type for layer in model.model.modules() if isinstance(layer, BlockLinear)}
        found += [f"products by {name}" for name in sorted(products)]
        found += [f"products of {kind} blocks" for kind in sorted(blocks)]
        if model.cache.dtype != "auto":
            found.append(f"keys and values in {model.cache.dtype}")
    found.append(f"transformers {transformers.__version__}")
    if compiled:
        found.append(f"torch {torch.__version__.partition('+')[0]}")
    else:
        found.append(f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}")
        found.append(" ".join(platform.libc_ver()).strip() or "libc unknown")
    if ranks > 1:
        found.append(f"{ranks} ranks")
    return found


def _declared_of_library() -> str:
    """The sources of the compiled library: neither the compiler nor the kind of vectors changes a bit."""
    if compiled_library.library() is None:
        return "no compiled library"
    return f"compiled library {source_hash()[:12]}"


def _declared_of_gpu(model: PackedModel) -> list[str]:
    major, minor = torch.cuda.get_device_capability(model.device)
    found = [f"{torch.cuda.get_device_name(model.device)} sm_{major}{minor}", f"CUDA {torch.version.cuda}"]
    if model.steps is not None:
        found.append(f"layer kernels {model.layer_kernels}, triton {version('triton')}")
    return found


def _linear_layers(model: PackedModel) -> list[RowExactLinear]:
    return [layer for layer in model.model.modules() if isinstance(layer, RowExactLinear)]


def _name(product: type[torch.nn.Module]) -> str:
    if product is CompiledGemm:
        # The kernels without bfloat16 products give the same bits with any instructions.
        return compiled_library.kernels_in_use() if compiled_library.gemm_kind() in BF16_PRODUCTS else "fused sums"
    if product is PackedProduct:
        return "oneDNN"
    return "torch, turned" if product is TurnedProduct else "torch"


def _tried_sums(model: PackedModel) -> set[str]:
    """A line of text for each shape of linear layer, with its product and the digest of its sums."""
    return {
        f"{layer.out_features} {layer.in_features} {_name(type(layer.product))} {layer.rows.digest}\n"
        for layer in _linear_layers(model)
    }


def _probe(model: PackedModel) -> list[torch.Tensor]:
    """Logits, on the host, of a prompt, of one row after a long context, and of a chain next to a row.

    Contexts repeat the prompt's keys, so that no long context has to be computed.
    """
    most = model.context_length - _CHAIN
    long, short = (max(1, min(length, most)) for length in (_LONG_CONTEXT, _SHORT_CONTEXT))
    count = max(1, min(_PROMPT, most))
    tokens = np.random.default_rng(_SEED).integers(model.vocab_size, size=count + _CHAIN + 1).tolist()
    slots = model.pool.take(len(tokens))

    def lane(builder: BatchBuilder, context: int, first: int, rows: int) -> None:
        """Adds a lane of `rows` tokens, from index `first` on, after `context` positions."""
        added = [
            builder.add_row(tokens[index], context + index - first, int(slots[index]), wants_logits=True)
            for index in range(first, first + rows)
        ]
        builder.add_lane(np.resize(slots[:count], context), added)

    try:
        prompt, one, several = BatchBuilder(), BatchBuilder(), BatchBuilder()
        lane(prompt, 0, 0, count)
        lane(one, long, count, 1)
        lane(several, long, count, _CHAIN)
        lane(several, short, count + _CHAIN, 1)
        return [
            model.forward(builder.build(model.group_size, model.device)).cpu() for builder in (prompt, one, several)
        ]
    finally:
        model.pool.give_back(slots)


def _candidates(logits: torch.Tensor) -> torch.Tensor:
    """Scores of the best tokens after filters and noise, float32 [rows, candidates], to cover the sampler."""
    params = SamplingParams(temperature=0.8, top_k=64, top_p=0.95, seed=_SEED)
    batch = SamplingBatch.build([params] * len(logits), list(range(len(logits))))
    return top_candidates(logits, batch, min(_CANDIDATES, logits.shape[1])).scores


def _bytes(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(torch.uint8).numpy())
