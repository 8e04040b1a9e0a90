"""The numerics digest: equal where bits are equal, for any kernels that can run here, and different elsewhere."""

import itertools
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import torch

from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.kernels import library as compiled_library
from draftwire_core.engine.kernels.library import (
    KernelsError,
    available_kernels,
    kernels_in_use,
    library,
    use_kernels,
)
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.numerics import Numerics, model_numerics
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness import processes
from tests.harness.engine.engines import packed, tiny_model
from tests.harness.engine.special_models import llama
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[4]
CPU = Path("/proc/cpuinfo")
NEEDED: dict[Kernels, set[str]] = {
    "avx2": {"avx2", "fma"},
    "avx512": {"avx512f"},
    "avx512vnni": {"avx512_vnni", "avx512bw", "avx512vl"},
    "avx512bf16": {"avx512_bf16", "avx512_vnni", "avx512bw", "avx512vl"},
    "amx": {"avx512_bf16", "avx512_vnni", "avx512vl", "amx_tile", "amx_bf16", "amx_int8"},
    "neon": {"asimd"},
    "dotprod": {"asimddp"},
    "i8mm": {"asimddp", "i8mm"},
}
"""Linux's names of the instructions that kernels need."""
BUILT = compiled_library.LIBRARY.exists()
KERNELS: tuple[Kernels, ...] = tuple(each for each in get_args(Kernels) if each != "auto")
DTYPES = [torch.float32, torch.bfloat16]


def runs(kernels: Kernels) -> bool:
    """Whether kernels can run here, according to the processor's flags and the presence of the compiled library."""
    if kernels == "torch":
        return True
    lines = CPU.read_text().splitlines() if CPU.exists() else []
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    if kernels == "avxvnni":  # in its own encoding or that of AVX-512
        return BUILT and ("avx_vnni" in flags or NEEDED["avx512vnni"] <= flags)
    return BUILT and NEEDED.get(kernels, set()) <= flags


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    use_kernels("auto")


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Switches to each kind of kernels that can run here."""
    chosen: Kernels = request.param
    if not runs(chosen):
        pytest.skip(f"{chosen} cannot run here")
    use_kernels(chosen)
    assert kernels_in_use() == chosen
    return chosen


def taken(kernels: Kernels, dtype: torch.dtype) -> Numerics:
    use_kernels(kernels)
    return model_numerics(packed(llama(dtype)))


@pytest.mark.skipif(platform.machine() != "x86_64" or not CPU.exists(), reason="asks Linux for x86's flags")
def test_what_can_run_is_what_the_processor_has() -> None:
    assert available_kernels() == tuple(each for each in KERNELS if runs(each))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_its_own_bits_with_any_kernels(kernels: Kernels, dtype: torch.dtype) -> None:
    model = packed(llama(dtype))
    assert run_self_test(model).bit_exact
    assert (library() is None) == (kernels == "torch")


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_slots_are_no_part_of_it(kernels: Kernels, dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    found = set()
    try:
        for count, slots in ((1, 4000), (2, 4000), (1, 300)):
            torch.set_num_threads(count)
            found.add(model_numerics(packed(llama(dtype), slots)))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


@pytest.mark.skipif(not BUILT, reason="there is no compiled library")
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_differ_where_their_bits_do(dtype: torch.dtype) -> None:
    found = {each: taken(each, dtype) for each in KERNELS if runs(each)}
    for (one, numerics), (other, others) in itertools.combinations(found.items(), 2):
        pair = {one, other}
        # Vectors change no bit; bfloat16 products do, where weights are bfloat16.
        alike = set(KERNELS) - {"torch"} - ({"avx512bf16", "amx"} if dtype == torch.bfloat16 else set())
        same = pair <= alike
        assert (numerics == others) == same, pair


def test_models_differ() -> None:
    found = [model_numerics(packed(tiny_model("Llama", seed=seed))) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert found[0].description == found[2].description


def test_keys_and_values_in_8_bits_are_declared() -> None:
    model = llama(torch.bfloat16)
    found = [model_numerics(packed(model, kv_dtype=kv_dtype)) for kv_dtype in ("q8_0", "q8_0", "auto")]
    assert found[0] == found[1] != found[2]
    assert "keys and values in q8_0" in found[0].description and "q8_0" not in found[2].description


@pytest.mark.parametrize("name", ["GPT2", "Mistral", "Qwen3", "Gemma2", "Mixtral"])
def test_other_architectures(name: str) -> None:
    model = packed(tiny_model(name))
    free = model.pool.free
    assert model_numerics(model) == model_numerics(packed(tiny_model(name), 500))
    assert model.pool.free == free


def test_a_short_context() -> None:
    model = tiny_model("Llama", max_position_embeddings=8)
    assert model_numerics(packed(model)) == model_numerics(packed(model))


def test_without_the_library_it_is_torchs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulates an installation without a C compiler."""
    left_alone = taken("torch", torch.float32)
    with monkeypatch.context() as patched:
        patched.setattr(compiled_library, "LIBRARY", tmp_path / "none.so")
        compiled_library._compiled.cache_clear()
        assert taken("auto", torch.float32) == left_alone
        assert "no compiled library" in left_alone.description
        with pytest.raises(
            KernelsError,
            match="avx2 cannot run on this machine, as there is no compiled library; available: auto, torch",
        ):
            use_kernels("avx2")
    compiled_library._compiled.cache_clear()


def test_what_cannot_run_is_refused() -> None:
    missing = next((each for each in KERNELS if not runs(each)), None)
    if missing is None:
        pytest.skip("all kernels can run here")
    with pytest.raises(KernelsError, match=f"{missing} cannot run on this machine.*; available: auto, torch"):
        use_kernels(missing)


_ALONE = """
import torch
torch.set_num_threads(1)
from draftwire_core.engine.model.numerics import model_numerics
from tests.harness.engine.engines import packed
from tests.harness.engine.special_models import llama
found = model_numerics(packed(llama(torch.float32)))
print(found.digest, found.description, sep="|")
"""


def in_a_process(**environment: str) -> tuple[str, str]:
    """Returns digest and description from a separate process. environment: variables that it sets before it begins."""
    said = processes.run(
        [sys.executable, "-c", f"import os\nos.environ |= {environment!r}\n{_ALONE}"],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
    )
    digest, _, description = said.stdout.strip().partition("|")
    return digest, description


@pytest.mark.skipif(platform.machine() != "x86_64", reason="takes instructions of x86 from oneDNN")
def test_a_processor_that_gives_other_bits_shows() -> None:
    """oneDNN is made to compute as on a processor without AVX; no declared property reveals that."""
    here, again, elsewhere = in_a_process(), in_a_process(), in_a_process(ONEDNN_MAX_CPU_ISA="SSE41")
    assert here == again
    assert here[1] == elsewhere[1]
    assert here[0] != elsewhere[0]


def test_it_is_what_the_bundled_target_reports() -> None:
    model = PackedModel.load(str(ROOT / "models" / "target"), slots=400, dtype="float32")
    found = model_numerics(model)
    assert len(found.digest) == 64
    for part in ("float32", "cpu", f"torch {torch.__version__}", "transformers "):
        assert part in found.description
