"""Settings of the verifier service."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from draftwire_core.engine.device.choices import Kernels, KvDtype, TargetWeights
from draftwire_core.engine.planning.pace import PLAIN_SHARE
from draftwire_core.runtime.process.address import ListenAddress
from draftwire_core.runtime.process.rank_settings import RankSettings
from draftwire_core.runtime.process.settings import StringList

AUTO = "auto"
"""The drafter that stands for those that are chosen by the target's files."""
_CHOSEN_AT_ONCE = 2
"""Chosen drafters that draft for a request at once: one with a model, and lookup."""
LEAST_SLOTS = 256
"""Fewest KV slots: a request with its tree."""
_SHORTEST_REQUEST = 2
"""Tokens of a request with one of prompt and one of output."""
_ENGINES_OWN = frozenset(
    {
        "preflight",
        "dtype",
        "weights",
        "kv_dtype",
        "cuda_graphs",
        "reproducible",
        "allow_slow_layers",
        "threads",
        "kernels",
        "max_step_rows",
        "plain_share",
        "prefix_cache",
        "trusted_drafter",
        "allow_hub_models",
        "allow_scoring",
        "device",
        "kv_slots",
        "context_length",
        "gpu_memory_utilization",
        "tensor_parallel",
        "tensor_parallel_timeout_seconds",
    }
)
"""Settings of the engine of this package, which vLLM has not or has under names of its own."""


def with_engine_arguments(argv: Sequence[str]) -> list[str]:
    """Returns a command line in which the arguments after -- are the value of --engine-arguments."""
    own = list(argv)
    if "--" not in own:
        return own
    place = own.index("--")
    return [*own[:place], f"--engine-arguments={shlex.join(own[place + 1 :])}"]


