"""Valid sampling parameters, and the errors of invalid ones."""

import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.sampling.sampling_params import SamplingParams

pytestmark = pytest.mark.processes

valid = st.builds(
    SamplingParams,
    temperature=st.floats(0, 1e308),
    top_k=st.integers(0, 1 << 32),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    typical_p=st.floats(0, 1, exclude_min=True),
    seed=st.integers(0, (1 << 64) - 1),
)
not_finite = st.sampled_from([math.nan, math.inf, -math.inf])
wrong = {
    "temperature": not_finite | st.floats(max_value=0, exclude_max=True, allow_nan=False).filter(lambda x: x < 0),
    "top_k": st.integers(max_value=-1),
    "top_p": not_finite | st.floats(max_value=0) | st.floats(min_value=1, exclude_min=True),
    "min_p": not_finite | st.floats(max_value=0, exclude_max=True) | st.floats(min_value=1, exclude_min=True),
    "typical_p": not_finite | st.floats(max_value=0) | st.floats(min_value=1, exclude_min=True),
    "seed": st.integers(max_value=-1) | st.integers(min_value=1 << 64),
}


@given(valid)
def test_valid_parameters_pass(params: SamplingParams) -> None:
    assert params.validate() is params
    assert params.greedy == (params.temperature < 1e-5)


@given(valid, st.data())
def test_a_wrong_field_is_named(params: SamplingParams, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(wrong)))
    value = data.draw(wrong[field].filter(lambda x: x != 0))
    values = {name: getattr(params, name) for name in SamplingParams.__slots__} | {field: value}
    with pytest.raises(FieldError) as caught:
        SamplingParams(**values).validate("request.sampling")
    assert caught.value.field == f"request.sampling.{field}"
    assert str(value) in caught.value.description


def test_zero_top_p_is_refused() -> None:
    with pytest.raises(FieldError, match=r"^sampling\.top_p: must be in \(0, 1\], got 0\.0$"):
        SamplingParams(top_p=0.0).validate()


def test_field_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(FieldError("a.b", "must be c")))
    assert (error.field, error.description, str(error)) == ("a.b", "must be c", "a.b: must be c")


def test_needs_no_torch() -> None:
    code = "import sys, draftwire_core.engine.sampling.sampling_params; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
