"""Directories as the world has them: a drafter is made of one, or refused with a sentence; nothing else happens."""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.runtime.errors import ServiceError
from tests.harness.engine.engines import VOCABULARY, tiny_model
from tests.harness.models.dflash_checkpoints import write_dflash
from tests.harness.models.eagle_checkpoints import write_eagle
from tests.harness.models.gguf_model import write_checkpoint_as_gguf
from tests.harness.models.tiny_checkpoint import write_checkpoint, write_tokenizer
from verifier_service.reading.local_address import make_drafter

WEIGHTS = "model.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 17612488\n"
VALUES: tuple[Any, ...] = (
    -1, 0, 1, 3, 1000, 10**6, 10**12, 2**70, 0.5, -0.5, 1e308, "x", "", None, True, [], [1], {}, {"a": 1},
)  # fmt: skip
"""What a field may be by mistake. A million layers used to be made one by one."""


def write_medusa(directory: Path) -> Path:
    torch.manual_seed(0)
    MedusaHeads(2, 1, 64, VOCABULARY).save(directory, "target", torch.float32)
    return directory


KINDS: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "draft": (write_checkpoint, "local:draft?model=", WEIGHTS),
    "eagle3": (write_eagle, "local:eagle3?model=", WEIGHTS),
    "dflash": (write_dflash, "local:dflash?model=", WEIGHTS),
    "medusa": (write_medusa, "local:medusa?heads=", "medusa_lm_head.safetensors"),
}
"""Of each kind of directory: what writes it, the address of its drafter, and the file of its weights."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("directories")
    for kind, (write, _, _) in KINDS.items():
        write(home / kind)
    return home


@pytest.fixture(scope="module")
def target(home: Path) -> PackedModel:
    tiny_model("Llama").save_pretrained(home / "target")
    write_tokenizer(home / "target", 100)
    return PackedModel.load(str(home / "target"), slots=512)


@pytest.fixture
def directory(home: Path, tmp_path: Path, kind: str) -> Path:
    return shutil.copytree(home / kind, tmp_path / kind)


def made(target: PackedModel, kind: str, directory: Path) -> Drafter | str:
    """The drafter, or why it was refused."""
    try:
        return make_drafter(f"{KINDS[kind][1]}{directory}", target, hub=False)
    except ServiceError as error:
        refusal = error.message
    reason = refusal.partition(f"{directory}: ")[2]
    assert reason and "\n" not in reason and len(reason) < 700, refusal
    return reason


def test_whole_ones_are_made(target: PackedModel, home: Path) -> None:
    for kind in KINDS:
        assert not isinstance(made(target, kind, home / kind), str), kind


def test_any_value_of_any_field(target: PackedModel, home: Path, tmp_path: Path) -> None:
    every = [(kind, path) for kind in KINDS for path in fields_of(home / kind)]

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(every), st.sampled_from(VALUES))
    def tried(field: tuple[str, tuple[str, ...]], value: Any) -> None:
        kind, path = field
        directory = tmp_path / kind
        shutil.copytree(home / kind, directory, dirs_exist_ok=True)
        set_field(directory, path, value)
        made(target, kind, directory)

    tried()


def fields_of(directory: Path) -> list[tuple[str, ...]]:
    """The paths of all fields of a configuration."""

    def inside(fields: dict[str, Any], place: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = []
        for name, value in fields.items():
            found += [(*place, name), *(inside(value, (*place, name)) if isinstance(value, dict) else ())]
        return found

    return inside(json.loads((directory / "config.json").read_text()), ())


def set_field(directory: Path, path: tuple[str, ...], value: Any) -> None:
    whole = place = json.loads((directory / "config.json").read_text())
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (directory / "config.json").write_text(json.dumps(whole))


@pytest.mark.parametrize("kind", ["draft"])
@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_hidden_layers", 10**6, "num_hidden_layers is 1000000, but the files have 21 tensors in all"),
        ("layer_count_of_another_kind", {"num_layers": 10**12}, "num_layers is 1000000000000, but the files have"),
        ("num_labels", 10**9, "num_labels is 1000000000, but the files have"),
        ("num_attention_heads", 0, "num_attention_heads must be at least 1, got 0"),
        ("head_dim", 10**6, "its config.json describes 768025248 parameters, but its files hold 31392"),
        ("vocab_size", 10**9, r"its config.json describes \d+ parameters, but its files hold"),
        ("intermediate_size", 48, r"the tensor .*down_proj.weight has shape \[32, 64\], and its configuration says"),
        ("dtype", "bf16", "config.json: dtype must be a type's full name, such as bfloat16, .*, got 'bf16'"),
        ("hidden_size", "x", "config.json: Field 'hidden_size' expected int, got str"),
    ],
)
def test_what_a_field_says_is_compared_with_the_files(
    target: PackedModel, kind: str, directory: Path, field: str, value: object, words: str
) -> None:
    set_field(directory, (field,), value)
    reason = made(target, kind, directory)
    assert isinstance(reason, str)
    assert re.search(words, reason), reason


def cut(count: int) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(file.read_bytes()[:count])


def header(size: int, text: bytes = b"") -> Callable[[Path], object]:
    return lambda file: file.write_bytes(struct.pack("<Q", size) + text)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def replace(file: Path) -> None:
        file.unlink()
        make(file)

    return replace


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off in the tensors": (cut(-40), "is damaged: it ends before tensor .* does; 40 bytes are missing"),
    "cut off in the header": (cut(200), "is damaged"),
    "empty": (cut(0), "is damaged: it has no bytes"),
    "nonsense": (lambda file: file.write_bytes(bytes(range(256)) * 20), "is damaged"),
    "a header of any size": (header(2**63), "is damaged: its header would have"),
    "a header without end": (header(1 << 20, b"[" * (1 << 20)), "is damaged"),
    "a page of HTML": (lambda file: file.write_text("<!DOCTYPE html>" * 40), "is damaged"),
    "a pointer": (lambda file: file.write_text(POINTER), "is a Git LFS pointer, not the file itself: run git lfs pull"),
    "missing": (Path.unlink, r"there is no|has neither"),
    "a directory": (replaced(Path.mkdir), "there is no|is not a file"),
    "a link to itself": (replaced(lambda file: file.symlink_to(file)), "there is no|has neither"),
    "a pipe": (replaced(os.mkfifo), "neither a file nor a directory"),
    "a device": (replaced(lambda file: file.symlink_to("/dev/zero")), "neither a file nor a directory"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_weights(target: PackedModel, kind: str, directory: Path, damage: str) -> None:
    change, words = DAMAGES[damage]
    change(directory / KINDS[kind][2])
    reason = made(target, kind, directory)
    assert isinstance(reason, str)
    assert re.search(words, reason), reason


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "missing"])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["draft"])
def test_damaged_texts(target: PackedModel, kind: str, directory: Path, file: str, damage: str) -> None:
    DAMAGES[damage][0](directory / file)
    assert isinstance(made(target, kind, directory), str)


@pytest.mark.parametrize("kind", ["draft"])
@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"lm_head.weight": "absent.safetensors"}}, "there is no absent.safetensors, which .* names"),
        ({"weight_map": {"lm_head.weight": "../other.safetensors"}}, "which is not a file next to it"),
        ({"weight_map": {}}, "names no tensors"),
        ({"weight_map": 3}, "cannot be read"),
        ([], "cannot be read"),
    ],
)
def test_an_index_of_other_files(target: PackedModel, kind: str, directory: Path, index: object, words: str) -> None:
    (directory / WEIGHTS).rename(directory / "model-00001-of-00002.safetensors")
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    reason = made(target, kind, directory)
    assert isinstance(reason, str)
    assert re.search(words, reason), reason


def test_damaged_gguf_files(target: PackedModel, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_checkpoint_as_gguf(file, home / "draft")
    whole = file.read_bytes()
    for count in (0, 3, 30, 3000, len(whole) - 1):
        file.write_bytes(whole[:count])
        assert isinstance(made(target, "draft", file), str)
    file.write_text(POINTER)
    assert "Git LFS pointer" in str(made(target, "draft", file))
