"""The output head of a model whose products are compiled."""

from __future__ import annotations

from transformers import PreTrainedModel

from speculative_engine.kernels.compiled_product import CompiledProduct


def keep_logits_whole(model: PreTrainedModel) -> None:
    """Makes the logits of `model` float32, as they are summed, if compiled code computes them.

    In bfloat16 logits between 8 and 16 are 1/16 apart. That makes ties among the best tokens, and it was the largest
    error of a pass with weights of 8 bits.
    """
    for module in model.get_output_embeddings().modules():
        if isinstance(module, CompiledProduct):
            module.wide = True
