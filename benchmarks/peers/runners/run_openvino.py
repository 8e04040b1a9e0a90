"""OpenVINO GenAI: plain, with a draft model, EAGLE-3, prompt lookup; 16-bit weights, or 8-bit ones for information."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.runners.answering import Arrivals, Generate, answer
from benchmarks.peers.runners.eagle_export import exported_eagle


class _Streamer(openvino_genai.StreamerBase):
    def __init__(self, arrived: Arrivals) -> None:
        super().__init__()
        self._arrived = arrived

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        self._arrived(1 if isinstance(token, int) else len(token))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def _exported(model: str, weights: str, cache: str) -> Path:
    """Returns the model in OpenVINO's format, made once."""
    place = Path(cache) / f"{Path(model).name}-openvino-{weights}"
    if not place.exists():
        unfinished = place.with_name(f"{place.name}.{os.getpid()}")
        command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", model]
        command += ["--task", "text-generation-with-past", "--weight-format", weights, str(unfinished)]
        exported = subprocess.run(command, check=False, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if exported.returncode:
            print(exported.stderr, file=sys.stderr)
            raise RuntimeError(f"optimum-intel cannot export: {exported.stderr.strip().splitlines()[-1]}")
        unfinished.rename(place)
    return place


def _weight_types(place: Path) -> str:
    """Returns the types of constants and their share of the bytes, from the exported graph."""
    sizes: dict[str, int] = {}
    text = (place / "openvino_model.xml").read_text()
    for data in re.findall(r'<layer [^>]*type="Const"[^>]*>\s*<data ([^>]*)/>', text):
        kind, size = re.search(r'element_type="(\w+)"', data), re.search(r'size="(\d+)"', data)
        if kind and size:
            sizes[kind[1]] = sizes.get(kind[1], 0) + int(size[1])
    total = sum(sizes.values())
    return ", ".join(f"{kind} {size / total:.0%}" for kind, size in sizes.items() if size >= total / 100)


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Loads the models. Each method has its own process, since their pipelines differ."""
    method, isa = order["method"], order["setting"]["isa"]
    if isa != "any":
        os.environ["ONEDNN_MAX_CPU_ISA"] = isa  # read with the first pipeline
    weights = "int8" if "int8" in method else "fp16"
    target = _exported(order["target"], weights, order["cache"])
    # Without bfloat16 instructions it computes in float32, and refuses another type of keys and values then.
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision = "bf16" if "BF16" in capabilities and isa != "AVX2" else "f32"
    properties = {
        "INFERENCE_NUM_THREADS": order["threads"],
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the process is pinned already
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
    }
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    options: dict[str, Any] = {"scheduler_config": scheduler, **properties}
    if method == "draft model":
        draft = _exported(order["draft"], weights, order["cache"])
        options["draft_model"] = openvino_genai.draft_model(str(draft), "CPU", **properties)
    if method == "EAGLE-3":
        eagle = exported_eagle(order["eagle"], order["target"], order["cache"])
        options["draft_model"] = openvino_genai.draft_model(str(eagle), "CPU", **properties)
    if method == "prompt lookup":
        options["prompt_lookup"] = True
    pipeline = openvino_genai.LLMPipeline(str(target), "CPU", **options)

    def generate(prompt: list[int], max_tokens: int, setting: dict[str, Any], arrived: Arrivals) -> list[int]:
        drafting = {name: value for name, value in setting.items() if name != "isa"}
        config = openvino_genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False, apply_chat_template=False, **drafting
        )
        given = pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), config, _Streamer(arrived))
        return list(given.tokens[0])

    return generate, f"weights {_weight_types(target)}; arithmetic and KV cache {precision}"


if __name__ == "__main__":
    answer(load)
