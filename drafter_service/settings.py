"""Settings of the drafter service."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from drafter_service.verifiers.shares import parse_weights
from draftwire_core.engine.device.choices import KvDtype, Weights
from draftwire_core.runtime.process.address import Address, ListenAddress, PeerAddress
from draftwire_core.runtime.process.rank_settings import RankSettings
from draftwire_core.runtime.process.settings import PeerAddresses, StringList, Variable

LEAST_SLOTS = 64
"""Fewest KV slots."""
_WILDCARDS = ("0.0.0.0", "::")


class DrafterSettings(RankSettings):
    """Drafts for verifiers with a small model."""

    model: str = ""
    """The draft model: a directory, a GGUF file or a Hugging Face hub id; or an EAGLE-3 checkpoint, for which verifiers
    send features. Required without --medusa-heads."""
    listen: ListenAddress = "127.0.0.1:50052"
    """Address to serve gRPC on, HOST:PORT. Port 0 picks a free one; the log says which."""
    verifier: Annotated[PeerAddresses, Variable("ANNOUNCE_TO")] = ()
    """Verifier to announce this drafter to, HOST:PORT; may be repeated. Without it, a verifier must be given the
    drafter's address."""
    name: str | None = Field(default=None, min_length=1)
    """Name under which the drafter announces itself; its address by default."""
    advertise: PeerAddress | None = None
    """Address at which the verifier reaches this drafter, if it is not the one it listens on."""
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "auto"
    """Weight type; auto takes bfloat16 where the device computes in it, float32 elsewhere."""
    weights: Weights = "checkpoint"
    """Format of the linear layers' weights: as --dtype says; 8-bit integers; (GPU only) 4-bit integers; or blocks
    of 8 or 4 bits, q8_0 and q4_0. All but the first need bfloat16."""
    kv_dtype: KvDtype = "auto"
    """Type of keys and values in the KV cache: auto takes that of the model, and float16 for GGUF files on CPUs; or
    q8_0, 8-bit integers in blocks of 32 with a scale each, or (CPU only) float16."""
    layers: int | None = Field(default=None, ge=1)
    """Draft with only this many first layers of the model, e.g. of the target's checkpoint; others are not loaded."""
    cuda_graphs: bool = True
    """Capture steps of the usual sizes as CUDA graphs at load; otherwise their kernels are launched one by one."""
    reproducible: bool = False
    """On GPUs, refuse a model whose rows are not batch-invariant there: bits that depend on the rest of the batch."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of a forward pass; by default as many as torch finds cores."""
    max_sequences: int = Field(default=64, ge=1)
    """Most open sequences of one verifier."""
    max_streams: int = Field(default=64, ge=1)
    """Most verifiers at once, that is, open Draft streams; more are refused."""
    verifier_weight: StringList = ()
    """Weight of a verifier's share, NAME=WEIGHT, 1 if not given; NAME is its token's name or its host."""
    stream_idle_seconds: float = Field(default=60.0, ge=0)
    """Time after which a verifier that has sent nothing at all is given up, in seconds; 0 waits for ever."""
    max_tree_nodes: int = Field(default=64, ge=1)
    """Most live nodes in the token tree of one sequence."""
    target_tokenizer: str | None = Field(default=None, min_length=1)
    """Directory, GGUF file or hub id of the target's tokenizer, to translate drafts if the draft model has another one;
    an EAGLE-3, P-EAGLE or DFlash checkpoint has the target's, and needs no translation."""
    trust_remote_code: bool = False
    """Run model code that comes with the checkpoint of --model; never of models that LoadModel names."""

    allow_hub_models: bool = False
    """Allow LoadModel to name models by hub id. Otherwise it may name only directories of this machine."""
    medusa_heads: str = ""
    """Directory of Medusa heads to draft with instead of a draft model. Verifiers then send hidden states."""

    target: str | None = Field(default=None, min_length=1)
    """Directory or hub id of the target, if an EAGLE-3, P-EAGLE or DFlash checkpoint lacks embedding, output head or
    layer numbers: only these are read there, and its tokenizer."""
    mtp: bool = False
    """Draft with the multi-token prediction layer in --model, the target's own checkpoint, of which little else is
    read. Verifiers then send features."""
    feature_dtype: Literal["auto", "bfloat16", "float16", "float32", "int8"] = "auto"
    """Type in which verifiers send features; auto takes that of the weights. In int8 an element is off by at most 1/254
    of the largest in its vector."""
    feature_window: int = Field(default=0, ge=0)
    """Last tokens of a text whose features the drafter reads when it begins; 0 for all that it can use."""

    @property
    def cpu_only(self) -> str:
        """The flags given here that need a CPU; empty if there is none."""
        return f"--kv-dtype {self.kv_dtype}" if self.kv_dtype == "float16" else ""

    def check_device(self) -> None:
        """Checks the settings that depend on the device.

        Raises:
            ValueError: the device cannot do it; the message begins with the flag.
        """
        super().check_device()
        if self.kv_dtype == "float16" and self.device != "cpu":
            raise ValueError(f"--kv-dtype: {self.kv_dtype} requires --device cpu, got {self.device}")
        if self.weights == "int4" and self.device == "cpu":
            raise ValueError("--weights: int4 requires --device cuda, got cpu")

    def with_hub_models(self) -> Self:
        """Returns these settings for a model that the operator names, which may always be a hub id."""
        return self.model_copy(update={"allow_hub_models": True})

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if bool(self.model) == bool(self.medusa_heads):
            problem = (
                "cannot be combined with --medusa-heads" if self.model else "required unless --medusa-heads is given"
            )
            raise ValueError(f"--model: {problem}")
        try:
            parse_weights(self.verifier_weight)
        except ValueError as error:
            raise ValueError(f"--verifier-weight: {error}") from error
        if len(set(self.verifier)) < len(self.verifier):
            raise ValueError(f"--verifier: an address is given twice: {', '.join(self.verifier)}")
        if self.verifier and not self.advertise and Address.parse(self.listen).host in _WILDCARDS:
            raise ValueError(
                f"--advertise: required with --verifier, because {self.listen} is not an address that others can call"
            )
        if 0 < self.kv_slots < LEAST_SLOTS:
            raise ValueError(f"--kv-slots: must be 0 or at least {LEAST_SLOTS}, got {self.kv_slots}")
        if 0 < self.kv_slots <= self.max_tree_nodes:
            raise ValueError(f"--kv-slots: must exceed --max-tree-nodes, {self.max_tree_nodes}, got {self.kv_slots}")
        if self.mtp and (self.medusa_heads or self.tensor_parallel > 1):
            raise ValueError("--mtp: cannot be combined with --medusa-heads or --tensor-parallel")
        if self.medusa_heads and self.weights != "checkpoint":
            raise ValueError(f"--weights: {self.weights} applies to draft models, not to --medusa-heads")
        if self.weights != "checkpoint" and self.dtype not in ("bfloat16", "auto"):
            raise ValueError(f"--weights: {self.weights} requires --dtype bfloat16, got {self.dtype}")
        if self.kv_dtype != "auto" and self.medusa_heads:
            raise ValueError(f"--kv-dtype: {self.kv_dtype} applies to draft models, not to --medusa-heads")
        if self.tensor_parallel > 1:
            if self.medusa_heads:
                raise ValueError("--tensor-parallel: --medusa-heads cannot be split")
            if self.weights != "checkpoint":
                raise ValueError(f"--tensor-parallel: --weights {self.weights} cannot be split")
        return self
