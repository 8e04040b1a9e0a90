"""Names of the kernels in use, and advice on faster ones."""

from collections.abc import Iterator

import pytest

from draftwire_core.engine.kernels.library import LIBRARY, available_kernels, faster, kernels_of, use_kernels

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")


@pytest.fixture(autouse=True)
def fastest_afterwards() -> Iterator[None]:
    use_kernels("auto")
    yield
    use_kernels("auto")


def test_the_fastest_kernels_need_no_advice() -> None:
    assert kernels_of("cpu") == available_kernels()[-1]
    assert faster("cpu", "bfloat16") == faster("cpu", "q4_0") == ""


def test_slower_kernels_name_the_fastest_ones() -> None:
    use_kernels("torch")
    assert kernels_of("cpu") == "torch"
    assert f"--kernels {available_kernels()[-1]}" in faster("cpu", "bfloat16")


def test_float32_weights_name_smaller_ones() -> None:
    assert "--dtype bfloat16" in faster("cpu", "float32")


def test_other_devices_have_their_own_name_and_no_advice() -> None:
    assert kernels_of("cuda:1") == "cuda"
    assert faster("cuda:1", "float32") == ""
