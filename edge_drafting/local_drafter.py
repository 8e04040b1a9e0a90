"""A draft model of this process, loaded, tested and ready to draft."""

from __future__ import annotations

from draftwire.v1 import verifier_service_pb2 as pb
from edge_drafting.draft_thread import DraftThread
from speculative_engine.checkpoint.checkpoint import Checkpoint
from speculative_engine.drafters.drafter import DraftSpec
from speculative_engine.drafters.model.draft_model import DraftModelDrafter
from speculative_engine.drafters.tree_growth import TreeGrowth
from speculative_engine.kernels.cpu_threads import set_cpu_threads
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.loading.step_timing import measure_step_cost
from speculative_engine.model.packed_model import PackedModel, Weights
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.text.tokenizer import Tokenizer


class LocalDrafter:
    """Drafts for the requests of one or more edge clients, all in one batch. Close it after them."""

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
            model: directory or hub id of the draft model; its tokenizer has to be the target's.
            dtype: weight type: float32, bfloat16, float16, or auto, which takes bfloat16 where the device computes
                in it.
            weights: what linear layers keep: "checkpoint", weights as dtype says, or "int8", 8-bit integers with one
                scale for each output, in bfloat16 on a CPU only.
            device: device the model runs on: cpu or cuda.
            threads: CPU threads of a forward pass; as many as torch finds cores by default.
            kv_slots: tokens that the KV cache holds, over all requests.
            trust_remote_code: run model code that comes with the checkpoint.

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
        self._longest = min(loaded.context_length, kv_slots)
        self.thread = DraftThread(
            DraftModelDrafter(loaded, TreeGrowth(measure_step_cost(loaded))),
            prepare=lambda: None if threads is None else set_cpu_threads(threads),
        )
        """The thread that drafts."""

    @property
    def alive(self) -> bool:
        """False once it was closed or has failed."""
        return self.thread.alive

    def spec(self, opened: pb.VerifyOpened) -> DraftSpec | None:
        """Returns what to draft for a request, or None when this model cannot follow it."""
        longest = self._longest - opened.max_tree_nodes
        if not opened.max_tree_nodes or len(opened.token_ids) > longest:
            return None
        if max(opened.token_ids) >= self._vocab_size:
            return None
        return DraftSpec(
            tokens=list(opened.token_ids),
            sampling=SamplingParams.read(opened.sampling, opened.sampling.seed),
            max_tree_nodes=opened.max_tree_nodes,
            max_length=min(opened.max_length, longest),
            vocab_size=min(opened.vocab_size, self._vocab_size),
        )

    def knows(self, tokens: list[int]) -> bool:
        """True when the model has all the ids."""
        return max(tokens) < self._vocab_size

    def close(self) -> None:
        """Ends the thread after the step it is at. Requests that run go on without drafts."""
        self.thread.stop()
