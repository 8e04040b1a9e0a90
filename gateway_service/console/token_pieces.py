"""The source of each part of an output's text."""

from __future__ import annotations

from draftwire import Chunk

Piece = tuple[str, str | None]
"""Text, and the drafter that its token comes from; None for the target's own."""


class TokenPieces:
    """Splits the text of one request at its tokens. The pieces together are the text."""

    def __init__(self) -> None:
        self._length = 0
        """Number of characters taken so far."""
        self._begun: list[tuple[int, str | None]] = []
        """Offset and source of each token whose text is not complete."""

    def take(self, chunk: Chunk) -> list[Piece]:
        """Adds a chunk; returns the pieces of the text that became final with it.

        For a verifier that reports no token offsets, the pieces are the texts of single tokens, in which a character
        split over tokens shows as U+FFFD.
        """
        if chunk.token_ids and not chunk.text_offsets:
            return list(zip(chunk.token_texts, chunk.sources, strict=True))
        self._begun += zip(chunk.text_offsets, chunk.sources, strict=True)
        if not self._begun:
            return []
        pieces: list[Piece] = []
        begin, end = self._length, self._length + len(chunk.text)
        while begin < end:
            while len(self._begun) > 1 and self._begun[1][0] <= begin:
                self._begun.pop(0)
            over = min(self._begun[1][0], end) if len(self._begun) > 1 else end
            pieces.append((chunk.text[begin - self._length : over - self._length], self._begun[0][1]))
            begin = over
        self._length = end
        return pieces
