"""Loads networks that draft from features, which verifiers send."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from drafter_service.models.loaded_model import model_info, set_threads
from drafter_service.settings import DrafterSettings
from draftwire.v1 import model_info_pb2
from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.device.choices import AUTO
from draftwire_core.engine.drafters.blocks.block_drafter import ReceivingBlockDrafter
from draftwire_core.engine.drafters.blocks.block_network import BlockNetwork
from draftwire_core.engine.drafters.drafter import FeatureDrafter
from draftwire_core.engine.drafters.features.draft_network import ConfigT, DraftNetwork
from draftwire_core.engine.drafters.features.reading_drafter import feed_drafts, own_tap
from draftwire_core.engine.drafters.features.receiving_drafter import ReceivingDrafter
from draftwire_core.engine.drafters.features.trial_pass import try_pass
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.loading.step_timing import MOST_TIMED_ROWS, measure_step_cost
from draftwire_core.engine.model.features.feature_map import FeatureMap
from draftwire_core.engine.model.features.taps import SlotStates
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.reading.read_model import resolve_dtype, usable_device
from draftwire_core.engine.model.room_for_cache import SETTING
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.startup_error import StartupError

log = get_logger(__name__)

_CONTEXT = 1 << 17
"""Tokens that a drafter follows at least, however short the texts of its training."""


Packed = tuple[PackedModel, Callable[[TreeGrowth], FeatureDrafter]]
"""A packed network, and what makes its drafters."""


class FeatureNetwork(NamedTuple):
    """A network that was read from files, and packed."""

    kind: str
    """The network's kind, for people."""
    model: PackedModel
    make: Callable[[TreeGrowth], FeatureDrafter]
    """Makes a drafter with the network."""
    mapping: FeatureMap
    """The map from the target's states to its features."""
    layers: tuple[int, ...]
    """Indices of the target's layers whose inputs are read."""
    vocab_size: int
    """Number of the target's tokens."""
    drafted: int
    """Number of tokens that it can draft."""
    target_architectures: tuple[str, ...] = ()
    """Architectures of the targets it was trained for; empty if unknown."""
    window: int = 0
    """Last tokens of a text that the network sees; 0 for all."""
    block: int = 0
    """KV slots of a block, for which there must be room next to a text; 0 if it guesses none."""

    @classmethod
    def of(
        cls, kind: str, network: DraftNetwork[ConfigT], packed: Packed, window: int = 0, block: int = 0
    ) -> "FeatureNetwork":
        """Returns a network that came in a checkpoint of its own. packed: the network, and what makes its drafters."""
        config = network.config
        architectures = config.target_architectures
        vocabularies = config.layers.vocab_size, config.draft_vocab_size
        return cls(kind, *packed, network.mapping, network.aux_layers, *vocabularies, architectures, window, block)


@dataclass(frozen=True, slots=True)
class LoadedFeatureNetwork:
    """A loaded network, and its description for verifiers."""

    model: PackedModel
    info: model_info_pb2.ModelInfo
    cost: StepCost
    """Measured cost of the network's steps."""
    make: Callable[[TreeGrowth], FeatureDrafter]
    """Makes a drafter with the network."""
    mapping: FeatureMap
    """The map that verifiers apply to their target's states."""
    features: FeatureMapMessage
    """The network's description."""


def load_network(
    settings: DrafterSettings, checkpoint: Checkpoint, read: Callable[[torch.dtype], FeatureNetwork]
) -> LoadedFeatureNetwork:
    """Loads a network. read: reads it, with weights of a type; raises ModelLoadError. Raises ModelLoadError
    and StartupError."""
    started = time.perf_counter()
    log.info("loading started", model=settings.model)
    set_threads(settings)
    network = read(resolve_dtype(settings.dtype, usable_device(settings.device)))
    network.mapping.to("cpu")  # verifiers apply it
    model = network.model
    tokenizer = _tokenizer(settings, checkpoint)
    if settings.cuda_graphs:
        model.capture_graphs()
    cost = measure_step_cost(model, model.most_rows if model.device.type != "cpu" else MOST_TIMED_ROWS)
    info = model_info(model, tokenizer, bit_exact=False)
    info.architecture, info.vocab_size = network.kind, network.vocab_size
    info.context_length = min(info.context_length, max(1, model.pool.capacity - network.block))
    features = _describe(network, settings)
    log.info(
        "model loaded",
        model=info.model_id,
        architecture=info.architecture,
        reads_layers=list(features.layers),
        features=f"{features.width} {features.dtype}",
        draft_vocab_size=network.drafted,
        kv_slots=model.pool.capacity,
        device=info.device,
        cuda_graphs=model.graphs,
        layer_kernels=model.layer_kernels,
        step_seconds=round(cost.seconds(1), 6),
        seconds=round(time.perf_counter() - started, 3),
    )
    return LoadedFeatureNetwork(model, info, cost, network.make, network.mapping, features)


