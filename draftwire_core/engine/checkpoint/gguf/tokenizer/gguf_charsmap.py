"""SentencePiece's table of replacements of characters, checked, since the library that applies it trusts it."""

from __future__ import annotations

import numpy as np

_LEAF, _FAR = 1 << 8, 1 << 9
_VALUE = (1 << 31) - 1
_LABEL = (1 << 31) | 0xFF
_LABELS = np.arange(256, dtype=np.int64)
_NODES_AT_ONCE = 4096


def check_charsmap(table: bytes) -> None:
    """Raises ValueError for a table that leads the library beyond its end.

    table: the length of a trie in bytes as a 32-bit number, the trie as a compact double array of such numbers, and the
    replacements, each of which ends with a zero byte.
    """
    size = int.from_bytes(table[:4], "little")
    if len(table) < 8 or size % 4 or not 4 <= size < len(table) - 4:
        raise ValueError(f"its trie has {size} bytes, and the table {len(table)}")
    units = np.frombuffer(table, "<u4", size // 4, 4).astype(np.int64)
    texts = table[4 + size :]
    if texts[-1] or not _is_text(texts):
        raise ValueError("its replacements are not UTF-8 that ends with a zero byte")
    starts = np.array([(byte & 0xC0) != 0x80 for byte in texts])
    base = (units >> 10) << ((units & _FAR) >> 6)
    seen = np.zeros(len(units), bool)
    seen[0] = True
    frontier = np.array([0])
    while len(frontier):
        found = []
        for at in range(0, len(frontier), _NODES_AT_ONCE):
            nodes = frontier[at : at + _NODES_AT_ONCE]
            # A node's position is where its parent's base and its label lead; its own base counts from there.
            children = (nodes ^ base[nodes])[:, None] ^ _LABELS
            if (children >= len(units)).any():
                raise ValueError("its trie leads beyond its end")
            leaves = children[(units[nodes] & _LEAF) != 0, 0]
            values = units[leaves] & _VALUE
            if (values >= len(texts)).any() or not starts[values].all():
                raise ValueError("its trie names replacements that are not there")
            next_ones = children[:, 1:]
            next_ones = next_ones[(units[next_ones] & _LABEL) == _LABELS[1:]]
            found.append(np.unique(next_ones[~seen[next_ones]]))
            seen[found[-1]] = True
        frontier = np.concatenate(found)


def _is_text(texts: bytes) -> bool:
    try:
        texts.decode()
    except UnicodeDecodeError:
        return False
    return True