class VerifierSettings(RankSettings):
    """Serves a target model: generates text, verifies the proposals of drafters, and manages the drafter pool."""

    preflight: bool = False
    """Find out whether this machine can serve the model with these settings, without loading it: print yes or no with
    the reasons, and end with status 0 or 1."""
    listen: ListenAddress = "127.0.0.1:50051"
    """Address to serve gRPC on, HOST:PORT. Port 0 picks a free one; the log says which."""
    model: str
    """The target model: a directory, a GGUF file or a Hugging Face hub id."""
    engine: Literal["draftwire", "vllm"] = "draftwire"
    """Engine that runs the target: the one of this package, or vLLM's AsyncLLM."""
    engine_arguments: str = ""
    """vLLM's own arguments, as a shell would split them; on the command line they may stand at the end, after --."""
    drafter: StringList = ()
    """Drafter to attach at start: HOST:PORT of a service, local:NAME inside the verifier, or auto, which chooses by the
    target's files; may be repeated."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Weight type; auto takes bfloat16 where the device computes in it, float32 elsewhere."""
    weights: TargetWeights = "checkpoint"
    """Format of the linear layers' weights: as --dtype says, or blocks of 8 or 4 bits; these need bfloat16."""
    kv_dtype: KvDtype = "auto"
    """Type of keys and values in the KV cache: auto takes that of the model, and float16 for GGUF files on CPUs; or
    q8_0, 8-bit integers in blocks of 32 with a scale each, or (CPU only) float16."""
    cuda_graphs: bool = True
    """Capture steps of the usual sizes as CUDA graphs at load; otherwise their kernels are launched one by one."""
    reproducible: bool = False
    """On GPUs, refuse a model whose rows are not batch-invariant there: bits that depend on the rest of the batch."""
    allow_slow_layers: bool = False
    """On GPUs, serve a model also if Triton kernels cannot run it, by plain passes: several times slower, and not
    batch-invariant to the bit. Otherwise it is refused, with the reason."""
    threads: int = Field(default=0, ge=0)
    """CPU threads of the model; 0 leaves the choice to torch."""
    kernels: Kernels = "auto"
    """Kernels used on a CPU: auto takes the fastest that the processor can run, torch does without the library."""
    max_sequences: int = Field(default=64, ge=1)
    """Most requests that run at once; further ones wait."""
    max_waiting: int = Field(default=256, ge=0)
    """Most requests that wait for room; more are refused."""
    max_wait_seconds: float = Field(default=60.0, ge=0)
    """Longest expected wait before a request's prompt is computed; beyond it is refused. 0 sets no limit."""
    max_requests_per_peer: int = Field(default=0, ge=0)
    """Most requests of one caller (its token, or else its host) that run, wait or are being read. 0 sets no limit."""
    max_tokens_per_peer: int = Field(default=0, ge=0)
    """Most tokens of one caller's running and waiting requests, at their greatest lengths. 0 sets no limit."""
    max_step_rows: int | None = Field(default=None, ge=8)
    """Most tokens of one forward pass: prompt chunks, last tokens and nodes together. At least --max-sequences. By
    default 1024 on the kernels of GPUs and 256 elsewhere, or --max-sequences."""
    max_tree_nodes: int = Field(default=64, ge=1, le=256)
    """Most live nodes of one drafter in a request's token tree."""
    plain_share: float = Field(default=PLAIN_SHARE, ge=0, le=1)
    """Share of its plain speed that a request keeps next to the drafts of others. 0 plans steps for the most tokens in
    total."""
    prefix_cache: bool = True
    """Compute shared beginnings of prompts once: keep the KV slots of earlier requests until others need them."""
    max_drafters: int = Field(default=64, ge=1)
    """Most drafters attached at once; more are refused."""
    drafters_per_request: int = Field(default=1, ge=1)
    """Drafters that draft for a request at once, into its one token tree, unless the request says otherwise."""
    trusted_drafter: StringList = ()
    """HOST:PORT of a drafter that is trusted to report its draft distributions truthfully; may be repeated."""
    announced_host: StringList = ()
    """Host that drafters may announce: a name, *.DOMAIN, an address or a network; may be repeated. Default: any."""
    chat_template: str | None = Field(default=None, min_length=1)
    """File with the chat template (Jinja) to use in place of the checkpoint's own."""
    trust_remote_code: bool = False
    """Run model code that comes with the checkpoint. Only for checkpoints you trust."""
    allow_hub_models: bool = False
    """Allow callers to name models by hub id (local:draft?model=OWNER/NAME). Otherwise only the operator may."""
    allow_scoring: bool = False
    """Let callers ask for the target's likeliest tokens along a text (Score), for training draft models."""
    share_traffic: bool = False
    """Let callers follow the tokens of every finished request (FollowTraffic): all clients' prompts and outputs,
    except private ones, and the target's likeliest tokens."""

    @property
    def named_drafters(self) -> tuple[str, ...]:
        """The drafters to attach at start, without AUTO."""
        return tuple(each for each in self.drafter if each != AUTO)

    @property
    def drafters_at_once(self) -> int:
        """How many drafters draft for a request at once, in so far as the request does not say it."""
        if AUTO in self.drafter and self.place("drafters_per_request") is None:
            return _CHOSEN_AT_ONCE
        return self.drafters_per_request

    @model_validator(mode="after")
    def _engine_has_them(self) -> Self:
        if self.engine == "draftwire":
            if self.engine_arguments:
                raise ValueError("--engine-arguments: requires --engine vllm; this engine has flags only")
            return self
        try:
            shlex.split(self.engine_arguments)
        except ValueError as error:
            raise ValueError(f"--engine-arguments: {error}, got {self.engine_arguments!r}") from error
        if wrong := sorted(self.model_fields_set & _ENGINES_OWN):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
            raise ValueError(f"{flags}: not with --engine vllm, whose own arguments follow --")
        if AUTO in self.drafter:
            raise ValueError("--drafter: auto requires --engine draftwire; name drafters by HOST:PORT")
        return self

    @model_validator(mode="after")
    def _weights_are_possible(self) -> Self:
        if self.weights == "checkpoint":
            return self
        if self.dtype not in ("auto", "bfloat16"):
            raise ValueError(f"--weights: {self.weights} requires --dtype bfloat16, got {self.dtype}")
        if self.tensor_parallel > 1:
            raise ValueError(f"--tensor-parallel: --weights {self.weights} cannot be split")
        return self

    @model_validator(mode="after")
    def _slots_hold_a_request(self) -> Self:
        if 0 < self.kv_slots < LEAST_SLOTS:
            raise ValueError(f"--kv-slots: must be 0 or at least {LEAST_SLOTS}, got {self.kv_slots}")
        if 0 < self.kv_slots < self.least_slots:
            raise ValueError(
                f"--kv-slots: must be at least {self.least_slots} with --max-tree-nodes {self.max_tree_nodes}, so that "
                f"a request fits next to its tree, got {self.kv_slots}"
            )
        return self

    @property
    def least_slots(self) -> int:
        """Fewest KV slots with which a request fits next to its tree."""
        return max(LEAST_SLOTS, self.max_tree_nodes + _SHORTEST_REQUEST)

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

    @model_validator(mode="after")
    def _steps_hold_all_sequences(self) -> Self:
        if self.max_step_rows is not None and self.max_step_rows < self.max_sequences:
            raise ValueError(
                f"--max-step-rows: must be at least --max-sequences ({self.max_sequences}), got {self.max_step_rows}"
            )
        return self
