"""vLLM's arguments, and the variables of the drafter pool that runs inside it, from the verifier's settings."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwire_core.adapters.common.settings import EngineAdapterSettings
from draftwire_core.runtime.process.startup_error import StartupError
from verifier_service.settings import VerifierSettings

POOL_PREFIX = "DRAFTWIRE_VLLM_"
"""Beginning of the names of the pool's variables."""
SPECULATIVE = {"method": "custom_class", "model": "draftwire_vllm.RemoteDrafter", "num_speculative_tokens": 5}
"""vLLM's speculative configuration with draftwire's pool."""
WORKER = "draftwire_vllm.worker.Worker"
MOST_ALTERNATIVES = 64
"""Most likeliest tokens that the contract reports at a position."""

_TAKEN = {
    "model": "--model of the verifier names it",
    "tokenizer": "the verifier reads the target's own",
    "revision": "tokenizer and fingerprint would be another revision's: name the directory of this one by --model",
    "tokenizer_revision": "the verifier reads the target's own",
    "skip_tokenizer_init": "output formats need it",
    "worker_cls": "the drafter pool needs draftwire's",
    "trust_remote_code": "--trust-remote-code of the verifier says it",
    "generation_config": "requests say all of it",
    "logprobs_mode": "the contract has log-probabilities of the target's own logits",
    "disable_log_stats": "GetModelInfo and metrics need the statistics",
    "data_parallel_size": "each engine would have a pool of its own: start a verifier for each, behind one gateway",
}
"""vLLM's arguments that the verifier sets, by name, with the reason for a refusal."""
_OUTSIDE = frozenset({"listen", "metrics_listen", "drafter", "tls_cert", "tls_key", "tls_client_ca", "reflection"})
"""Settings of the verifier that its pool inside vLLM does not share."""


def engine_arguments(settings: VerifierSettings, parser: Any, kind: Any) -> tuple[Any, dict[str, str]]:
    """Returns vLLM's AsyncEngineArgs, the class `kind`, from the settings, and the paths of LoRA adapters by name.

    parser: vLLM's, with the arguments of this class. Raises StartupError for one that the verifier itself sets, and
    SystemExit as vLLM's parser does.
    """
    parser.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH")  # of vLLM's own server
    given = parser.parse_args(shlex.split(settings.engine_arguments))
    adapters = dict(each.partition("=")[::2] for each in given.lora_modules)
    if not all(map(all, adapters.items())) or len(adapters) < len(given.lora_modules):
        raise StartupError(
            f"--lora-modules after --: expected NAME=PATH with different names, got {' '.join(given.lora_modules)}"
        )
    for name, reason in _TAKEN.items():
        if getattr(given, name) != parser.get_default(name):
            raise StartupError(f"--{name.replace('_', '-')} after --: not with a verifier, because {reason}")
    asked = dict(given.speculative_config or {})
    if unknown := sorted(asked.keys() - {"num_speculative_tokens"}):
        raise StartupError(
            "--speculative-config after --: may only set num_speculative_tokens, because drafters are draftwire's; "
            f"got {', '.join(unknown)}"
        )
    given.model = str(Path(settings.model.removeprefix("hf://")).expanduser())  # which vLLM does not expand
    given.speculative_config = SPECULATIVE | asked
    given.worker_cls = WORKER
    given.trust_remote_code = settings.trust_remote_code
    given.generation_config = "vllm"
    given.per_request_spec_decode_metrics = "summary"
    given.max_logprobs = max(given.max_logprobs, MOST_ALTERNATIVES)
    if given.max_num_seqs is None:
        given.max_num_seqs = settings.max_sequences
    given.enable_lora = given.enable_lora or bool(adapters)
    return kind.from_cli_args(given), adapters


def pool_variables(settings: VerifierSettings, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables of the pool's process: settings of the verifier that are the pool's as well, and a port of
    the loopback interface. Variables of the pool that are set already are kept. Raises StartupError."""
    if settings.tls_client_ca and not settings.accepted_tokens:
        raise StartupError(
            "--tls-client-ca: --engine vllm requires --accepted-tokens, too: the pool has a port of its own on this "
            "host, which tokens alone protect"
        )
    shared = (EngineAdapterSettings.model_fields.keys() & settings.model_fields_set) - _OUTSIDE
    found = {name: getattr(settings, name) for name in shared if not name.startswith("trace_")}
    found["drafter"] = settings.drafter
    if settings.tls_ca and not settings.tls_client_cert:  # drafters are shown the verifier's own
        found |= {"tls_client_cert": settings.tls_cert, "tls_client_key": settings.tls_key}
    variables = {POOL_PREFIX + name.upper(): _text(value) for name, value in found.items() if value is not None}
    fixed = {f"{POOL_PREFIX}LISTEN": "127.0.0.1:0", f"{POOL_PREFIX}COUPLED_SAMPLING": "true"}
    own = {name: value for name, value in environment.items() if name.startswith(POOL_PREFIX)}
    return variables | own | fixed


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)
