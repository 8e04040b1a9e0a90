"""A damaged table of replacements is refused before the library that applies it fails."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.normalizers import Precompiled

from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_charsmap import check_charsmap
from tests.harness.models.gguf_tokenizers import charsmap

TABLE = charsmap({"H": "h", "\n": " ", "a": "xyz"})
WITHIN = TABLE.replace(b"xyz", b"x\xc3\xa9").replace(b"\x04\0\0\x80", b"\x06\0\0\x80")
"""A table with a replacement that begins within a character."""


def test_a_whole_table() -> None:
    check_charsmap(TABLE)
    assert Precompiled(TABLE).normalize_str("Ha\nb") == "hxyz b"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (b"", "has 0 bytes, and the table 0"),
        (TABLE[:3], "bytes, and the table 3"),
        (TABLE[:-1], "not UTF-8 that ends with a zero byte"),
        (TABLE + b"\xff\0", "not UTF-8 that ends with a zero byte"),
        (struct.pack("<I", 1 << 30) + TABLE[4:], "its trie has 1073741824 bytes"),
        (TABLE[:4] + struct.pack("<I", 1 << 20) + TABLE[8:], "leads beyond its end"),
        (
            TABLE.replace(b"xyz", b"x\xc3\xa9").replace(b"\x04\0\0\x80", b"\x06\0\0\x80"),
            "names replacements that are not",
        ),
    ],
)
def test_damaged_tables(table: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_charsmap(table)


@given(
    changes=st.dictionaries(st.integers(0, len(TABLE) - 1), st.integers(0, 255), min_size=1, max_size=4),
    text=st.text(st.sampled_from("Hab\n\x01\x7f\xe9"), max_size=6),
)
def test_what_is_not_refused_is_applied(changes: dict[int, int], text: str) -> None:
    table = bytearray(TABLE)
    for at, value in changes.items():
        table[at] = value
    try:
        check_charsmap(bytes(table))
    except ValueError:
        return
    Precompiled(bytes(table)).normalize_str(text)
