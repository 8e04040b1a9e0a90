"""A Hugging Face decoder that runs packed batches over KV slots."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, get_args
from weakref import WeakMethod

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.device.choices import KvDtype, TargetWeights, Weights
from draftwire_core.engine.device.device_copy import HostCopy
from draftwire_core.engine.errors import FieldError, ModelMemoryError
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.model.attention.absolute_positions import give_positions
from draftwire_core.engine.model.attention.packed_attention import ATTENTION_NAME
from draftwire_core.engine.model.backends.backend import Needs
from draftwire_core.engine.model.backends.choose_backend import choose_backend
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.described_model import DescribedModel
from draftwire_core.engine.model.model_facts import most_query_heads, query_group_size
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.ranks.rank_group import RankGroup, RankLostError
from draftwire_core.engine.model.reading.read_model import UnsupportedModelError, read_model, usable_device
from draftwire_core.engine.model.recurrent.recurrent_layers import use_packed_mixers
from draftwire_core.engine.model.rows import FixedRows, Rows
from draftwire_core.engine.model.shallow_model import check_layers, first_layers
from draftwire_core.engine.sampling.kernel_sampler import sampler_of
from draftwire_core.engine.sampling.step_draws import StepDraws

P = ParamSpec("P")
T = TypeVar("T")


def weak_call(method: Callable[P, T]) -> Callable[P, T]:
    """The method without a reference to its object, which owns what calls it: a model that nobody uses any more must
    leave the device at once, not when Python's collector finds the cycle."""
    reference = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        found = reference()
        assert found is not None, "its object calls it"
        return found(*args, **kwargs)

    return call


__all__ = ["ModelLoadError", "PackedModel", "UnsupportedModelError"]


