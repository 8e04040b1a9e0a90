"""A Hugging Face decoder that runs packed batches over KV slots."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import cast, get_args

import torch
from transformers import PreTrainedModel

from speculative_engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from speculative_engine.checkpoint.load_errors import load_errors
from speculative_engine.checkpoint.model_load_error import ModelMemoryError
from speculative_engine.device_copy import HostCopy
from speculative_engine.field_error import FieldError
from speculative_engine.kv.kv_dtype import KvDtype
from speculative_engine.kv.kv_slots import KvCache, SlotPool
from speculative_engine.kv.recurrent_states import RecurrentStates
from speculative_engine.model.attention.absolute_positions import give_positions
from speculative_engine.model.attention.packed_attention import ATTENTION_NAME, current_pass, packed_context
from speculative_engine.model.attention.rotary_factors import settle_factors
from speculative_engine.model.cuda.graph_capture import Rows
from speculative_engine.model.cuda.kernel_support import missing
from speculative_engine.model.cuda.slots.draft_steps import DraftSteps
from speculative_engine.model.cuda.slots.slot_batch import SlotRows
from speculative_engine.model.cuda.slots.slot_steps import SlotSteps
from speculative_engine.model.features.taps import TapReading
from speculative_engine.model.layers.compiled_pass import CompiledPass
from speculative_engine.model.layers.cpu_layers import use_cpu_layers
from speculative_engine.model.packed_batch import PackedBatch
from speculative_engine.model.ranks.rank_group import RankGroup, RankLostError
from speculative_engine.model.ranks.sharded_layers import keep_own_parts
from speculative_engine.model.ranks.split_check import SplitError
from speculative_engine.model.reading.context_length import context_of
from speculative_engine.model.reading.model_facts import (
    block_types,
    dtype_name,
    eos_token_ids,
    has_blocks,
    parameter_count,
    query_group_size,
)
from speculative_engine.model.reading.read_model import UnsupportedModelError, read_model, usable_device
from speculative_engine.model.recurrent.recurrent_layers import use_packed_mixers
from speculative_engine.model.shallow_model import check_layers, first_layers
from speculative_engine.model.weak_call import weak_call
from speculative_engine.model.weight_names import TargetWeights, Weights
from speculative_engine.model.weights_fingerprint import weights_fingerprint
from speculative_engine.sampling.kernel_sampler import sampler_of
from speculative_engine.sampling.step_draws import StepDraws

__all__ = [
    "ModelLoadError",
    "PackedModel",
    "UnsupportedModelError",
]

_MOST_ROWS, _MOST_ROWS_ON_KERNELS = 256, 1024
_PLAIN = "no GPU kernels for this model: plain passes, slower, rows not batch-invariant to the bit"

log = logging.getLogger(__name__)


class PackedModel:
    """A decoder with its KV cache and the pool of its KV slots.

    The model code of transformers runs unchanged with our attention function. On CPUs its linear layers are replaced as
    well: by packed ones, and for a target by row-exact ones, together with its activations. A drafter's may be int8.
    One thread at a time may call it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slots: int,
        name: str = "",
        *,
        row_exact: bool = True,
        weights: Weights = "checkpoint",
        kv_dtype: KvDtype = "auto",
        ranks: RankGroup | None = None,
        kernels: bool | None = None,
        context_length: int | None = None,
    ):
        """Prepares a loaded model for packed passes. Raises UnsupportedModelError.

        row_exact: on CPUs, give a row the same bits whatever rows share its batch; drafters do without, for speed.
        weights: all but "checkpoint" need bfloat16; int8 and int4 are for drafters only, int4 for GPUs only. kv_dtype:
        type of keys and values in the KV cache; all but "auto" are for CPUs only.
        ranks: the group of ranks that from_pretrained has split the model among, seen from this one. kernels: whether
        to run on the Triton kernels of GPUs; by default if they support the model. Without them a GPU runs plain
        passes, which are slower, and in which a row's bits may depend on the rest of the batch; a warning says so.
        context_length: of the longest sequence, see `context_of`; by default as the model declares.
        """
        self.name = name or type(model).__name__
        self.checkpoint: Checkpoint | None = None
        """The checkpoint that the model was loaded from."""
        on_cpu = model.device.type == "cpu"
        place = "cuda" if weights == "int4" else model.device.type
        if weights != "checkpoint" and (model.dtype != torch.bfloat16 or model.device.type != place):
            needed = "bfloat16 on a GPU" if place == "cuda" else "bfloat16 on a CPU"
            raise UnsupportedModelError(
                f"model {self.name}: weights {weights} need {needed}, not {dtype_name(model.dtype)} on "
                f"{model.device.type}"
            )
        if kv_dtype != "auto" and not on_cpu:
            raise UnsupportedModelError(
                f"model {self.name}: keys and values in {kv_dtype} (--kv-dtype) need a CPU, not {model.device.type}"
            )
        assert not row_exact or weights in get_args(TargetWeights), "such weights are for drafters"
        self.weights = weights
        self.model = model.eval()
        self.config = model.config.get_text_config(decoder=True)
        self.device = model.device
        self.dtype = model.dtype
        self._block_types = block_types(model, halves=on_cpu and weights == "checkpoint")
        self.parameters = parameter_count(model)
        head = model.get_output_embeddings()
        self.vocab_size, self.hidden_size = int(head.out_features), int(head.in_features)
        self.context_length = context_of(self.config, context_length, self.name)
        """Tokens of the longest sequence."""
        self.rotary_factors = settle_factors(model, self.context_length)
        """Which of two sets of rotary factors is used, "short" or "long"; None in models with one set."""
        self.text_part_of: str | None = getattr(model, "text_part_of", None)
        """The class of the multimodal model whose text part this is, if it is one."""
        self.architecture = self.text_part_of or type(model).__name__
        self.eos_token_ids = eos_token_ids(model)
        mixers = use_packed_mixers(model)
        self.recurrent_layers = len(mixers)
        """Number of layers, or of mixers beside attention in a layer, with a recurrent state."""
        if mixers:
            self._check_recurrent(on_cpu, split=ranks is not None)
        group_size = query_group_size(self.config)
        if group_size is None and not mixers:
            raise UnsupportedModelError(
                f"model {self.name}: {self.architecture} has no attention heads, and no recurrent layers of a "
                "supported kind"
            )
        self._group_size = group_size or 1
        with ranks.exchange() if ranks is not None else nullcontext():
            self.fingerprint = weights_fingerprint(model, weights, kv_dtype, self.rotary_factors)
        """Differs between models whose output would differ; see `weights_fingerprint`."""
        self._ranks = ranks
        if ranks is not None:
            try:
                keep_own_parts(model, ranks)
            except SplitError as error:
                raise UnsupportedModelError(f"model {self.name}: {error}") from error
        lacking = missing(self.device, self.dtype, self.config, self.context_length)
        if kernels is None:
            kernels = not on_cpu and lacking is None
            if not (kernels or on_cpu) and (ranks is None or ranks.rank == 0):
                log.warning(_PLAIN, extra={"model": self.name, "reason": lacking})
        elif kernels and lacking is not None:
            raise UnsupportedModelError(f"model {self.name}: {lacking}")
        if not (kernels or on_cpu) and (has_blocks(model) or weights != "checkpoint"):
            what = "quantised weights" if has_blocks(model) else f"weights {weights}"
            raise UnsupportedModelError(
                f"model {self.name}: {what} on a GPU need kernels that this model does not have here: "
                f"{lacking or 'they are switched off'}"
            )
        self.layer_kernels = lacking or "no"
        """Whether Triton kernels compute passes, for logs: "yes", "attention" if only that, or why they do not."""
        if kernels:
            from speculative_engine.model.cuda.gpu_layers import use_gpu_layers  # needs Triton

            try:
                self.layer_kernels = "yes" if use_gpu_layers(model, weights) else "attention"
            except ModelLoadError as error:
                raise UnsupportedModelError(f"model {self.name}: {error}") from error
        elif on_cpu:
            use_cpu_layers(
                model,
                weights,
                row_exact=row_exact,
                split=ranks is not None,
                recurrent=bool(mixers),
            )
        give_positions(model)
        model.set_attn_implementation(ATTENTION_NAME)
        self.sampler, self.draw_kernels = sampler_of(self.device)
        """Draws tokens on the device; None if it cannot. Whether it does, for logs: "yes", or why it does not."""
        self._compiled = CompiledPass.of(model) if ranks is None else None
        self._is_target = row_exact
        self.pool = SlotPool(slots)
        shapes = [each.shape for mixer in mixers for each in mixer.recurrences]
        states = RecurrentStates(shapes, self.dtype, slots) if mixers else None
        self.cache = KvCache(slots, kv_dtype, slots_first=kernels, states=states)
        self.pool.states = states
        self.steps = SlotSteps(weak_call(self._run_fixed), slots, self.device) if kernels else None
        """Runs steps in fixed sizes on the kernels; None where passes have any size."""
        self._watch(self.steps)
        self.drafts = self._draft_steps()
        """Runs drafts of several steps by one call; None where each is a call of its own."""

    @classmethod
    def load(
        cls,
        source: str | Checkpoint,
        *,
        slots: int,
        dtype: str = "auto",
        device: str = "cpu",
        trust_remote_code: bool = False,
        row_exact: bool = True,
        weights: Weights = "checkpoint",
        kv_dtype: KvDtype = "auto",
        layers: int | None = None,
        ranks: RankGroup | None = None,
        context_length: int | None = None,
    ) -> PackedModel:
        """Loads a model from a directory, GGUF file or hub id; see `Checkpoint.find`. Raises ModelLoadError.

        slots: tokens that fit into the KV cache. row_exact, weights, kv_dtype, context_length: see the constructor.
        layers: number of first layers to load, without reading the others; None for all. ranks: the group of which this
        process loads its own part; all ranks must load, and the call returns when all have. Raises RankLostError if one
        is lost.
        """
        if weights != "checkpoint" and dtype == "auto":
            dtype = "bfloat16"
        place = usable_device(device if ranks is None else ranks.device)
        checkpoint = Checkpoint.find(source)
        model = read_model(
            checkpoint,
            place,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            layers=layers,
            ranks=ranks,
        )
        if kv_dtype == "auto" and checkpoint.gguf and model.dtype == torch.bfloat16 and model.device.type == "cpu":
            kv_dtype = "float16"
        with load_errors(f"model {checkpoint.name}", RankLostError):
            loaded = cls(
                model,
                slots,
                name=checkpoint.name,
                row_exact=row_exact,
                weights=weights,
                kv_dtype=kv_dtype,
                ranks=ranks,
                context_length=context_length,
            )
        loaded.checkpoint = checkpoint
        return loaded

    def resize(self, slots: int) -> None:
        """Replaces the KV cache by an empty one of `slots` slots. No slot may be in use, and no graph captured."""
        assert not self.pool.used
        assert not self.captured
        self.pool = SlotPool(slots)
        self.cache = self.cache.empty(slots)
        self.pool.states = self.cache.states
        self.steps = self._steps_like(self.steps)
        self._watch(self.steps)
        self.drafts = self._draft_steps()

    @contextmanager
    def other_slots(self, pool: SlotPool) -> Iterator[None]:
        """Gives the idle model another pool within the context, with an empty cache and steps of their own: the fixed
        tensors of steps hold slots of earlier ones, which must be in the cache."""
        held = self.pool, self.cache, self.steps, self.drafts
        self.pool, self.cache = pool, self.cache.empty(pool.capacity)
        pool.states = self.cache.states
        self.steps = self._steps_like(self.steps)
        self.drafts = self._draft_steps()
        try:
            yield
        finally:
            self.pool, self.cache, self.steps, self.drafts = held

    @property
    def most_rows(self) -> int:
        """Rows of a pass beyond which a prompt is not read much faster. On the kernels of
        GPUs, fewer rows leave the device waiting for its next kernel."""
        return _MOST_ROWS if self.steps is None or self.device.type == "cpu" else _MOST_ROWS_ON_KERNELS

    @property
    def layers(self) -> int:
        """Number of decoder layers that were loaded."""
        return int(self.config.num_hidden_layers)

    def first_layers(self, count: int) -> PackedModel:
        """A view of the first `count` layers, the last norm and the output head. Raises ModelLoadError.

        The view shares weights, cache and slots. In these layers it computes what the whole model computes, so it can
        continue from keys and values that the whole model wrote.
        """
        if self._ranks is not None:
            raise ModelLoadError(
                f"model {self.name}: its layers are split among {self._ranks.size} ranks (--tensor-parallel), which "
                "run all of them or none"
            )
        if self.recurrent_layers:
            raise ModelLoadError(
                f"model {self.name}: its first {count} layers cannot draft for it, because some of its layers are "
                "recurrent: their states would move on without those of the other layers"
            )
        view = copy.copy(self)
        view._is_target = False
        try:
            check_layers(count, self.layers)
            view.model = first_layers(self.model, count)
            view._compiled = self._compiled and CompiledPass.of(view.model)
        except (FieldError, ValueError) as error:
            raise ModelLoadError(f"model {self.name}: {error}") from error
        view.steps, view.drafts = view._steps_like(self.steps), None
        view.name = f"the first {count} layers of {self.name}"
        return view

    @property
    def weight_type(self) -> str:
        """Name of the weights' type: the model's dtype, or that of linear layers, such as "int8" or "q4_0"."""
        if self._block_types:
            return self._block_types.most_common(1)[0][0]
        return dtype_name(self.dtype) if self.weights == "checkpoint" else self.weights

    @property
    def kv_dtype(self) -> str:
        """Name of the type of keys and values in the KV cache: the model's dtype, "float16" or "q8_0"."""
        return dtype_name(self.dtype) if self.cache.dtype == "auto" else self.cache.dtype

    @property
    def state_bytes(self) -> int:
        """Memory of a sequence's state in recurrent layers, in bytes; 0 if the model has none."""
        return 0 if self.cache.states is None else self.cache.states.state_bytes

    @property
    def node_bytes(self) -> int:
        """Memory that a token takes in recurrent layers while it may be rolled back, in bytes; 0 if the model has
        none."""
        return 0 if self.cache.states is None else self.cache.states.input_bytes

    @property
    def group_size(self) -> int:
        """Query heads per key-value head."""
        return self._group_size

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Runs one forward pass: writes the rows' keys and values and returns logits [wanted rows, vocabulary].

        Raises RankLostError if the model is split among ranks and one is lost.
        """
        self._announce(batch)
        if self.steps is not None:
            return self._steps_forward(batch).logits
        with packed_context(batch, self.cache):
            return self._call(batch, batch.logit_rows)

    @torch.inference_mode()
    def forward_with_states(self, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs `forward` and also returns the output head's inputs, the last hidden states [wanted rows, hidden]."""
        self._announce(batch)
        rows = self._run(batch) if self.steps is None else self._steps_forward(batch)
        return rows.logits, rows.states

    @property
    def can_be_tapped(self) -> bool:
        """Whether passes may have taps: steps of fixed sizes run without them, and so do GPUs and other ranks."""
        return self.steps is None and self.device.type == "cpu" and self._ranks is None

    @property
    def draws_in_pass(self) -> bool:
        """Whether passes draw a target's tokens themselves, see `forward_and_draw`."""
        return self._is_target and self.sampler is not None and self.steps is not None

    @torch.inference_mode()
    def forward_and_draw(self, batch: PackedBatch, draws: StepDraws) -> tuple[Rows, HostCopy]:
        """Runs one forward pass, which draws tokens if it `draws_in_pass`.

        Also returns the result of `KernelSampler.draw`, on its way to the host.
        """
        assert self.steps is not None
        self._announce(batch)
        return self.steps.forward_and_draw(batch, draws)

    def capture_graphs(self) -> None:
        """Captures the steps of fixed sizes as CUDA graphs, if there are any; see `graphs`. All ranks do so together.

        Later passes must use the KV cache that exists now. Raises ModelMemoryError if there is no memory for them,
        and RankLostError if a rank is lost.
        """
        if self.steps is None:
            return
        if self._ranks is not None:
            self._ranks.announce_capture()
        try:
            with torch.inference_mode():
                self.steps.capture(self._ranks)
                if self.drafts is not None and self.steps.captured:
                    self.drafts.capture()
        except torch.OutOfMemoryError as error:
            reason = str(error).partition("\n")[0]
            raise ModelMemoryError(f"model {self.name}: not enough memory for CUDA graphs: {reason}") from error

    @property
    def captured(self) -> int:
        """Number of step sizes that were captured as CUDA graphs."""
        return 0 if self.steps is None else self.steps.captured

    @property
    def graphs(self) -> str:
        """State of the CUDA graphs, for logs: their number, or why there are none."""
        unavailable = None if self.steps is None else self.steps.unavailable
        drafts = 0 if self.drafts is None else self.drafts.captured
        return unavailable or str(self.captured + drafts if self.device.type == "cuda" else 0)

    def _watch(self, steps: SlotSteps | None) -> None:
        """Lets those who wait for a step's tokens notice that another rank is lost."""
        if self._ranks is not None and steps is not None:
            steps.wait = self._ranks.await_device

    def _steps_forward(self, batch: PackedBatch) -> Rows:
        """Runs a pass of fixed size. Results that rank 0 is about to use are awaited here, where a lost rank is
        noticed."""
        assert self.steps is not None
        rows = self.steps.forward(batch)
        if self._ranks is not None and self._ranks.leads and batch.wanted and self.device.type == "cuda":
            reached = torch.cuda.Event()
            reached.record(torch.cuda.current_stream(self.device))
            self._ranks.await_device(reached.query)
        return rows

    def _run(self, batch: PackedBatch) -> Rows:
        with packed_context(batch, self.cache), self._states() as states:
            logits = self._call(batch, batch.logit_rows)
        return Rows(logits, states[0].reshape(len(logits), self.hidden_size))

    def _run_fixed(self, batch: SlotRows, wanted: torch.Tensor | None) -> Rows:
        with torch.cuda.device_of(batch.token_ids), packed_context(batch, self.cache), self._states() as states:
            logits = self._call(batch, 0 if wanted is None else wanted)
        drawn = None
        if self.draws_in_pass:
            assert self.sampler is not None
            drawn = self.sampler.draw(logits, batch.draws)
        return Rows(logits, states[0].reshape(len(logits), self.hidden_size), drawn)

    def _call(self, batch: PackedBatch | SlotRows, wanted: torch.Tensor | int) -> torch.Tensor:
        """Calls the model within a packed context. wanted: rows whose logits to return, 0 for all."""
        reading: TapReading | None = None
        if isinstance(batch, PackedBatch) and batch.taps:
            reading = TapReading(batch.taps, len(batch), int(self.config.hidden_size), self.dtype)
            current_pass().reading = reading
        if self._compiled is not None and self._compiled.available:
            logits = self._compiled.logits(cast(PackedBatch, batch), cast(torch.Tensor, wanted))
        else:
            with reading.hooked(self.model) if reading is not None else nullcontext():
                out = self.model(
                    input_ids=batch.token_ids.unsqueeze(0),
                    position_ids=batch.positions.unsqueeze(0),
                    use_cache=False,
                    logits_to_keep=wanted,
                )
            logits = out.logits[0]
        if reading is not None:
            reading.keep(batch.slots)
        return logits

    def keep_alive(self) -> float | None:
        """Keeps idle ranks alive; to be called between passes. Raises RankLostError.

        Returns the seconds after which to call it again unless a pass comes first; None for never.
        """
        return None if self._ranks is None else self._ranks.keep_alive()

    def _steps_like(self, steps: SlotSteps | None) -> SlotSteps | None:
        """Steps of this model like others, in tensors of their own, for the cache that it has now."""
        return None if steps is None else SlotSteps(weak_call(self._run_fixed), self.pool.capacity, self.device)

    def _check_recurrent(self, on_cpu: bool, *, split: bool) -> None:
        """Raises UnsupportedModelError where recurrent layers are not supported."""
        reason = None
        if split:
            reason = "cannot be split among ranks (--tensor-parallel)"
        elif not on_cpu:
            reason = f"run on CPUs only, not on {self.device.type}"
        if reason is not None:
            raise UnsupportedModelError(f"model {self.name}: the recurrent layers of {self.architecture} {reason}")

    def _draft_steps(self) -> DraftSteps | None:
        if self._is_target or self.sampler is None or self._ranks is not None or self.steps is None:
            return None
        return DraftSteps(weak_call(self._run_fixed), self.sampler, self.pool.capacity, self.group_size, self.device)

    def _announce(self, batch: PackedBatch) -> None:
        if self._ranks is not None:
            self._ranks.announce(batch)

    @contextmanager
    def _states(self) -> Iterator[list[torch.Tensor]]:
        """Collects the output head's inputs, in passes within this context, in the list it yields."""
        states: list[torch.Tensor] = []
        hook = self.model.get_output_embeddings().register_forward_pre_hook(
            lambda _, inputs: states.append(inputs[0].to(self.dtype))
        )
        try:
            yield states
        finally:
            hook.remove()
