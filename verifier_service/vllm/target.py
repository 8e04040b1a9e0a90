"""Starts vLLM's engine for the target, and describes the target."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.adapters.common.target_info import target_info
from draftwire_core.engine.checkpoint.checkpoint import CONFIG, Checkpoint
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import not_found
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.startup_error import StartupError
from verifier_service.settings import VerifierSettings
from verifier_service.vllm.arguments import engine_arguments, pool_variables

log = get_logger(__name__)

_FIRST_GUESS = (0.02, 0.2)
"""Assumed seconds of a step with one row, and of the largest one, until steps are measured."""
_TASKS = ("generate",)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_SAMPLES, _SAMPLE_BYTES = 64, 4096
"""Places of a file that its checkpoint's fingerprint depends on, and their bytes: training changes nearly all
weights."""


@dataclass(frozen=True, slots=True)
class VllmTarget:
    """A target model in vLLM, ready to serve."""

    engine: Any
    """vLLM's AsyncLLM. Only its engine core and its input processor are used: requests are not tokenized or decoded
    there."""
    tokenizer: Tokenizer
    info: ModelInfo
    places: int
    """How many requests run at once."""
    most_rows: int
    """Most tokens of a step."""
    slots: int
    """Tokens that fit into the KV cache."""
    adapters: Mapping[str, Any]
    """vLLM's LoRARequest of each LoRA adapter, by its name."""

    @property
    def runner_v2(self) -> bool:
        """Whether vLLM's workers have model runner V2."""
        return bool(self.engine.vllm_config.use_v2_model_runner)

    @property
    def cost(self) -> StepCost:
        """A first guess of the time of a step."""
        return StepCost([1, max(2, self.most_rows)], list(_FIRST_GUESS))

    def translate(
        self,
        request_id: str,
        tokens: Sequence[int],
        sampling: dict[str, Any],
        *,
        ends: frozenset[int],
        bias: dict[int, float],
        banned: list[list[int]],
        form: dict[str, Any] | None,
        cache_salt: str | None,
        adapter: str,
    ) -> Any:
        """Returns vLLM's EngineCoreRequest, see `request.Translate`. Raises ValueError for what vLLM refuses.

        Forms have been checked and bad words spelled by now, so they are put into what vLLM's own processor returns, as
        is the bias, which that refuses with speculation and draftwire's worker applies.
        """
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams

        request = self.engine.input_processor.process_inputs(
            request_id,
            tokens_input(list(tokens), cache_salt=cache_salt),
            SamplingParams(**sampling),
            supported_tasks=_TASKS,
            lora_request=self.adapters.get(adapter),
        )
        request.external_req_id = request_id
        params = request.sampling_params
        params._all_stop_token_ids = set(ends)
        params.logit_bias = bias or None
        if banned:
            params._bad_words_token_ids = banned
        if form is not None:
            params.structured_outputs = StructuredOutputsParams(**form)
            params.structured_outputs._backend = "guidance"
        return request

    async def check_attached(self, names: Sequence[str]) -> None:
        """Raises ServiceError (NOT_FOUND) for a drafter that is not attached."""
        attached = {name for those in await self.engine.collective_rpc("drafter_names") for name in those}
        for name in names:
            if name not in attached:
                raise not_found(ErrorReason.ERROR_REASON_DRAFTER_NOT_FOUND, f"no drafter named {name!r} is attached")

    async def count_parameters(self) -> None:
        """Notes in `info` how many parameters the target has, as all ranks together hold them."""
        self.info.parameters = sum(await self.engine.collective_rpc("parameters"))

    async def load_adapters(self) -> None:
        """Loads the LoRA adapters, so that a wrong one ends the start and not a request's step. Raises StartupError."""
        for name, adapter in self.adapters.items():
            try:
                await self.engine.add_lora(adapter)
            except Exception as error:
                raise StartupError(f"--lora-modules after --: {name} cannot be used: {error}") from error

    async def pool_address(self) -> str:
        """Returns HOST:PORT of the drafter pool's service. Raises StartupError if no worker serves one."""
        addresses = await self.engine.collective_rpc("pool_address")
        found = next(filter(None, addresses), "")
        if not found:
            raise StartupError("vLLM's workers serve no drafter pool")
        return str(found)


