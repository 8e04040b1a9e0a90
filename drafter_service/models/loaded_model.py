"""Loads and tests the draft model."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from drafter_service.settings import LEAST_SLOTS, DrafterSettings
from draftwire.v1 import model_info_pb2
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.device.host import share_of_threads
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translating import tree_slots
from draftwire_core.engine.drafters.translation.translation import translation
from draftwire_core.engine.errors import ModelMemoryError
from draftwire_core.engine.kernels.library import faster, kernels_of, library, warn_without_library
from draftwire_core.engine.loading.rank_processes import RANK_ERRORS, follow_ranks
from draftwire_core.engine.loading.self_test import check_reproducible, run_self_test
from draftwire_core.engine.loading.slots_that_fit import PROVISIONAL_SLOTS, size_cache
from draftwire_core.engine.loading.step_timing import MOST_TIMED_ROWS, measure_step_cost
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.room_for_cache import check_room
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.startup_error import StartupError, startup_errors

log = get_logger(__name__)


class NoMemoryError(StartupError):
    """Raised for a model that could be served if there were enough memory."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded draft model, and its description for verifiers."""

    model: PackedModel
    info: model_info_pb2.ModelInfo
    cost: StepCost
    """Measured cost of the model's steps."""
    token_map: TokenMap | None = None
    """Translation between the model's tokens and the target's; None if both have the same tokenizer."""


@dataclass(frozen=True, slots=True)
class Translation:
    """The tokenizers of the draft model and the target, and the translation between them."""

    own: Tokenizer
    target: Tokenizer
    """The target's tokenizer; the draft model's own unless the settings name one."""
    token_map: TokenMap | None
    """Translation between the two; None if they are the same."""

    @classmethod
    def load(cls, settings: DrafterSettings, model: PackedModel) -> "Translation":
        """Loads the model's tokenizer, and the target's if the settings name one. Raises ModelLoadError."""
        own = Tokenizer.load(model.checkpoint or settings.model, trust_remote_code=settings.trust_remote_code)
        if settings.target_tokenizer is None:
            return cls(own, own, None)
        target = Tokenizer.load(settings.target_tokenizer)
        return cls(own, target, translation(model, own, target))

    def present(self, info: model_info_pb2.ModelInfo) -> None:
        """Rewrites a model's description to the target's tokens, in which it communicates with verifiers."""
        if self.token_map is None:
            return
        info.tokenizer_sha256 = self.target.sha256
        info.draft_tokenizer_sha256 = self.own.sha256
        info.vocab_size = len(self.token_map.target)
        info.eos_token_ids[:] = [token for token, mark in self.token_map.marks.items() if mark in info.eos_token_ids]


def threads_of(settings: DrafterSettings) -> int | None:
    """Returns the number of CPU threads of a forward pass; None leaves the choice to torch."""
    return settings.threads or share_of_threads(settings.tensor_parallel)


def set_threads(settings: DrafterSettings) -> None:
    """Sets the calling thread's number of compute threads; the drafting thread sets its own."""
    threads = threads_of(settings)
    if threads is not None:
        torch.set_num_threads(threads)


def load_part(settings: DrafterSettings, ranks: RankGroup | None) -> PackedModel:
    """Loads this process's part of the model: all of it, or a rank's part. Raises ModelLoadError, RankLostError."""
    return PackedModel.load(
        Checkpoint.find(settings.model, hub=settings.allow_hub_models),
        slots=settings.kv_slots or PROVISIONAL_SLOTS,
        dtype=settings.dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
        row_exact=False,
        weights=settings.weights,
        kv_dtype=settings.kv_dtype,
        layers=settings.layers,
        ranks=ranks,
        context_length=settings.context_length,
    )


def follow(settings: DrafterSettings, loaded: Callable[[], None]) -> None:
    """Runs a rank other than rank 0, from start to end. loaded: called once its part of the model is loaded. Raises
    StartupError."""
    set_threads(settings)
    with startup_errors(*RANK_ERRORS):
        hub = settings.with_hub_models()
        follow_ranks(hub, partial(load_part, hub), partial(_size_cache, hub), loaded)


