"""A rank's part of a model that transformers has split among ranks, as plain layers.

Transformers keeps parts as distributed tensors, whose dispatch costs time at every layer. Here the parts become plain
layers, which are then packed, fused and made row-exact like those of a whole model, with a collective wherever the plan
has one. Layers that the plan splits in other ways (experts) are left to transformers' code.

Whether a model can be split is checked by its configuration alone, before any weights are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.integrations.tensor_parallel import replace_layer_number_by_wildcard

from draftwire_core.engine.model.model_facts import values_of_layers
from draftwire_core.engine.model.ranks.rank_group import RankGroup

_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
"""Fields of a configuration that must divide equally among ranks."""


class SplitError(ValueError):
    """Raised if a model cannot be split as requested; the message names the setting and the configuration's field."""


def check_split(config: PretrainedConfig, ranks: int) -> None:
    """Raises SplitError if a model of this configuration cannot be split among `ranks` ranks."""
    text = config.get_text_config(decoder=True)
    if not getattr(text, "base_model_tp_plan", None):
        raise SplitError(
            f"--tensor-parallel: models of type {text.model_type} cannot be split (base_model_tp_plan of their "
            "configuration is empty)"
        )
    if getattr(config, "quantization_config", None):
        raise SplitError("--tensor-parallel: quantized checkpoints (quantization_config) cannot be split")
    for field in _DIVIDED:
        for value in values_of_layers(text, field):
            if isinstance(value, int) and value % ranks:
                raise SplitError(
                    f"--tensor-parallel: {field} of the model's configuration is {value}, which is not divisible by "
                    f"{ranks} ranks"
                )


def check_devices(device: str, ranks: int) -> None:
    """Raises SplitError if there are fewer GPUs than ranks; ranks on a CPU share it."""
    if device == "cuda" and torch.cuda.device_count() < ranks:
        seen = torch.cuda.device_count()
        raise SplitError(f"--tensor-parallel: {ranks} ranks need a GPU each (--device cuda), but torch sees {seen}")


class SummedLinear(nn.Module):
    """A linear layer whose inputs are split among ranks; the ranks' partial outputs are summed."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, ranks: RankGroup, *, whole: int | None = None):
        """weight [outputs, inputs of this rank]; bias [outputs], the same at all ranks. whole: number of inputs of all
        ranks, if `forward` gets all of them and selects its own."""
        super().__init__()
        self.linear = _linear(weight, None)
        self.register_buffer("bias", bias, persistent=False)
        self.ranks = ranks
        self.own: slice | None = None
        """This rank's inputs among those of all ranks, if it gets these."""
        if whole is not None:
            first = ranks.rank * -(-whole // ranks.size)
            self.own = slice(first, first + weight.shape[1])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., inputs of this rank, or of all] -> [..., outputs]"""
        own = inputs if self.own is None else inputs[..., self.own].contiguous()
        out = self.ranks.summed(self.linear(own))
        return out if self.bias is None else out + self.bias


class GatheredLinear(nn.Module):
    """A linear layer whose outputs are split among ranks, and gathered at every rank."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, outputs: int, ranks: RankGroup):
        """weight [outputs of this rank, inputs]; outputs: of all ranks."""
        super().__init__()
        self._outputs = outputs
        missing = -(-outputs // ranks.size) - len(weight)  # the last ranks may have fewer
        if missing:
            weight = nn.functional.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else nn.functional.pad(bias, (0, missing))
        self.linear = _linear(weight, bias)
        self._ranks = ranks

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., inputs] -> [..., outputs]"""
        out = self._ranks.joined(self.linear(inputs))
        return out if out.shape[-1] == self._outputs else out[..., : self._outputs].contiguous()


class SplitEmbedding(nn.Module):
    """An embedding whose tokens are split among ranks: a token's rank contributes its vector, the others zeros."""

    def __init__(self, weight: torch.Tensor, tokens: int, ranks: RankGroup):
        """weight [tokens of this rank, width]; tokens: of all ranks."""
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._first = ranks.rank * -(-tokens // ranks.size)
        self._ranks = ranks

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids int64 [...] -> [..., width]"""
        local = token_ids - self._first
        here = (local >= 0) & (local < len(self.weight))
        found = nn.functional.embedding(local.clamp(0, max(0, len(self.weight) - 1)), self.weight)
        return self._ranks.summed(found * here.unsqueeze(-1))


def keep_own_parts(model: PreTrainedModel, ranks: RankGroup) -> None:
    """Replaces the layers of `model` that from_pretrained has distributed by this rank's parts, in place.

    Raises SplitError for a plan that is not supported.
    """
    styles: dict[str, str] = model.tp_plan
    for path, module in list(model.named_modules()):
        style = styles.get(replace_layer_number_by_wildcard(path))
        weight = getattr(module, "weight", None)
        if style is None or not isinstance(weight, DTensor):
            continue
        own, bias = _own(weight), _own(getattr(module, "bias", None))
        assert own is not None
        if style == "colwise" and type(module) is nn.Linear:
            part: nn.Module = _linear(own, bias)
        elif style == "rowwise" and type(module) is nn.Linear:
            part = SummedLinear(own, bias, ranks)
        elif style == "rowwise_split_input" and type(module) is nn.Linear:
            part = SummedLinear(own, bias, ranks, whole=weight.shape[1])
        elif style in ("colwise_gather_output", "colwise_rep") and type(module) is nn.Linear:
            part = GatheredLinear(own, bias, len(weight), ranks)
        elif style == "embedding_rowwise" and type(module) is nn.Embedding:
            part = SplitEmbedding(own, len(weight), ranks)
        elif isinstance(module, nn.Linear):
            raise SplitError(f"--tensor-parallel: its plan splits {path} in an unsupported way: {style}")
        else:
            continue
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, part)


@contextmanager
def split_on(device: torch.device, ranks: RankGroup) -> Iterator[DistributedConfig]:
    """Yields the configuration with which from_pretrained, within the context, splits a model by its own plan.

    On CPUs the device mesh is made here: transformers would choose the accelerator that torch was built for, even if
    there is none, and would require the package accelerate. On GPUs it does require that package.

    Raises SplitError if transformers is too old for that.
    """
    config = DistributedConfig(tp_size=ranks.size)
    if device.type != "cpu":
        yield config
        return
    try:
        # Not at the top of the file: one GPU needs no such mesh, and runs with releases of transformers that lack it.
        from transformers.distributed.utils import TransformersDeviceMesh
    except ImportError as error:
        raise SplitError(
            f"--tensor-parallel on CPUs needs a newer transformers than {transformers.__version__}: {error}"
        ) from error
    names = ("pp", "dp_replicate", "fsdp", "tp")
    mesh = init_device_mesh("cpu", (1, 1, 1, ranks.size), mesh_dim_names=names)
    meshes = TransformersDeviceMesh(mesh, mesh)
    found = PreTrainedModel.prepare_distribute_model
    PreTrainedModel.prepare_distribute_model = classmethod(lambda *_, **__: (config, None, meshes))
    try:
        yield config
    finally:
        PreTrainedModel.prepare_distribute_model = found


def _own(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return layer
