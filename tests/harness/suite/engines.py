"""The engine behind the contract: with DRAFTWIRE_TEST_ENGINE=vllm the tests of whole services start verifiers on vLLM.

`make test-vllm` sets it. `LEFT_OUT` says which of `tests/end_to_end` are left out then, and why.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch

import pytest

ON_VLLM = os.environ.get("DRAFTWIRE_TEST_ENGINE") == "vllm"
"""Whether verifiers run on vLLM."""

_LOCAL = "drafters in the verifier (local:) are not there on vLLM"
_BITS = "log-probabilities with equal bits, which vLLM does not promise"
_NAMES = "names of the drafters of accepted tokens, which vLLM does not tell"
_TREES = "callers that draft, whose token trees vLLM does not verify"
_OWN = "numerics, files or settings of the verifier's own engine"
_NO_VERIFIER = "no verifier takes part, or one that the test starts itself"
_FEATURES = "hidden states are not there under vLLM's runner V1"
LEFT_OUT = {
    "test_edge.py*": _TREES,
    "test_announcing.py::test_it_comes_and_takes_its_leave": _NAMES,
    "test_buf_curl.py::test_verify": _TREES,
    "test_bad_input.py::test_a_request_is_acknowledged_before_it_is_read": _TREES,
    "test_secured_chain.py::TestACallerThatDrafts*": _TREES,
    **dict.fromkeys(("test_request_matrix.py::test_choices*", "test_told.py::test_the_same_bits*"), _BITS),
    "test_invariance.py*": "predictions, and drafters in the verifier; benchmarks.peers.vllm_law has the law",
    **dict.fromkeys(
        (
            "test_bench.py*",
            "test_chosen_drafters.py*",
            "test_early_exit.py*",
            "test_hub_models.py*",
            "test_interruption.py*",
            "test_learning.py*",
            "test_overload.py::test_who_leaves*",
            "test_overload.py::TestManyCallers*",
            "test_request_matrix.py::*n-gram*",
            "test_request_matrix.py::test_speculation_goes_on_beside*",
            "test_secured_chain.py::test_roles",
            "test_serve.py*",
            "test_structured_output.py::test_the_same_value*",
            "test_top.py*",
        ),
        _LOCAL,
    ),
    **dict.fromkeys(
        (
            "test_calibrate.py*",
            "test_check.py*",
            "test_gguf.py*",
            "test_hybrid.py*",
            "test_kv_dtype.py*",
            "test_large_texts.py::TestManyAtOnce*",
            "test_llama_quantiser.py*",
            "test_numerics.py*",
            "test_prefix_cache.py*",
            "test_prometheus.py*",
            "test_quantised.py*",
            "test_real_models.py*",
            "test_refresh.py*",
            "test_signals_while_loading.py*",
            "test_structured_output.py::test_jump_ahead*",
            "test_tensor_parallel.py*",
            "test_told.py::test_they_are*",
        ),
        _OWN,
    ),
    **dict.fromkeys(("test_features.py*", "test_vllm_features.py*"), _FEATURES),
    **dict.fromkeys(
        (
            "test_check_drafter.py*",
            "test_compiled_library.py*",
            "test_demo.py*",
            "test_documents.py*",
            "test_fuzz*",
            "test_many_engines.py*",
            "test_no_torch_client.py*",
            "test_typescript.py*",
        ),
        _NO_VERIFIER,
    ),
}
"""Why tests are left out, by patterns of their names."""


class Engines:
    """The plugin that leaves these out."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Marks them as skipped, with the reason."""
        if not ON_VLLM:
            return
        for item in items:
            for pattern, reason in LEFT_OUT.items():
                if fnmatch(item.nodeid, f"tests/end_to_end/{pattern}"):
                    item.add_marker(pytest.mark.skip(reason=f"on vLLM: {reason}"))
