"""A draft model in this process."""

from __future__ import annotations

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.edge.draft_thread import DraftThread
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.device.host import set_cpu_threads
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer


class LocalDrafter:
    """A draft model, loaded and tested, that drafts for one or more edge clients in one batch. Close it after them."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        weights: Weights = "checkpoint",
        device: str = "cpu",
        threads: int | None = None,
        kv_slots: int = 32768,
        trust_remote_code: bool = False,
    ) -> None:
        """Loads the model, which takes seconds, and starts the thread that drafts.

        Args:
            model: directory or hub id of the draft model; its tokenizer must be the target's.
            dtype: data type of the weights: float32, bfloat16, float16, or auto, which is bfloat16 if the device
                computes in it.
            weights: storage of linear layers: "checkpoint" keeps the weights in dtype; "int8" uses 8-bit integers with
                one scale per output, only in bfloat16 on a CPU.
            device: device of the model, cpu or cuda.
            threads: CPU threads of a forward pass; default: the number of cores that torch finds.
            kv_slots: size of the KV cache in tokens, shared by all requests.
            trust_remote_code: run model code from the checkpoint.

        Raises:
            ModelLoadError: the model cannot be loaded or served.
        """
        checkpoint = Checkpoint.find(model)
        loaded = PackedModel.load(
            checkpoint,
            slots=kv_slots,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            row_exact=False,
            weights=weights,
        )
        self.tokenizer_sha256 = Tokenizer.load(checkpoint, trust_remote_code=trust_remote_code).sha256
        """Fingerprint of the tokenizer, as in ``ModelInfo``."""
        run_self_test(loaded)
        self._vocab_size = loaded.vocab_size
        self._slots = kv_slots
        self.thread = DraftThread(
            DraftModelDrafter(loaded, TreeGrowth(measure_step_cost(loaded))),
            prepare=lambda: None if threads is None else set_cpu_threads(threads),
        )
        """The drafting thread."""

    @property
    def alive(self) -> bool:
        """Whether the drafter is running: neither closed nor failed."""
        return self.thread.alive

    def spec(self, opened: pb.VerifyOpened) -> DraftSpec | None:
        """Returns the specification of a request's drafting, or None if this model cannot draft for it."""
        if not 0 < opened.max_tree_nodes < self._slots:
            return None
        if max(opened.token_ids) >= self._vocab_size:
            return None
        return DraftSpec(
            tokens=list(opened.token_ids),
            sampling=SamplingParams.read(opened.sampling, opened.sampling.seed),
            max_tree_nodes=opened.max_tree_nodes,
            max_length=opened.max_length,
            vocab_size=min(opened.vocab_size, self._vocab_size),
        )

    def knows(self, tokens: list[int]) -> bool:
        """Returns whether all ids are in the model's vocabulary."""
        return max(tokens) < self._vocab_size

    def close(self) -> None:
        """Ends the thread after its current step. Running requests continue without drafts."""
        self.thread.stop()
