"""Chooses the backend of a model by its device, its weights and what the kernels support."""

from __future__ import annotations

import logging

from transformers import PreTrainedModel

from draftwire_core.engine.model.backends.backend import Backend, Needs
from draftwire_core.engine.model.backends.cpu_backend import CpuBackend
from draftwire_core.engine.model.backends.cuda_backend import CudaBackend
from draftwire_core.engine.model.backends.sharded_backend import ShardedBackend
from draftwire_core.engine.model.cuda.kernel_support import missing
from draftwire_core.engine.model.model_facts import dtype_name
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.reading.read_model import UnsupportedModelError

PLAIN = "GPU kernels not available for this model; passes are plain, slower, and not batch-invariant to the bit"

log = logging.getLogger(__name__)


def choose_backend(
    model: PreTrainedModel, needs: Needs, *, row_exact: bool, ranks: RankGroup | None, kernels: bool | None
) -> Backend:
    """Returns the backend of a model. Raises UnsupportedModelError if none can keep its weights, keys and values.

    row_exact, ranks, kernels: as PackedModel takes them. A warning says so if a GPU has no kernels for the model.
    """
    device = model.device
    on_cpu = device.type == "cpu"
    _check(model, needs)
    lacking = missing(device, needs.dtype, model.config.get_text_config(decoder=True), needs.context_length)
    if kernels and lacking is not None:
        raise UnsupportedModelError(f"model {needs.name}: {lacking}")
    if kernels is None:
        kernels = not on_cpu and lacking is None
        if not (kernels or on_cpu) and (ranks is None or ranks.rank == 0):
            log.warning(PLAIN, extra={"model": needs.name, "reason": lacking})
    _check_keys(model, needs, lacking, kernels=kernels)
    tapped = (row_exact or needs.reads_features) and ranks is None
    own: CpuBackend | CudaBackend
    if kernels or not on_cpu:
        own = CudaBackend(needs, device, lacking, kernels=kernels, tapped=tapped)
    else:
        own = CpuBackend(needs, lacking or "no", row_exact=row_exact, split=ranks is not None)
    return own if ranks is None else ShardedBackend(own, needs, device, ranks)


def _check(model: PreTrainedModel, needs: Needs) -> None:
    device, dtype = model.device.type, dtype_name(needs.dtype)
    place = "cuda" if needs.weights == "int4" else device
    if needs.weights != "checkpoint" and (dtype != "bfloat16" or device != place):
        needed = "bfloat16 on a GPU" if place == "cuda" else "bfloat16 on a CPU"
        raise UnsupportedModelError(
            f"model {needs.name}: weights {needs.weights} need {needed}, not {dtype} on {device}"
        )


def _check_keys(model: PreTrainedModel, needs: Needs, lacking: str | None, *, kernels: bool) -> None:
    device = model.device.type
    if needs.kv_dtype == "auto" or (device == "cpu" and not kernels) or (needs.kv_dtype == "q8_0" and kernels):
        return
    needed = f"kernels: {lacking or 'they are switched off'}" if needs.kv_dtype == "q8_0" else f"a CPU, not {device}"
    raise UnsupportedModelError(f"model {needs.name}: keys and values in {needs.kv_dtype} (--kv-dtype) need {needed}")
