"""Which names are ids of the hub, and which can only be paths."""

from pathlib import Path

import pytest

from draftwire_core.engine.checkpoint.hub_id import HubId


@pytest.mark.parametrize(
    ("source", "repository"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("hf://Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("hf://models/target", "models/target"),
        ("hf://gpt2", "gpt2"),
        ("gpt2", None),
        ("models/target", None),
        ("Models/target", None),
        ("checkpoints/last", None),
        ("./Qwen/Qwen3", None),
        ("../target", None),
        ("/models/target", None),
        ("~/target", None),
        ("a/b/c", None),
        ("hf://a/b/c", None),
        ("owner/", None),
        ("", None),
        ("..", None),
        ("owner/../name", None),
        ("owner/name?x=1", None),
    ],
)
def test_repositories(source: str, repository: str | None) -> None:
    assert HubId.of(source) == (None if repository is None else HubId(repository))


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("Qwen/Qwen3-GGUF/q8_0.gguf", "q8_0.gguf"),
        ("hf://Qwen/Qwen3-GGUF/q8_0.gguf", "q8_0.gguf"),
        ("hf://Qwen/Qwen3-GGUF/q8/q8_0.gguf", "q8/q8_0.gguf"),
        ("Qwen/Qwen3-GGUF/q8/q8_0.gguf", None),
        ("models/Qwen3-GGUF/q8_0.gguf", None),
        ("hf://Qwen/Qwen3-GGUF/../q8_0.gguf", None),
        ("hf://Qwen/Qwen3-GGUF//q8_0.gguf", None),
        ("Qwen/Qwen3-GGUF/q8_0.GGUF", None),
        ("/Qwen/Qwen3-GGUF/q8_0.gguf", None),
    ],
)
def test_files(source: str, file: str | None) -> None:
    assert HubId.of(source) == (None if file is None else HubId("Qwen/Qwen3-GGUF", file))


@pytest.mark.parametrize(
    ("source", "tag"),
    [
        ("Qwen/Qwen3-GGUF:Q4_K_M", "Q4_K_M"),
        ("hf://Qwen/Qwen3-GGUF:q4_k_m", "q4_k_m"),
        ("Qwen/Qwen3-GGUF:UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("Qwen/Qwen3-GGUF:", None),
        ("Qwen/Qwen3-GGUF:Q4:K", None),
        ("Qwen/Qwen3-GGUF:.*", None),
        ("Qwen/Qwen3-GGUF/a.gguf:Q4_K_M", None),
        ("models/Qwen3-GGUF:Q4_K_M", None),
        ("./Qwen3-GGUF:Q4_K_M", None),
    ],
)
def test_tags(source: str, tag: str | None) -> None:
    assert HubId.of(source) == (None if tag is None else HubId("Qwen/Qwen3-GGUF", tag=tag))


def test_the_text_of_an_id_is_an_id() -> None:
    for found in (HubId("lab/draft"), HubId("lab/draft", "a.gguf"), HubId("lab/draft", tag="Q8_0")):
        assert HubId.of(str(found)) == found


def test_what_begins_with_a_folder_that_is_here_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert HubId.of("mine/target") == HubId("mine/target")
    assert HubId.of("mine/target/a.gguf") == HubId("mine/target", "a.gguf")
    (tmp_path / "mine").mkdir()
    assert HubId.of("mine/target") is HubId.of("mine/target/a.gguf") is None
