"""Compiles the kernels of decoder layers for GPUs, which need not be there, as launches at a model's shapes would.

    python -m tests.harness.kernels.compiled_layers

Prints a line of JSON for each kernel in each variant: its registers, bytes of shared memory and spilled bytes, as ptxas
tells them. A process of its own, since within tests Triton interprets kernels.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from draftwire_core.engine.kernels.kv_rows import STORED, stored_width
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType
from draftwire_core.engine.model.cuda.kernels import attention, packed_product, product
from draftwire_core.engine.model.cuda.kernels.attention import attend_slots, tiles_of
from draftwire_core.engine.model.cuda.kernels.key_rows import rotate_and_write, write_keys
from draftwire_core.engine.model.cuda.kernels.norm import Kept, add_norm, keep_rows, rms_norm
from draftwire_core.engine.model.cuda.kernels.packed_product import multiply_packed
from draftwire_core.engine.model.cuda.kernels.product import multiply
from draftwire_core.engine.model.cuda.kernels.rank_sum import add_ranks
from draftwire_core.engine.model.cuda.kernels.table_copies import feed_rows, move_slots, take_tokens
from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight
from draftwire_core.engine.model.cuda.weights.packing import stored_on
from draftwire_core.engine.model.cuda.work.slot_work import PlacedWork
from draftwire_core.engine.model.linear.block_weight import BlockWeight

CAPABILITIES = {80: 108, 90: 132}
"""NVIDIA's A100 and H100, with the number of their processors."""
WIDTH, HEADS, KV_HEADS, DIM, INNER, VOCABULARY = 4096, 32, 8, 128, 14336, 128256
"""Llama 3.1 8B."""
QKV = (HEADS + 2 * KV_HEADS) * DIM
SLOTS = 65537
_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.int8: "*i8",
}
_ALIGNED = [["tt.divisibility", 16]]


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def launches() -> None:
    """Launches all kernels at the model's shapes."""
    for rows in (1, 32, 64, 256, 640, 1024):
        hidden = tensor(rows, WIDTH)
        multiply(hidden, tensor(QKV, WIDTH), tensor(QKV))
        multiply(tensor(rows, INNER), tensor(WIDTH, INNER), add_to=tensor(rows, WIDTH, dtype=torch.float32))
        multiply(hidden, tensor(2 * INNER, WIDTH), gate="silu")
        multiply(hidden, tensor(VOCABULARY, WIDTH), dtype=torch.float32)
    multiply(hidden, tensor(2 * INNER, WIDTH), gate="gelu")
    for rows in (1, 64, 1024):
        for code, group, zero in (("fp8", 128, 0), ("int8", 32, 128), ("int4", 128, -1)):
            few_bits(tensor(rows, WIDTH), code, group, zero)
        for kind in ("q4_1", "q5_0", "q4_k", "q5_k", "q6_k", "mxfp4"):
            in_blocks(tensor(rows, WIDTH), kind)
    rows = 64
    hidden = tensor(rows, WIDTH)
    residual = tensor(rows, WIDTH, dtype=torch.float32)
    kept = Kept(tensor(33, dtype=torch.int32), tensor(16, 256, WIDTH), 7)
    rms_norm(residual, tensor(WIDTH), 1e-5, 0.0)
    rms_norm(residual, tensor(WIDTH), 1e-5, 0.0, kept)
    keep_rows(hidden, kept)
    add_norm(hidden, tensor(WIDTH), residual, 1e-5, 1.0)
    add_norm(hidden, tensor(WIDTH), residual, 1e-5, 1.0, tensor(WIDTH))
    slots, numbers = tensor(rows, dtype=torch.int64), tensor(4096, dtype=torch.int32)
    take_tokens(numbers, slots, slots)
    move_slots(numbers, numbers, 100, 3)
    feed_rows(tensor(SLOTS, WIDTH), tensor(SLOTS, WIDTH), slots, hidden)
    add_ranks(tensor(4, rows, WIDTH), None, residual)
    for dim, bits in ((DIM, 16), (256, 16), (DIM, 8), (256, 8)):
        keys = values = tensor(SLOTS, KV_HEADS, dim)
        if bits == 8:
            keys = values = tensor(SLOTS, KV_HEADS, stored_width(dim), dtype=STORED)
        projected, angles = tensor(rows, (HEADS + 2 * KV_HEADS) * dim), tensor(rows, dim)
        rotate_and_write(projected, angles, angles, None, keys, values, slots)
        rotate_and_write(projected, angles, angles, (angles[0], angles[0], 1e-5, 0.0), keys, values, slots)
        write_keys(tensor(KV_HEADS, rows, dim), tensor(KV_HEADS, rows, dim), keys, values, slots)
        work = PlacedWork(numbers, numbers, numbers, numbers, numbers, numbers, 0, rows, 512, 512)
        query = tensor(rows, HEADS, dim)
        for window, softcap, sinks in ((None, None, None), (1024, 50.0, tensor(HEADS))):
            attend_slots(work, query, keys, values, query, 0.1, window, softcap, sinks)
            few = query[:2]
            tiles = tiles_of(HEADS // KV_HEADS)
            attend_slots(work, few, keys, values, few, 0.1, window, softcap, sinks, tiles)


def few_bits(hidden: Tensor, code: Any, group: int, zero: int) -> None:
    """Launches products of a weight of few bits. zero: the zero point; -1 for one of each group."""
    scales = torch.float16 if group == 32 else torch.float32
    for outputs, gate in ((QKV, None), (2 * INNER, "silu")):
        groups = WIDTH // group
        weight = DeviceWeight(
            code,
            WIDTH,
            group,
            tensor(outputs, WIDTH // (2 if code == "int4" else 1), dtype=torch.uint8),
            tensor(outputs, groups, dtype=scales),
            tensor(outputs, groups, dtype=torch.uint8) if zero < 0 else zero,
        )
        multiply_packed(hidden, weight, None, add_to=None, gate=gate, dtype=None, row_blocks=product.ROW_BLOCKS)


def in_blocks(hidden: Tensor, kind: BlockType) -> None:
    """Launches products of a weight in blocks."""
    form = FORMATS[kind]
    for outputs, gate in ((QKV, None), (2 * INNER, "silu")):
        raw = torch.zeros(1, WIDTH // form.inputs * form.size, dtype=torch.uint8)
        weight = stored_on(torch.device("meta"), BlockWeight(kind, raw.expand(outputs, -1)))
        multiply_packed(hidden, weight, None, add_to=None, gate=gate, dtype=None, row_blocks=product.ROW_BLOCKS)


class Compiler:
    """Compiles in place of launches."""

    def __init__(self, capability: int, tell: Callable[[dict[str, object]], None]):
        self._target = GPUTarget("cuda", capability, 32)
        self._tell = tell
        self._known: set[str] = set()

    def launch(self, kernel: Any, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:
        """Compiles a kernel for its arguments, once."""
        names = {each.name for each in kernel.params}
        options = {name: kwargs.pop(name) for name in list(kwargs) if name not in names}
        bound = kernel.signature.bind(*args, **kwargs).arguments
        signature: dict[str, str] = {}
        constants: dict[str, object] = {}
        aligned: dict[tuple[int], object] = {}
        for index, each in enumerate(kernel.params):
            given = bound[each.name]
            special = isinstance(given, int) and not each.do_not_specialize
            if each.is_constexpr or (special and given == 1):  # as Triton does
                signature[each.name], constants[each.name] = "constexpr", given
                continue
            signature[each.name] = (
                _POINTERS[given.dtype] if isinstance(given, Tensor) else "fp32" if isinstance(given, float) else "i32"
            )
            if isinstance(given, Tensor) or (special and given % 16 == 0):
                aligned[index,] = _ALIGNED
        known = repr((kernel.__name__, signature, constants, aligned, options))
        if known in self._known:
            return
        self._known.add(known)
        source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
        found = triton.compile(source, target=self._target, options=options)
        shown = {name: value for name, value in constants.items() if name.isupper()}
        self._tell(
            {"kernel": kernel.__name__, "capability": self._target.arch, "variant": shown, **used(found), **options}
        )


def used(compiled: Any) -> dict[str, object]:
    """What a compiled kernel uses, by ptxas."""
    architecture = re.search(r"\.target (sm_\w+)", compiled.asm["ptx"])
    assert architecture is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(compiled.asm["ptx"])
        command = [
            triton.knobs.nvidia.ptxas.path,
            "-v",
            f"--gpu-name={architecture[1]}",
            str(path),
            "-o",
            f"{folder}/cubin",
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "registers": int(re.findall(r"Used (\d+) registers", told)[-1]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill stores", told))),
        "shared": compiled.metadata.shared,
        "fused": sorted(set(re.findall(r"\bfma\.\S+", compiled.asm["ptx"]))),
        "products": sorted(set(re.findall(r"\b(wgmma\.mma_async|mma\.sync)\S*?\.(m\d+n\d+k\d+)", compiled.asm["ptx"]))),
    }


def main() -> None:
    """Compiles all of them."""
    for capability, processors in CAPABILITIES.items():
        compiler = Compiler(capability, lambda found: print(json.dumps(found), flush=True))
        JITFunction.run = lambda kernel, *args, compiler=compiler, **kwargs: compiler.launch(kernel, *args, **kwargs)
        product.processors = attention.processors = lambda device, processors=processors: processors
        packed_product.native_floats = lambda device, capability=capability: capability >= 89
        launches()


if __name__ == "__main__":
    main()