def load_vllm_target(settings: VerifierSettings) -> VllmTarget:
    """Starts vLLM's engine in processes of its own. Raises StartupError; vLLM's parser raises SystemExit."""
    started = time.perf_counter()
    os.environ.update(pool_variables(settings))
    # A fork of a process with threads and gRPC may hang.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if os.environ.get("OMP_WAIT_POLICY") == "PASSIVE":  # set for models that share a host's cores; vLLM binds its own
        del os.environ["OMP_WAIT_POLICY"]
    try:
        import torch
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.lora.utils import get_adapter_absolute_path
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise StartupError(
            f"--engine vllm: needs vLLM in this environment ({error}): pip install vllm 'draftwire-services[vllm]'"
        ) from error
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="verifier_service --engine vllm --"))
    arguments, paths = engine_arguments(settings, parser, AsyncEngineArgs)
    log.info("loading started", model=settings.model)
    with load_errors(f"model {settings.model}", StartupError):
        checkpoint = Checkpoint.find(settings.model, model=False)
        if checkpoint.gguf is not None:
            raise StartupError("--model: vLLM needs a checkpoint, not a GGUF file")
        tokenizer = Tokenizer.load(checkpoint, trust_remote_code=settings.trust_remote_code)
        if settings.chat_template is not None:
            tokenizer.use_chat_template(Path(settings.chat_template))
    try:
        engine = AsyncLLM.from_engine_args(arguments)
    except Exception as error:
        raise StartupError(f"vLLM does not start: {error}") from error
    config = engine.vllm_config
    model, scheduler = config.model_config, config.scheduler_config
    slots = (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size
    numerics = f"vllm {vllm.__version__}, torch {torch.__version__}, {numerics_of(config)}"
    adapters = {
        name: LoRARequest(name, number, get_adapter_absolute_path(path))
        for number, (name, path) in enumerate(paths.items(), 1)
    }
    numerics += "".join(f", adapter {name} {_digest(each.lora_path)}" for name, each in sorted(adapters.items()))
    info = target_info(
        arguments.model,
        model.architectures,
        vocab_size=model.get_vocab_size(),
        context_length=model.max_model_len,
        dtype=model.dtype,
        device=config.device_config.device_type,
        tokenizer_sha256=tokenizer.sha256,
    )
    info.eos_token_ids.extend(eos_token_ids(model, info.vocab_size, tokenizer.eos_token_ids))
    info.fingerprint = fingerprint_of(checkpoint.directory, tokenizer.sha256)
    info.numerics = hashlib.sha256(numerics.encode()).hexdigest()
    info.numerics_description = numerics
    log.info(
        "model loaded",
        dtype=info.dtype,
        context_length=info.context_length,
        kv_slots=slots,
        numerics=info.numerics,
        numerics_description=numerics,
        seconds=round(time.perf_counter() - started, 1),
    )
    return VllmTarget(
        engine,
        tokenizer,
        info,
        places=scheduler.max_num_seqs,
        most_rows=scheduler.max_num_batched_tokens,
        slots=slots or scheduler.max_num_seqs * model.max_model_len,
        adapters=adapters,
    )


def numerics_of(config: Any) -> str:
    """Returns a description of what decides the logits besides checkpoint, versions and adapters: requests continue
    only at verifiers with the same one. config: vLLM's VllmConfig."""
    model, parallel = config.model_config, config.parallel_config
    found = (
        f"{config.device_config.device_type}, {model.dtype}, quantization {model.quantization}, "
        f"ranks {parallel.tensor_parallel_size}x{parallel.pipeline_parallel_size}"
    )
    if config.cache_config.cache_dtype != "auto":
        found += f", KV cache {config.cache_config.cache_dtype}"
    if model.hf_overrides:  # a scale of positions, for example
        found += f", overrides {json.dumps(model.hf_overrides, sort_keys=True, default=str)}"
    return found


def fingerprint_of(directory: Path, tokenizer_sha256: str) -> str:
    """Returns the fingerprint of a checkpoint, by its configuration and a sample of its weights' files.

    Weights that vLLM keeps elsewhere (`--download-dir`) count by the directory's name: that of a hub's model is the
    commit.
    """
    found = hashlib.sha256(tokenizer_sha256.encode())
    weights = sorted(each for each in directory.iterdir() if each.suffix in _WEIGHTS)
    if not weights:
        found.update(directory.resolve().name.encode())
    for file in (directory / CONFIG, *weights):
        size = file.stat().st_size
        found.update(f"{file.name} {size}".encode())
        with file.open("rb") as content:
            for start in range(0, size, max(_SAMPLE_BYTES, size // _SAMPLES)):
                content.seek(start)
                found.update(content.read(_SAMPLE_BYTES))
    return found.hexdigest()


def _digest(directory: str) -> str:
    """Returns a digest of an adapter's files: requests continue only at verifiers with the same ones."""
    found = hashlib.sha256()
    for file in sorted(Path(directory).glob("adapter_*")):
        found.update(file.read_bytes())
    return found.hexdigest()[:12]


def eos_token_ids(model: Any, vocab_size: int, tokenizers: Iterable[int]) -> list[int]:
    """Returns the tokens that end a text, by the checkpoint's generation_config.json, or else by its config.json, and
    the tokenizer's. Ids that are no tokens, such as -1, are left out.

    model: vLLM's configuration of it. tokenizers: that of its tokenizer, which models trained further often do not name
    otherwise.
    """
    ids = model.try_get_generation_config().get("eos_token_id")
    if ids is None:
        ids = getattr(model.hf_config, "eos_token_id", None)
    named = map(int, () if ids is None else ids if isinstance(ids, list | tuple) else [ids])
    return [token for token in dict.fromkeys((*named, *tokenizers)) if 0 <= token < vocab_size]
