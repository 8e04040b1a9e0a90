"""Checks of a device: its noise and sampling against the CPU's, captured steps against others, batch invariance."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence

import torch

from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.steps import copied_bytes_per_second, logits_in_chunks, milliseconds, seconds
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.device_sampler import draw
from draftwire_core.engine.sampling.gumbel import block_maxima
from draftwire_core.engine.sampling.kernel_sampler import KernelsUnusableError, usable_sampler
from draftwire_core.engine.sampling.philox import philox4x32
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import StepDraws

CHUNKS = (8, 64)
"""Batch sizes at which a row's logits are compared with those that it has alone."""
SAMPLED_ROWS = 64
_QUERIES = "driver_version,power.limit,clocks.max.sm,clocks.max.mem"


def device_figures(device: torch.device, runs: int) -> Iterator[Figures]:
    """Describes the device and measures its memory bandwidth."""
    size = 1 << 26
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        yield {
            "device": f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {about.multi_processor_count} processors, "
            f"compute capability {about.major}.{about.minor}, CUDA {torch.version.cuda}"
        }
        if tool := shutil.which("nvidia-smi"):
            command = [tool, f"--query-gpu={_QUERIES}", "--format=csv,noheader"]
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            yield {"driver, power limit, highest clocks": answer.stdout.strip() or answer.stderr.strip()}
        size = 1 << 31
    else:
        yield {"device": "a CPU: this tries the code, and says nothing of GPUs"}
    yield {"memory GB/s, copying": round(copied_bytes_per_second(device, size, runs) / 1e9, 1)}


def noise_figures(device: torch.device) -> Iterator[Figures]:
    """Compares the device's hash with the CPU's bits, and its noise with the CPU's values."""
    counters = torch.arange(1 << 16)
    words = (counters, counters * 7919 & 0xFFFFFFFF, counters * 0, counters * 0 + 1)
    key = (counters * 104729 & 0xFFFFFFFF, counters * 0 + 3)
    there = philox4x32(tuple(each.to(device) for each in words), tuple(each.to(device) for each in key))
    equal = all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(there, philox4x32(words, key), strict=True))
    yield {"hash has the CPU's bits": equal}
    seeds, positions = torch.arange(64) * 7919, torch.arange(64)
    host = block_maxima(seeds, positions, 2048)
    differ = (block_maxima(seeds.to(device), positions.to(device), 2048).cpu() != host).float().mean().item()
    yield {"noise values that differ in a bit": f"{differ:.3g} of {host.numel()}"}


def sampling_figures(device: torch.device, vocabulary: int, runs: int) -> Iterator[Figures]:
    """Times drawing without synchronising against drawing with it, from a vocabulary of the given size."""
    generator = torch.Generator(device).manual_seed(1)
    logits = 4 * torch.randn(SAMPLED_ROWS, vocabulary, device=device, generator=generator)
    batch = SamplingBatch.build(
        [SamplingParams(temperature=row % 4 / 2, seed=row) for row in range(SAMPLED_ROWS)], range(SAMPLED_ROWS), device
    )
    expected = sample(logits, batch).token_ids
    token_ids, settled = draw(logits, batch)
    name = f"sampling {SAMPLED_ROWS} rows of {vocabulary}"
    yield {
        f"{name}: both ways alike": torch.equal(token_ids[settled], expected[settled]),
        f"{name}: settled without asking": round(settled.float().mean().item(), 4),
    }
    yield {f"{name}: ms": milliseconds(seconds(lambda: draw(logits, batch), device, runs))}
    yield {f"{name}: ms, asking": milliseconds(seconds(lambda: sample(logits, batch), device, runs))}
    try:
        sampler = usable_sampler(device)
    except KernelsUnusableError as error:
        yield {f"{name}: kernels": str(error)}
        return
    on_host = batch.to("cpu")
    numbers = StepDraws.of_roots(on_host).numbers().to(device)
    drawn = sampler.draw(logits, numbers)[0].cpu()
    yield {f"{name}: kernels draw the CPU's tokens": torch.equal(drawn.long(), sample(logits.cpu(), on_host).token_ids)}
    yield {f"{name}: ms, kernels": milliseconds(seconds(lambda: sampler.draw(logits, numbers), device, runs))}


def flip_figures(name: str, model: PackedModel, texts: Sequence[Sequence[int]]) -> Iterator[Figures]:
    """Returns how often a row in a batch differs from the same row alone."""
    alone = [logits_in_chunks(model, text, 1) for text in texts]
    count = sum(map(len, texts))
    for chunk in CHUNKS:
        beside = [logits_in_chunks(model, text, chunk) for text in texts]
        pairs = list(zip(beside, alone, strict=True))
        bits = sum(int((ours != theirs).any(1).sum()) for ours, theirs in pairs)
        flips = sum(int((ours.argmax(1) != theirs.argmax(1)).sum()) for ours, theirs in pairs)
        yield {
            f"{name}: rows that differ in a bit beside {chunk - 1} others": f"{bits} of {count}",
            f"{name}: greedy tokens that flip beside {chunk - 1} others": f"{flips} of {count}",
        }
