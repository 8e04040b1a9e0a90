"""Small files of checkpoints."""

from pathlib import Path

import pytest

from draftwire_core.engine.checkpoint.plain_files import json_object


def test_an_object_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"hidden_size": 64}')
    assert json_object(file) == {"hidden_size": 64}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "config.json cannot be read: "),
        (b"\xff", "config.json cannot be read: "),
        (b"[" * 100_000, "config.json cannot be read: "),
        (b"[]", "config.json is not an object"),
        (b" " * ((16 << 20) + 1), "config.json has more than 16777216 bytes"),
    ],
    ids=["cut off", "not UTF-8", "nested too deeply", "a list", "too large"],
)
def test_another_thing_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        json_object(file)
