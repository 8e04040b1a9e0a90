"""A model in several GGUF files, as llama-gguf-split writes them, is the model in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.models.gguf_model import write_gguf

CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
PARTS = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    weights = LlamaForCausalLM(CONFIG).state_dict()
    return write_gguf(tmp_path_factory.mktemp("whole") / "m.gguf", CONFIG, weights, "Q8_0")


def split(
    whole: Path, folder: Path, *, keys: Mapping[int, Mapping[str, int]] | None = None, twice: bool = False
) -> list[Path]:
    """Writes the parts of a model: the metadata in the first, the tensors in all.

    keys: other values of `split.*` by part. twice: whether the last tensor is in the first part, too.
    """
    reader = gguf.GGUFReader(whole)
    paths = []
    for part in range(PARTS):
        path = folder / f"m-{part + 1:05}-of-{PARTS:05}.gguf"
        paths.append(path)
        writer = gguf.GGUFWriter(path, "llama") if part == 0 else _empty(path)
        if part == 0:
            _copy_metadata(reader, writer)
        values = {"no": part, "count": PARTS, "tensors.count": len(reader.tensors)} | dict((keys or {}).get(part, {}))
        writer.add_uint16("split.no", values["no"])
        writer.add_uint16("split.count", values["count"])
        writer.add_int32("split.tensors.count", values["tensors.count"])
        for number, tensor in enumerate(reader.tensors):
            if number % PARTS == part or (twice and part == 0 and number == len(reader.tensors) - 1):
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def _empty(path: Path) -> gguf.GGUFWriter:
    """A writer of a file without an architecture, as the later parts have none."""
    writer = gguf.GGUFWriter(path, "llama")
    for values in writer.kv_data:
        values.pop("general.architecture")
    return writer


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])


@pytest.mark.parametrize("part", range(PARTS))
def test_any_part_opens_all(part: int, whole: Path, tmp_path: Path) -> None:
    one, several = GgufFile.open(whole), GgufFile.open(split(whole, tmp_path)[part])
    assert several.config().to_dict() == one.config().to_dict()
    assert several.tensors.keys() == one.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(several.tensors[name].raw, tensor.raw), name


def test_it_is_the_same_model_and_a_directory_of_it_too(whole: Path, tmp_path: Path) -> None:
    split(whole, tmp_path)
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"not a model")
    assert Checkpoint.find(str(tmp_path)).gguf == tmp_path / "m-00001-of-00003.gguf"
    one, several = (PackedModel.load(str(path), slots=64) for path in (whole, tmp_path))
    assert one.fingerprint == several.fingerprint


def test_linked_parts(whole: Path, tmp_path: Path) -> None:
    """As in the hub's cache, where the names of the files themselves are their hashes."""
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(split(whole, tmp_path)):
        path.rename(tmp_path / "blobs" / str(number))
        path.symlink_to(tmp_path / "blobs" / str(number))
    assert GgufFile.open(tmp_path / "m-00002-of-00003.gguf").tensors.keys() == GgufFile.open(whole).tensors.keys()


def remove(paths: list[Path]) -> None:
    paths[1].unlink()


def rename(paths: list[Path]) -> None:
    paths[0].rename(paths[0].with_name("m.gguf")).rename(paths[0].with_name("m-00001-of-00002.gguf"))


def exchange(paths: list[Path]) -> None:
    paths[1].rename(paths[1].with_name("x"))
    paths[2].rename(paths[1])
    paths[1].with_name("x").rename(paths[2])


def point(paths: list[Path]) -> None:
    paths[2].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def shorten(paths: list[Path]) -> None:
    paths[1].write_bytes(paths[1].read_bytes()[:-200])


@pytest.mark.parametrize(
    ("change", "keys", "reason"),
    [
        (remove, {}, r"is one of 3 parts, and m-00002-of-00003\.gguf is missing; all parts must be in one directory$"),
        (rename, {}, r"split\.count: is 3, and the parts of a model have names such as m-00001-of-00003\.gguf$"),
        (exchange, {}, r"00002-of-00003\.gguf: metadata split\.no: is 2, but by its name the file is part 2, number 1"),
        (point, {}, r"m-00003-of-00003\.gguf is a Git LFS pointer"),
        (shorten, {}, r"m-00002-of-00003\.gguf: tensor \S+: .* but the file has"),
        (None, {1: {"count": 2}}, r"00002-of-00003\.gguf: metadata split\.count: is '2', in the first part '3'"),
        (
            None,
            {2: {"tensors.count": 9}},
            r"00003\.gguf: metadata split\.tensors\.count: is '9', in the first",
        ),
        (None, {part: {"tensors.count": 9} for part in range(3)}, r"is 9, but the 3 parts have 21 tensors: .* again$"),
        (None, {0: {"count": 60_000}}, r"split\.count: is 60000; at most 1024 parts are supported"),
    ],
)
def test_parts_that_are_not_one_model(
    change: Callable[[list[Path]], Any] | None,
    keys: Mapping[int, Mapping[str, int]],
    reason: str,
    whole: Path,
    tmp_path: Path,
) -> None:
    paths = split(whole, tmp_path, keys=keys)
    if change is not None:
        change(paths)
    first = next(path for path in sorted(tmp_path.iterdir()) if path.suffix == ".gguf")
    with pytest.raises(ModelLoadError, match=reason):
        GgufFile.open(first)


def test_a_tensor_in_two_parts(whole: Path, tmp_path: Path) -> None:
    paths = split(whole, tmp_path, twice=True)
    with pytest.raises(ModelLoadError, match=r"tensor \S+: is also in m-00001-of-00003\.gguf: the parts are of differ"):
        GgufFile.open(paths[2])


def test_directories_of_gguf_files(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "mmproj-model.gguf").symlink_to(whole)
    with pytest.raises(ModelLoadError, match=r"the directory has no config\.json, and no \.gguf file of a model"):
        Checkpoint.find(str(tmp_path))
    (tmp_path / "m-Q8_0.gguf").symlink_to(whole)
    for model in (True, False):
        found = Checkpoint.find(str(tmp_path), model=model)
        assert (found.gguf, found.directory, found.from_hub) == (tmp_path / "m-Q8_0.gguf", tmp_path, False)
    split(whole, tmp_path)
    both = rf"2 GGUF models; name one: {tmp_path}/m-00001-of-00003\.gguf, {tmp_path}/m-Q8_0\.gguf$"
    with pytest.raises(ModelLoadError, match=both):
        Checkpoint.find(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert Checkpoint.find(str(tmp_path)).gguf is None
