"""Finds checkpoints by name: local directories, and repositories of the Hugging Face hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from draftwire_core.engine.checkpoint.gguf.gguf_name import SUFFIX, gguf_models
from draftwire_core.engine.checkpoint.hub_id import SCHEME, HubId
from draftwire_core.engine.checkpoint.plain_files import check_directory
from draftwire_core.engine.errors import ModelLoadError

__all__ = ["CONFIG", "Checkpoint", "ModelLoadError", "check_source"]

CONFIG = "config.json"
_MISTRAL = "params.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
_WEIGHTS, _FORMATS = ("model", "pytorch_model"), (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
"""Beginnings and ends of the names of a checkpoint's weights."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a model."""

    name: str
    """The path as given, or the hub id without its scheme."""
    directory: Path
    """The directory of the files."""
    from_hub: bool
    """Whether the files came from the hub, now or earlier."""
    gguf: Path | None = None
    """The file of the model and its tokenizer, if it is a GGUF file; the first one if it is several."""

    @classmethod
    def find(cls, source: str | Checkpoint, *, hub: bool = True, model: bool = True) -> Checkpoint:
        """Finds a checkpoint by the path of a directory or of a GGUF file, or by a hub id.

        A directory without a checkpoint, with the files of one GGUF model, is that model. A hub id is owner/name, of
        a checkpoint or of GGUF models, of which one is fetched; owner/name:TAG, of the one with that quantisation; or
        owner/name/FILE.gguf. hf:// may stand before it. An existing path takes precedence. A source that looks like a
        path is never a hub id (`HubId.of`).

        hub: whether hub ids are allowed. model: whether weights and a configuration are needed, not just a tokenizer.
        Raises ModelLoadError, which names the source and the reason.
        """
        if isinstance(source, Checkpoint):
            return source
        found = _locate(source, hub=hub, model=model)
        if isinstance(found, Path):
            if found.is_file():
                return cls(source, found.parent, from_hub=False, gguf=found)
            return cls(source, found, from_hub=False)
        from draftwire_core.engine.checkpoint.hub import HubError, fetch  # slow to import

        try:
            file = fetch(found, weights=model)
        except HubError as error:
            raise ModelLoadError(f"{_what(source, model)}: {error}") from error
        return cls(str(found), file.parent, from_hub=True, gguf=file if file.suffix == SUFFIX else None)


def check_source(source: str, *, model: bool = True) -> None:
    """Raises ModelLoadError for a source that is no model here nor a hub id, without contacting the hub.

    model: whether the source is of a model, not of a tokenizer alone.
    """
    _locate(source, hub=True, model=model)


def _locate(source: str, *, hub: bool, model: bool) -> Path | HubId:
    """The source's directory or GGUF file, or the hub id that it is. Raises ModelLoadError."""
    what = _what(source, model)
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            try:
                check_directory(path)
            except ValueError as error:
                raise ModelLoadError(f"{what}: {error}") from error
            return path if _is_checkpoint(path, model) else _gguf_in(path, what, model)
        if path.is_file() and path.suffix == SUFFIX:
            return path
        if path.is_file():
            raise ModelLoadError(f"{what}: is a file; expected the directory of a checkpoint, or a {SUFFIX} file")
    except (OSError, RuntimeError) as error:  # the name is too long, or ~ names an unknown user
        raise ModelLoadError(f"{what}: no such directory: {error}") from error
    hub_id = HubId.of(source)
    if hub_id is None or not hub:
        raise ModelLoadError(f"{what}: no such {_kind(source)}{_hint(source, hub_id, hub)}")
    return hub_id


def _is_checkpoint(directory: Path, model: bool) -> bool:
    """Whether a directory is a checkpoint, or has no GGUF models in the place of its weights, or of its tokenizer."""
    names = [each.name for each in directory.iterdir() if each.is_file()]
    if not model and not set(names).isdisjoint(_TOKENIZERS):
        return True
    # Repositories of GGUF models often have the configuration of the model that they were made of.
    whole = model and any(name.startswith(_WEIGHTS) and name.endswith(_FORMATS) for name in names)
    return CONFIG in names and (whole or not gguf_models(names))


def _gguf_in(directory: Path, what: str, model: bool) -> Path:
    """The file of the GGUF model in a directory that is no checkpoint. Raises ModelLoadError.

    model: if False, a directory without such a file is returned itself.
    """
    found = gguf_models(each.name for each in directory.iterdir() if each.is_file())
    if len(found) == 1:
        return directory / found[0].text
    if found:
        names = [f"{directory / each.text}" for each in found[:_MOST_NAMED]]
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise ModelLoadError(
            f"{what}: the directory has no checkpoint and {len(found)} GGUF models; name one: {', '.join(names)}{more}"
        )
    if model:
        raise ModelLoadError(f"{what}: {_no_checkpoint(directory)}")
    return directory


def _what(source: str, model: bool) -> str:
    return f"model {source}" if model else f"tokenizer of {source}"


def _no_checkpoint(path: Path) -> str:
    """Says what a directory without a configuration is, and what to do about it."""
    adapter = adapter_refusal(path)
    if adapter is not None:
        return adapter
    if (path / CONFIG).exists():
        return f"not a checkpoint: {CONFIG} is not a file"
    if (path / _MISTRAL).is_file():
        return (
            f"the directory has {_MISTRAL} but no {CONFIG}: it is in the format of Mistral's own library, which is not "
            "read; take a copy of the model in the format of transformers"
        )
    return f"not a checkpoint: the directory has no {CONFIG}, and no {SUFFIX} file of a model"


def _kind(source: str) -> str:
    return "file" if source.endswith(SUFFIX) else "directory"


def _hint(source: str, hub_id: HubId | None, hub: bool) -> str:
    """The end of the error message, with what the source may have been meant to be."""
    if hub_id is not None:
        return ", and models of the hub are not fetched for callers without --allow-hub-models"
    here = "" if source.startswith(("/", "~", SCHEME)) or not hub else f" in {Path.cwd()}"
    if not hub or HubId.of(f"{SCHEME}{source}") is None:
        return here
    return f"{here}; to use a model of the Hugging Face hub, write {SCHEME}{source}"


_ADAPTER = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_MOST = 1 << 20
_LONGEST_NAME = 200
_MOST_NAMED = 20
"""Most files that an error message names."""


def adapter_refusal(directory: Path) -> str | None:
    """Says that a directory is an adapter, of which model, and how to serve the two; None if it is no adapter."""
    config = directory / _ADAPTER
    if not config.is_file() and not any((directory / name).is_file() for name in _ADAPTER_WEIGHTS):
        return None
    kind, base = "", ""
    try:
        if config.stat().st_size <= _MOST:
            fields = json.loads(config.read_text(encoding="utf-8"))
            kind = f" ({str(fields['peft_type'])[:_LONGEST_NAME]})"
            base = str(fields["base_model_name_or_path"] or "")[:_LONGEST_NAME]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # what it says of itself is a part of the message only
    of = f" of {base}" if base else ""
    return (
        f"is an adapter{of}{kind}, not a model: merge it into its base model (merge_and_unload of the package peft), "
        "save the result, and serve that"
    )