class PackedModel(DescribedModel):
    """A decoder with its KV cache and the pool of its KV slots.

    The model code of transformers runs unchanged with our attention function. Where it runs, a `Backend` replaces
    layers, makes the cache, and may run steps in fixed sizes. One thread at a time may call it.
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
        reads_features: bool = False,
    ):
        """Prepares a loaded model for packed passes. Raises UnsupportedModelError.

        row_exact: on CPUs, give a row the same bits whatever rows share its batch; drafters do without, for speed.
        weights: all but "checkpoint" need bfloat16; int8 and int4 are for drafters only, int4 for GPUs only. kv_dtype:
        type of keys and values in the KV cache; all but "auto" are for CPUs only.
        ranks: the group of ranks that from_pretrained has split the model among, seen from this one. kernels: whether
        to run on the Triton kernels of GPUs; by default if they support the model. Without them a GPU runs plain
        passes, which are slower, and in which a row's bits may depend on the rest of the batch; a warning says so.
        reads_features: whether the model reads a vector next to each token (`PackedBatch.features`).
        context_length: of the longest sequence, see `context_of`; by default as the model declares.
        """
        assert not row_exact or weights in get_args(TargetWeights), "such weights are for drafters"
        super().__init__(model, name, weights, context_length, is_target=row_exact)
        self.checkpoint: Checkpoint | None = None
        """The checkpoint that the model was loaded from."""
        mixers = use_packed_mixers(model)
        self.recurrent_layers = len(mixers)
        """Number of layers, or of mixers besides attention in a layer, with a recurrent state."""
        group_size = query_group_size(self.config)
        if group_size is None and not mixers:
            raise UnsupportedModelError(
                f"model {self.name}: {self.architecture} has no attention heads, and no recurrent layers of a "
                "supported kind"
            )
        self.group_size = group_size or 1
        """Query heads per key-value head; on kernels the most of any layer, all of whose tiles must hold a row's."""
        if kernels or self.device.type != "cpu":
            self.group_size = most_query_heads(model, self.group_size)
        self.reads_features = reads_features
        needs = Needs(
            self.name,
            self.architecture,
            self.dtype,
            weights,
            kv_dtype,
            self.group_size,
            self.context_length,
            reads_features,
        )
        self.backend = choose_backend(model, needs, row_exact=row_exact, ranks=ranks, kernels=kernels)
        self.fingerprint = self.backend.fingerprint(model, self.rotary_factors)
        """Differs between models whose output would differ; see `weights_fingerprint`."""
        self.passes = self.backend.prepare(model, mixers)
        """The runner of passes of any size."""
        give_positions(model)
        model.set_attn_implementation(ATTENTION_NAME)
        self.drafted: torch.Tensor | None = None
        """The tokens whose logits passes return, int64 [tokens]; None for all. See `reduced_vocabulary`."""
        self.sampler, self.draw_kernels = sampler_of(self.device)
        self.pool = SlotPool(slots)
        self.cache = self.backend.cache(slots)
        self._renew_steps()

    def _renew_steps(self) -> None:
        self.pool.states = self.cache.states
        slots, run = self.pool.capacity, weak_call(self._run_fixed)
        self.steps = self.backend.steps(slots, run)
        drafting = None if self._is_target or self.reads_features else self.sampler
        self.drafts = None if drafting is None else self.backend.drafts(slots, run, drafting)

    def feed_drafts(self, feeding: Feeding) -> None:
        """Lets a model that reads features draft several steps by one call, where models can. Its slots may not be
        resized afterwards, nor may graphs have been captured."""
        if self.sampler is not None:
            self.drafts = self.backend.drafts(self.pool.capacity, weak_call(self._run_fixed), self.sampler, feeding)

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
            checkpoint, place, dtype=dtype, trust_remote_code=trust_remote_code, layers=layers, ranks=ranks
        )
        if kv_dtype == "auto" and checkpoint.gguf and model.dtype == torch.bfloat16 and model.device.type == "cpu":
            kv_dtype = "float16"
        with load_errors(f"model {checkpoint.name}", RankLostError):
            loaded = cls(
                model,
                slots,
                checkpoint.name,
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
        self._renew_steps()

    @contextmanager
    def other_slots(self, pool: SlotPool) -> Iterator[None]:
        """Gives the idle model another pool within the context, with an empty cache and steps of their own: the fixed
        tensors of steps hold slots of earlier ones, which must be in the cache."""
        held = self.pool, self.cache, self.steps, self.drafts
        self.pool, self.cache = pool, self.cache.empty(pool.capacity)
        self._renew_steps()
        try:
            yield
        finally:
            self.pool, self.cache, self.steps, self.drafts = held

    def first_layers(self, count: int) -> PackedModel:
        """A view of the first `count` layers, the last norm and the output head. Raises ModelLoadError.

        The view shares weights, cache and slots. In these layers it computes what the whole model computes, so it can
        continue from keys and values that the whole model wrote.
        """
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
        except (FieldError, ValueError) as error:
            raise ModelLoadError(f"model {self.name}: {error}") from error
        view.passes = self.backend.layers(view.model)
        view._renew_steps()
        view.drafts = None
        view.name = f"the first {count} layers of {self.name}"
        return view

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Runs one forward pass: writes the rows' keys and values and returns logits [wanted rows, vocabulary].

        Raises RankLostError if the model is split among ranks and one is lost.
        """
        if self.steps is None:
            return self.passes.logits(batch, self.cache)
        with torch.inference_mode():
            return self.steps.forward(batch).logits

    @torch.inference_mode()
    def forward_with_states(self, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs `forward` and also returns the output head's inputs, the last hidden states [wanted rows, hidden]."""
        if self.steps is None:
            rows = self.passes.rows(batch, self.cache, batch.logit_rows)
        else:
            rows = self.steps.forward(batch)
        return rows.logits, rows.states

    @torch.inference_mode()
    def forward_and_draw(self, batch: PackedBatch, draws: StepDraws) -> tuple[Rows, HostCopy]:
        """Runs one forward pass, which draws tokens if it `draws_in_pass`.

        Also returns the result of `KernelSampler.draw`, on its way to the host.
        """
        assert self.steps is not None
        return self.steps.forward_and_draw(batch, draws)

    def _run_fixed(self, batch: FixedRows, wanted: torch.Tensor | None) -> Rows:
        rows = self.passes.rows(batch, self.cache, 0 if wanted is None else wanted)
        if not self.draws_in_pass:
            return rows
        assert self.sampler is not None
        return rows._replace(drawn=self.sampler.draw(rows.logits, batch.draws))

    def capture_graphs(self) -> None:
        """Captures the steps of fixed sizes as CUDA graphs, if there are any; see `graphs`. All ranks do so together.

        Later passes must use the KV cache that exists now. Raises ModelMemoryError if there is no memory for them,
        and RankLostError if a rank is lost.
        """
        if self.steps is None:
            return
        try:
            with torch.inference_mode():
                self.steps.capture()
                if self.drafts is not None and self.steps.captured:
                    self.drafts.capture()
        except torch.OutOfMemoryError as error:
            reason = str(error).partition("\n")[0]
            raise ModelMemoryError(f"model {self.name}: not enough memory for CUDA graphs: {reason}") from error
