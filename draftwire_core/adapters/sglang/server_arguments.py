"""SGLang's arguments, checked and completed for the algorithm, and the versions of SGLang that it fits."""

from __future__ import annotations

from typing import Any

from draftwire_core.adapters.sglang.settings import SglangSettings
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.settings import settings_from_environment

log = get_logger(__name__)

_DEVICES = ("cuda", "cpu", "xpu")
"""Devices on which SGLang verifies NGRAM's trees."""
_ROWS = 6
_RUNNING = 48
"""Most running requests unless the server's arguments say otherwise: SGLang's own for speculation."""
_UNUSED_CORPUS = 4096
"""Nodes of the corpus that SGLang's NGRAM worker allocates, and this algorithm never fills."""


def complete(server_args: Any) -> None:
    """Completes the arguments in place, as SGLang does for NGRAM. Raises ValueError for those that do not fit.

    Verified are chains where a tree would change output: with deterministic inference, in which the place of a token's
    keys decides the order of sums; and where a page of keys holds several tokens, for all attention but FlashInfer's.
    """
    _check(server_args)
    if server_args.device == "cpu":
        server_args.disable_overlap_schedule = True
    if server_args.max_running_requests is None:
        server_args.max_running_requests = _RUNNING
    server_args.enable_mixed_chunk = False
    server_args.speculative_ngram_capacity = _UNUSED_CORPUS
    if server_args.speculative_num_draft_tokens is None:
        server_args.speculative_num_draft_tokens = _ROWS
    rows = int(server_args.speculative_num_draft_tokens)
    if rows < 2:
        raise ValueError("--speculative-num-draft-tokens: at least 2, as the first row is the last committed token")
    why = _why_chains(server_args)
    if why:
        log.info("token trees disabled", because=why)
    # SGLang's kernels ask these whether the rows of a request are a chain; the number itself is not used further.
    server_args.speculative_eagle_topk = 1 if why else 2
    server_args.speculative_num_steps = rows - 1 if why else max(1, rows // 2)


def _check(server_args: Any) -> None:
    if server_args.device not in _DEVICES:
        raise ValueError(f"DRAFTWIRE: --device {server_args.device}: only {', '.join(_DEVICES)}")
    if server_args.pp_size != 1:
        raise ValueError("DRAFTWIRE: --pp-size: only 1")
    if server_args.enable_dp_attention:
        raise ValueError("DRAFTWIRE: --enable-dp-attention: not supported, as for NGRAM")
    if server_args.speculative_draft_model_path is not None:
        raise ValueError("DRAFTWIRE: --speculative-draft-model-path: drafters are services (DRAFTWIRE_SGLANG_DRAFTER)")
    if server_args.speculative_ngram_external_corpus_path is not None:
        raise ValueError("DRAFTWIRE: --speculative-ngram-external-corpus-path: for NGRAM only")


def _why_chains(server_args: Any) -> str:
    if not settings_from_environment(SglangSettings).trees:
        return "DRAFTWIRE_SGLANG_TREES=false"
    if server_args.enable_deterministic_inference:
        return "--enable-deterministic-inference"
    if (server_args.page_size or 1) > 1 and server_args.attention_backend != "flashinfer":
        return f"--page-size {server_args.page_size} with --attention-backend {server_args.attention_backend}"
    return ""


KNOWN = ("0.5.23",)
"""Versions whose interfaces the adapter was compared with (tests/draftwire_core/adapters/sglang/test_interface.py)."""


def unknown_version(version: str) -> str | None:
    """Returns what to warn of if the adapter was not compared with a version of SGLang; None if it was."""
    if any(version == known or version.startswith((f"{known}.", f"{known}+")) for known in KNOWN):
        return None
    return (
        f"SGLang {version} is unknown to draftwire_sglang, which fits {' and '.join(KNOWN)}: SGLang changes its "
        "workers between versions"
    )