def load_model(settings: DrafterSettings, ranks: RankGroup | None = None) -> LoadedModel:
    """Loads the model and its tokenizer, and tests the model. Too slow for the event loop.

    ranks: the ranks that this process leads, if the model is split. Raises ModelLoadError for a model that cannot be
    served, in the form of ModelMemoryError for lack of memory, and the other RANK_ERRORS.
    """
    started = time.perf_counter()
    log.info("loading started", model=settings.model)
    warn_without_library(settings.device)
    set_threads(settings)
    model = load_part(settings, ranks)
    report = run_self_test(model)  # every rank runs its part of the test
    if settings.reproducible:
        check_reproducible(model, report)
    _size_cache(settings, model, ranks)
    check_room(model, report.slot_bytes)
    if ranks is not None:
        ranks.lead()
    translation = Translation.load(settings, model)
    if translation.token_map is not None:
        _check_translated_trees(settings, model)
    _make_cache(model)
    if settings.cuda_graphs:
        model.capture_graphs()
    cost = measure_step_cost(model, model.most_rows if model.device.type != "cpu" else MOST_TIMED_ROWS)
    info = model_info(model, translation.own.sha256, bit_exact=report.bit_exact)
    translation.present(info)
    if model.text_part_of is not None:
        log.info("other modalities left out", architecture=model.architecture)
    log.info(
        "model loaded",
        model=info.model_id,
        architecture=info.architecture,
        layers=model.layers,
        parameters=info.parameters,
        dtype=info.dtype,
        kv_dtype=info.kv_dtype,
        device=info.device,
        vocab_size=info.vocab_size,
        context_length=info.context_length,
        text_part_of=model.text_part_of,
        rotary_factors=model.rotary_factors,
        kv_slots=model.pool.capacity,
        kv_cache_mib=round(model.cache.bytes / 2**20, 1),
        recurrent_layers=model.recurrent_layers,
        state_megabytes=round(model.state_bytes / 1e6, 1),
        node_kilobytes=round(model.node_bytes / 1e3, 1),
        bit_exact=info.bit_exact,
        cuda_graphs=model.graphs,
        draw_kernels=model.draw_kernels,
        layer_kernels=model.layer_kernels,
        kernels=info.kernels,
        faster=info.kernels_advice,
        compiled_library=library() is not None,
        ranks=settings.tensor_parallel,
        translates=translation.token_map is not None,
        step_seconds=round(cost.seconds(1), 6),
        seconds=round(time.perf_counter() - started, 3),
    )
    return LoadedModel(model, info, cost, translation.token_map)


def _size_cache(settings: DrafterSettings, model: PackedModel, ranks: RankGroup | None) -> None:
    """Gives the model the KV cache for which there is memory, unless the settings say its size. Raises
    ModelMemoryError."""
    if settings.kv_slots:
        return
    size_cache(
        model,
        settings.gpu_memory_utilization,
        graphs=settings.cuda_graphs,
        rows=model.most_rows,
        least=max(LEAST_SLOTS, settings.max_tree_nodes + 1),
        most=settings.max_sequences * (model.context_length + settings.max_tree_nodes),
        ranks=ranks,
    )


def _check_translated_trees(settings: DrafterSettings, model: PackedModel) -> None:
    """Raises StartupError if there is no room for a translated text next to its tree, whose nodes take several slots
    each: every opening would be refused."""
    tree = tree_slots(settings.max_tree_nodes)
    if tree >= model.pool.capacity:
        raise StartupError(
            f"--kv-slots: must exceed {tree} to translate tokens with --max-tree-nodes {settings.max_tree_nodes}, got "
            f"{model.pool.capacity}"
        )


def _make_cache(model: PackedModel) -> None:
    """Allocates the KV cache now instead of at first use, so that a lack of memory is reported as an error in the
    settings instead of failing the first sequence. Raises ModelMemoryError.
    """
    builder = BatchBuilder()
    slots = model.pool.take(1)
    builder.add_lane(slots[:0], [builder.add_row(0, 0, int(slots[0]), wants_logits=True)])
    try:
        model.forward(builder.build(model.group_size, model.device))
    except (MemoryError, RuntimeError) as error:  # torch's own out-of-memory errors are RuntimeErrors
        reason = str(error).partition("\n")[0]
        raise ModelMemoryError(f"cannot allocate a KV cache of {model.pool.capacity} slots: {reason}") from error
    model.pool.give_back(slots)


def model_info(model: PackedModel, tokenizer_sha256: str, *, bit_exact: bool) -> model_info_pb2.ModelInfo:
    """Returns the contract's description of a model."""
    path = Path(model.name).expanduser()
    return model_info_pb2.ModelInfo(
        # The path of a directory stays private.
        model_id=path.resolve().name if path.exists() else model.name,
        architecture=model.architecture,
        parameters=model.parameters,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        dtype=model.weight_type,
        kv_dtype=model.kv_dtype,
        device=str(model.device),
        tokenizer_sha256=tokenizer_sha256,
        eos_token_ids=model.eos_token_ids,
        bit_exact=bit_exact,
        kernels=kernels_of(str(model.device)),
        kernels_advice=faster(str(model.device), model.weight_type),
    )
