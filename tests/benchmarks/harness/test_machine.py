"""Tests of the names by which results are kept: the processor's, with its kind of core."""

from __future__ import annotations

import pytest

from benchmarks.harness.machine import named_with_core


@pytest.mark.parametrize(
    ("family", "model", "name"),
    [
        ("25", "1", "AMD EPYC (Zen 3)"),
        ("25", "17", "AMD EPYC (Zen 4)"),
        ("25", "33", "AMD EPYC (Zen 3)"),
        ("25", "160", "AMD EPYC (Zen 4)"),
        ("26", "2", "AMD EPYC (Zen 5)"),
        ("15", "2", "AMD EPYC"),
    ],
)
def test_amd_cores_are_named_by_family_and_model(family: str, model: str, name: str) -> None:
    facts = {"model name": "AMD EPYC", "vendor_id": "AuthenticAMD", "cpu family": family, "model": model}
    assert named_with_core(facts) == name


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("avx2 avx512f avx512_bf16 amx_bf16", "Intel Xeon (AMX)"),
        ("avx2 avx512f avx512_bf16", "Intel Xeon (AVX-512 BF16, no AMX)"),
        ("avx2 avx512f", "Intel Xeon (AVX-512)"),
        ("avx2", "Intel Xeon (AVX2)"),
        ("sse4_2", "Intel Xeon"),
    ],
)
def test_intel_cores_are_named_by_instruction_sets(flags: str, name: str) -> None:
    assert named_with_core({"model name": "Intel Xeon", "vendor_id": "GenuineIntel", "flags": flags}) == name


def test_other_processors_keep_their_name() -> None:
    assert named_with_core({"model name": "Neoverse-N1"}) == "Neoverse-N1"