def _allow_long_texts(config: PretrainedConfig) -> None:
    """Lets a network follow texts that are longer than those of its training: positions beyond only cost acceptance."""
    config.max_position_embeddings = max(config.max_position_embeddings, _CONTEXT)


def reading_network(
    model: PreTrainedModel, settings: DrafterSettings, name: str, target_ids: torch.Tensor | None, *, norm_output: bool
) -> Packed:
    """Packs a network that reads a feature next to each token; returns it, and what makes its drafters.

    target_ids: see `DraftNetwork.target_ids`. norm_output: whether the hidden state that is fed back has been through
    the last norm. Raises ModelLoadError.
    """
    _allow_long_texts(model.config)
    packed = PackedModel(
        model, settings.kv_slots, name=name, row_exact=False, weights=settings.weights, reads_features=True
    )
    try_pass(packed, SETTING)
    own = own_tap(packed, packed.model.get_decoder().norm if norm_output else nn.Identity())
    table: SlotStates | None = None
    if packed.steps is not None:
        table = SlotStates(packed.pool.capacity, packed.hidden_size, packed.dtype, packed.device)
        feed_drafts(packed, table.vectors, own, target_ids, normed=norm_output)
    return packed, lambda growth: ReceivingDrafter(packed, target_ids, own, growth, table)


def placed(settings: DrafterSettings) -> DrafterSettings:
    """Returns the settings of a network, which is on a GPU only if they name one: there it has not been timed yet.

    Raises StartupError for settings of draft models.
    """
    if settings.asked_device == AUTO and settings.device != "cpu":
        try:
            settings = settings.on("cpu")
        except ValueError as error:
            raise StartupError(f"{error}, where drafters that read features are unless --device names a GPU") from error
        log.info("drafter placed on the CPU; --device cuda has it draft on the GPU", model=settings.model)
    for name, given, excluded in (
        ("layers", settings.layers, settings.layers is not None),
        ("tensor-parallel", settings.tensor_parallel, settings.tensor_parallel > 1),
        ("kv-slots", settings.kv_slots, not settings.kv_slots),
    ):
        if excluded:
            raise StartupError(f"--{name}: {given} does not apply to {settings.model}, which drafts from features")
    return settings


def _tokenizer(settings: DrafterSettings, checkpoint: Checkpoint) -> str:
    """Returns the hash of the target's tokenizer: the one that the settings name, or else the one next to the target or
    the checkpoint; empty if there is none."""
    if settings.target_tokenizer is not None:
        return Tokenizer.load(settings.target_tokenizer).sha256
    place = checkpoint
    if settings.target is not None:
        place = Checkpoint.find(settings.target)
    return Tokenizer.load(place).sha256 if (place.directory / "tokenizer.json").exists() else ""


def _describe(network: FeatureNetwork, settings: DrafterSettings) -> FeatureMapMessage:
    shape, own = network.mapping.shape, str(network.model.dtype).removeprefix("torch.")
    return FeatureMapMessage(
        layers=network.layers,
        hidden_size=shape.hidden_size,
        width=shape.width,
        dtype=own if settings.feature_dtype == "auto" else settings.feature_dtype,
        norm_states=shape.norm_states,
        norm_each_state=shape.norm_each_state,
        norm_features=shape.norm_features,
        norm_epsilon=shape.epsilon,
        unmapped=shape.unmapped,
        window=settings.feature_window or network.window,
        weights_dtype=own,
        weights_sha256=network.mapping.digest(),
        target_architectures=network.target_architectures,
    )


def block_network(model: PreTrainedModel, pack: Callable[[], BlockNetwork]) -> Packed:
    """Packs a network that guesses blocks; returns it, and what makes its drafters.

    pack: packs `model`, and raises ModelLoadError.
    """
    _allow_long_texts(model.config)
    network = pack()
    return network.model, lambda growth: ReceivingBlockDrafter(network, growth)
