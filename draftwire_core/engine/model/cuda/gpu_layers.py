"""What a model computes with on GPUs: its layers are replaced by those of Triton kernels. It needs Triton."""

from __future__ import annotations

from transformers import PreTrainedModel

from draftwire_core.engine.model.cuda.kernel_layer import run_on_kernels
from draftwire_core.engine.model.cuda.placing import narrow, place_stored
from draftwire_core.engine.model.model_facts import has_blocks
from draftwire_core.engine.model.weight_names import Weights


def use_gpu_layers(model: PreTrainedModel, weights: Weights) -> bool:
    """Moves packed weights of `model` to the GPU and replaces its decoder layers, in place. weights: what linear layers
    keep.

    Returns whether kernels compute all of the model; otherwise they only attend. Raises ModelLoadError.
    """
    if has_blocks(model):
        place_stored(model)
    if weights != "checkpoint":
        narrow(model, weights)
    return run_on_kernels(model)
