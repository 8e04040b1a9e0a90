"""Loads the target model, its tokenizer and its engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.device.host import share_of_threads
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.kernels.library import (
    KernelsError,
    LibraryMismatchError,
    faster,
    kernels_of,
    library,
    use_kernels,
    warn_without_library,
)
from draftwire_core.engine.loading.rank_processes import RANK_ERRORS, follow_ranks
from draftwire_core.engine.loading.self_test import check_reproducible, run_self_test
from draftwire_core.engine.loading.slots_that_fit import PROVISIONAL_SLOTS, size_cache
from draftwire_core.engine.loading.step_timing import MOST_TIMED_ROWS, measure_step_cost
from draftwire_core.engine.model.numerics import model_numerics
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.engine.model.room_for_cache import check_room
from draftwire_core.engine.model.weights_fingerprint import served_fingerprint
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.memory import peak_megabytes, trim_heap
from draftwire_core.runtime.process.startup_error import StartupError, startup_errors
from verifier_service.settings import VerifierSettings

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A target model that passed its self-test, ready to serve."""

    engine: VerificationEngine
    tokenizer: Tokenizer
    info: ModelInfo


def set_threads(settings: VerifierSettings) -> None:
    """Sets the calling thread's number of compute threads; OpenMP keeps one number per calling thread."""
    threads = settings.threads or share_of_threads(settings.tensor_parallel)
    if threads:
        torch.set_num_threads(threads)


def load_part(settings: VerifierSettings, ranks: RankGroup | None, checkpoint: Checkpoint | None = None) -> PackedModel:
    """Loads this process's part of the target model: all of it, or a rank's part. checkpoint: found earlier from the
    settings, if at all. Raises StartupError for kernels that cannot run here, ModelLoadError, and RankLostError."""
    try:
        use_kernels(settings.kernels)
    except LibraryMismatchError as error:
        raise StartupError(str(error)) from error
    except KernelsError as error:
        raise StartupError(f"--kernels: {error}") from error
    model = PackedModel.load(
        checkpoint or settings.model,
        slots=settings.kv_slots or PROVISIONAL_SLOTS,
        dtype=settings.dtype,
        weights=settings.weights,
        kv_dtype=settings.kv_dtype,
        device=settings.device,
        trust_remote_code=settings.trust_remote_code,
        ranks=ranks,
        context_length=settings.context_length,
    )
    if model.device.type != "cpu" and model.steps is None and not settings.allow_slow_layers:
        raise StartupError(
            f"model {model.name}: the GPU's kernels cannot run it: {model.layer_kernels}; without them it is several "
            "times slower, and its outputs may depend on the batch (--allow-slow-layers serves it all the same)"
        )
    return model


def follow(settings: VerifierSettings, loaded: Callable[[], None]) -> None:
    """Runs a rank other than rank 0. loaded: called once its part of the model is loaded. Raises StartupError."""
    set_threads(settings)
    with startup_errors(*RANK_ERRORS):
        follow_ranks(settings, partial(load_part, settings), partial(_size_cache, settings), loaded)


def _most_rows(settings: VerifierSettings, model: PackedModel) -> int:
    """Rows of the largest step."""
    return settings.max_step_rows or max(model.most_rows, settings.max_sequences)


def _size_cache(settings: VerifierSettings, model: PackedModel, ranks: RankGroup | None) -> None:
    """Gives the model the KV cache for which there is memory, unless the settings say its size."""
    if not settings.kv_slots:
        size_cache(
            model,
            settings.gpu_memory_utilization,
            graphs=settings.cuda_graphs,
            rows=_most_rows(settings, model),
            least=settings.least_slots,
            most=settings.max_sequences * (model.context_length + settings.max_tree_nodes),
            ranks=ranks,
        )


def load_target(settings: VerifierSettings, ranks: RankGroup | None = None) -> Target:
    """Loads, tests and times the target model, leading the `ranks` if there are any. Raises StartupError."""
    started = time.perf_counter()
    set_threads(settings)
    log.info("loading started", model=settings.model)
    warn_without_library(settings.device)
    with startup_errors(*RANK_ERRORS):
        with load_errors(f"model {settings.model}", StartupError, *RANK_ERRORS):
            checkpoint = Checkpoint.find(settings.model)
            tokenizer = Tokenizer.load(checkpoint, trust_remote_code=settings.trust_remote_code)
            if settings.chat_template is not None:
                tokenizer.use_chat_template(Path(settings.chat_template))
            model = load_part(settings, ranks, checkpoint)
        trim_heap()  # of what packing has freed, before the KV cache is allocated
        report = run_self_test(model)  # every rank runs its part of it
        if settings.reproducible:
            check_reproducible(model, report)
        trim_heap()  # and of what the self-test has freed
        _size_cache(settings, model, ranks)
        check_room(model, report.slot_bytes)
        if ranks is not None:
            ranks.lead()
        if settings.cuda_graphs:
            model.capture_graphs()
        numerics = model_numerics(model, settings.tensor_parallel)
        rows = _most_rows(settings, model)
        cost = measure_step_cost(model, rows if model.device.type != "cpu" else MOST_TIMED_ROWS)
    kernels, advice = kernels_of(str(model.device)), faster(str(model.device), model.weight_type)
    if model.text_part_of is not None:
        log.info("other modalities left out", architecture=model.architecture)
    log.info(
        "model loaded",
        parameters=model.parameters,
        dtype=model.weight_type,
        kv_dtype=model.kv_dtype,
        context_length=model.context_length,
        text_part_of=model.text_part_of,
        rotary_factors=model.rotary_factors,
        kv_slots=model.pool.capacity,
        kv_megabytes=round(model.cache.bytes / 1e6),
        recurrent_layers=model.recurrent_layers,
        state_megabytes=round(model.state_bytes / 1e6, 1),
        node_kilobytes=round(model.node_bytes / 1e3, 1),
        bit_exact=report.bit_exact,
        kernels=kernels,
        faster=advice,
        numerics=numerics.digest,
        numerics_description=numerics.description,
        cuda_graphs=model.graphs,
        draw_kernels=model.draw_kernels,
        layer_kernels=model.layer_kernels,
        compiled_library=library() is not None,
        ranks=settings.tensor_parallel,
        step_ms={rows: round(1e3 * cost.seconds(rows), 2) for rows in (1, 8, 32)},
        seconds=round(time.perf_counter() - started, 1),
        peak_megabytes=peak_megabytes(),
    )
    path = Path(model.name).expanduser()
    info = ModelInfo(
        # Callers must not see a path.
        model_id=path.resolve().name if path.exists() else model.name,
        architecture=model.architecture,
        parameters=model.parameters,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        dtype=model.weight_type,
        kv_dtype=model.kv_dtype,
        device=str(model.device),
        tokenizer_sha256=tokenizer.sha256,
        # Models trained further often name the ends of the model they were made of, and go on behind their own.
        eos_token_ids=dict.fromkeys(
            (*model.eos_token_ids, *(each for each in tokenizer.eos_token_ids if each < model.vocab_size))
        ),
        bit_exact=report.bit_exact,
        fingerprint=served_fingerprint(model.fingerprint, tokenizer.sha256),
        numerics=numerics.digest,
        numerics_description=numerics.description,
        kernels=kernels,
        kernels_advice=advice,
    )
    limits = EngineLimits(
        max_sequences=settings.max_sequences,
        max_step_rows=rows,
        max_tree_nodes=settings.max_tree_nodes,
        plain_share=settings.plain_share,
        prefix_cache=settings.prefix_cache,
    )
    return Target(VerificationEngine(model, cost, limits), tokenizer, info)
