"""Whatever a configuration, a file's header or a tensor says, a quantised checkpoint is read or refused."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.quantised.formats import read_format
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles
from tests.harness.engine.engines import tiny_model
from tests.harness.models.few_bit_forms import FEW_BIT_FORMS
from tests.harness.models.quantised_checkpoint import FORMS, write_quantised

ALL_FORMS = FORMS | FEW_BIT_FORMS
LAYER = "model.layers.0.self_attn.q_proj"
SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 40),
    st.floats(),
    st.sampled_from(["", "re:(", "static", "fp8", "nvfp4-pack-quantized", "int"]),
    st.lists(st.integers(-1, 200), max_size=3),
    st.dictionaries(st.sampled_from(["bits", "weights", "quant_algo"]), st.integers(-1, 9), max_size=2),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forms")


@cache
def written(directory: Path, name: str) -> Path:
    place = directory / name
    write_quantised(place, tiny_model("Llama", **SIZES), ALL_FORMS[name])
    return place


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields and elements."""
    if path:
        yield path
    found = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in found:
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a path."""
    found = copy.deepcopy(value)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return found


def check(configuration: Any, files: TensorFiles) -> None:
    """Reads a layer, or is refused."""
    with suppress(ModelLoadError):
        weight = read_format(configuration, files).weight(LAYER, 128, 128)
        if hasattr(weight, "rows"):
            weight.rows(0, 8)


@given(st.data())
def test_a_field_with_another_value(directory: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(ALL_FORMS)))
    config = json.loads(json.dumps(ALL_FORMS[name].config))
    changed = replaced(config, data.draw(st.sampled_from(list(places(config)))), data.draw(VALUES))
    check(changed, TensorFiles.open(Checkpoint.find(str(written(directory, name)))))


class _OtherNotes(TensorFiles):
    """Files whose headers and states of quantisation say something else."""

    told: str

    def note(self, name: str) -> str | None:
        return self.told

    def tensor(self, name: str, shapes: Any, dtypes: Any) -> torch.Tensor:
        if "quant_state" in name:
            return torch.tensor(list(self.told.encode()), dtype=torch.uint8)
        return super().tensor(name, shapes, dtypes)


@given(st.data())
def test_a_note_with_another_value(directory: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["torchao int8", "torchao int4", "torchao packed int4", "torchao float8", "NF4"]))
    files = _OtherNotes.open(Checkpoint.find(str(written(directory, name))))
    assert isinstance(files, _OtherNotes)
    note = ALL_FORMS[name].note
    if note is None:
        key = f"{LAYER}.weight.quant_state.bitsandbytes__nf4"
        note = json.loads(bytes(TensorFiles.tensor(files, key, None, [torch.uint8]).tolist()))
    files.told = json.dumps(replaced(note, data.draw(st.sampled_from(list(places(note)))), data.draw(VALUES)))
    check(ALL_FORMS[name].config, files)
