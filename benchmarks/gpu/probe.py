"""Measures what a GPU's step times depend on: small kernels, copies, products, gathers, attention, sampling.

    python -m benchmarks.gpu.probe [DEVICE]

Prints one JSON object a finding, as soon as it is found; a part that fails is reported, and the others go on. Only the
part on sampling needs the repository, the others torch alone. "cpu" as the device runs the same code at toy sizes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import torch
from torch.nn.functional import linear

from benchmarks.gpu.device import usable_device
from benchmarks.gpu.graph_timing import microseconds

HALF = torch.bfloat16
_CAPTURED_CALLS = 20


@dataclass(frozen=True)
class Sizes:
    """The sizes of what is measured."""

    copied: int = 1 << 30
    """Elements of 2 bytes."""
    weights: Sequence[tuple[int, int]] = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
    """Outputs and inputs of products: those of Llama 3.1 8B, with q, k, v and gate, up in one product each."""
    weight_bytes: int = 300_000_000
    """Bytes of different weights that are multiplied by turns: a single one would stay in the second-level cache."""
    slots: int = 65_537
    gathered: Sequence[int] = (1024, 4096, 16384, 65536)
    """Keys."""
    contexts: Sequence[int] = (512, 4096, 32768)
    vocabulary: int = 128_256
    runs: int = 5


TOY = Sizes(1 << 20, ((64, 64),), 0, 257, (64,), (512,), 4096, 1)
"""Sizes that try the code on a CPU."""


def report(name: str, **found: object) -> None:
    """Prints a finding."""
    print(json.dumps({"probe": name, **found}), flush=True)


class Probe:
    """The parts, on one device."""

    def __init__(self, device: torch.device, sizes: Sizes):
        self._device = device
        self._cuda = device.type == "cuda"
        self._sizes = sizes

    def run(self) -> None:
        """Runs all parts."""
        for part in (
            self.versions,
            self.copying,
            self.small_kernels,
            self.copies_to_the_device,
            self.products,
            self.gathers,
            self.attention,
            self.sampling,
            self.outer_product,
        ):
            try:
                part()
            except Exception as error:  # noqa: BLE001 - the next part may still find something
                report(part.__name__, error=f"{type(error).__name__}: {str(error)[:300]}")

    def versions(self) -> None:
        """Reports versions, and what torch's attention for sequences of any lengths takes."""
        from torch.nn.attention.varlen import varlen_attn

        report(
            "versions",
            torch=torch.__version__,
            cuda=torch.version.cuda,
            device=torch.cuda.get_device_name() if self._cuda else "cpu",
            gcc=shutil.which("gcc"),
            varlen_attn=list(inspect.signature(varlen_attn).parameters),
            # Whether torch replaces some of its kernels by ones that it compiles at their first call.
            native_bmm=any(name.startswith("torch._native.ops") and "bmm" in name for name in sys.modules),
        )

    def copying(self) -> None:
        """Measures the memory bandwidth: bytes read and written by a copy."""
        source = torch.empty(self._sizes.copied, dtype=HALF, device=self._device)
        target = torch.empty_like(source)
        taken = self._microseconds(lambda: target.copy_(source), calls=5)
        report("copy", gigabytes_per_second=round(2 * source.nbytes / taken / 1e3))

    def small_kernels(self) -> None:
        """Measures a kernel that does next to nothing, as one of many in a graph."""
        row = torch.zeros(4096, device=self._device)

        def add() -> None:
            for _ in range(100):
                row.add_(1)

        report("small kernel in a graph", microseconds=round(self._microseconds(add, calls=10) / 100, 2))

    def copies_to_the_device(self) -> None:
        """Compares copies of 32 KB from pageable and from pinned memory."""
        if not self._cuda:
            return
        host = torch.zeros(4096, dtype=torch.int64)
        there = host.to(self._device)
        for kind, source in (("pageable", host), ("pinned", host.pin_memory())):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(200):
                there.copy_(source, non_blocking=kind == "pinned")
            torch.cuda.synchronize()
            report("32 KB to the device", memory=kind, microseconds=round(5e3 * (time.perf_counter() - started), 1))

    def products(self) -> None:
        """Measures products by weights of a model, and whether the first row has the bits that it has alone."""
        for outputs, inputs in self._sizes.weights:
            size = 2 * outputs * inputs
            weights = [
                torch.randn(outputs, inputs, device=self._device, dtype=HALF)
                for _ in range(max(1, self._sizes.weight_bytes // size))
            ]
            turns = cycle(weights)
            rows = torch.randn(256, inputs, device=self._device, dtype=HALF)
            alone = linear(rows[:1], weights[0])
            for count in (1, 2, 8, 16, 64, 65, 128, 256):
                some = rows[:count]
                taken = self._microseconds(partial(_by_turns, some, turns))
                report(
                    "product",
                    outputs=outputs,
                    inputs=inputs,
                    rows=count,
                    microseconds=round(taken, 2),
                    gigabytes_per_second=round(size / taken / 1e3),
                    first_row_as_alone=torch.equal(linear(some, weights[0])[:1], alone),
                )

    def gathers(self) -> None:
        """Compares gathering keys stored by head with keys stored by slot."""
        by_head = torch.randn(8, self._sizes.slots, 128, device=self._device, dtype=HALF)
        by_slot = torch.randn(self._sizes.slots, 1024, device=self._device, dtype=HALF)
        for count in self._sizes.gathered:
            which = torch.randperm(self._sizes.slots - 1, device=self._device)[:count]
            report(
                "gather of keys",
                keys=count,
                by_head_microseconds=round(self._microseconds(partial(by_head.index_select, 1, which), calls=5), 2),
                by_slot_microseconds=round(self._microseconds(partial(by_slot.index_select, 0, which), calls=5), 2),
            )

    def attention(self) -> None:
        """Measures torch's attention of 1 to 64 rows after contexts, and whether the first row is as alone."""
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        if not self._cuda:
            return  # the kernel is for GPUs only
        grouped = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
        for context in self._sizes.contexts:
            keys, values = (torch.randn(context, 8, 128, device=self._device, dtype=HALF) for _ in range(2))
            queries = torch.randn(64, 32, 128, device=self._device, dtype=HALF)
            key_ends = torch.tensor([0, context], dtype=torch.int32, device=self._device)
            alone: torch.Tensor | None = None
            for rows in (1, 2, 9, 64):
                attend = partial(
                    varlen_attn,
                    queries[:rows],
                    keys,
                    values,
                    torch.tensor([0, rows], dtype=torch.int32, device=self._device),
                    key_ends,
                    rows,
                    context,
                    return_aux=AuxRequest(lse=True),
                    **grouped,
                )
                out, weight = attend()
                alone = out[0] if alone is None else alone
                report(
                    "varlen_attn",
                    context=context,
                    rows=rows,
                    microseconds=round(self._microseconds(attend, calls=5), 2),
                    first_row_as_alone=torch.equal(out[0], alone),
                    not_finite=int((~out.isfinite()).sum()),
                    shape_of_log_sum_exps=list(weight.shape),
                )

    def sampling(self) -> None:
        """Measures sampling from a large vocabulary, kernel by kernel."""
        from draftwire_core.engine.sampling.coupled_sampler import sample
        from draftwire_core.engine.sampling.device_sampler import draw
        from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
        from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
        from draftwire_core.engine.sampling.sampling_params import SamplingParams
        from draftwire_core.engine.sampling.step_draws import StepDraws

        for rows in (1, 64):
            for temperature, top_p in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.9)):
                logits = (4 * torch.randn(rows, self._sizes.vocabulary, device=self._device)).to(HALF)
                params = [SamplingParams(temperature=temperature, top_p=top_p, seed=row) for row in range(rows)]
                batch = SamplingBatch.build(params, range(rows), self._device)
                draws = partial(sample if batch.filters else draw, logits, batch)
                draws()
                started = time.perf_counter()
                for _ in range(self._sizes.runs):
                    draws()
                if self._cuda:
                    torch.cuda.synchronize()
                taken = 1e3 * (time.perf_counter() - started) / self._sizes.runs
                report("sampling", rows=rows, temperature=temperature, top_p=top_p, milliseconds=round(taken, 2))
                if self._cuda and not batch.filters:
                    kernels, numbers = KernelSampler(), StepDraws.of_roots(batch.to("cpu")).numbers().to(self._device)
                    taken = self._microseconds(partial(kernels.draw, logits, numbers))
                    report("sampling by kernels", rows=rows, temperature=temperature, microseconds=round(taken, 2))

    def outer_product(self) -> None:
        """Measures a product of inner size 1. torch 2.13 compiles a kernel for it at its first call."""
        left, right = torch.randn(8, 4, 1, device=self._device), torch.randn(8, 1, 128, device=self._device)
        taken = self._microseconds(lambda: torch.bmm(left, right))
        report("bmm of inner size 1", microseconds=round(taken, 2))

    def _microseconds(self, run: Callable[[], object], calls: int = _CAPTURED_CALLS) -> float:
        return microseconds(run, self._device, calls)


def _by_turns(rows: torch.Tensor, weights: Iterator[torch.Tensor]) -> torch.Tensor:
    """Multiplies by the next of several weights."""
    return linear(rows, next(weights))


@torch.inference_mode()
def main() -> None:
    """Runs the probe on the device of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.probe", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", default="cuda", help="cuda, or cpu to try the code")
    device = usable_device(parser.parse_args().device)
    Probe(device, Sizes() if device.type == "cuda" else TOY).run()


if __name__ == "__main__":
    main()
