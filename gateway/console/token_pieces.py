"""Which token each part of an output's text comes from."""

from __future__ import annotations

from draftwire import Chunk

Piece = tuple[str, str | None]
"""Text, and the drafter whose token it comes from; None for the target's own."""


class TokenPieces:
    """Splits the text of one request at its tokens. All pieces together are the text."""

    def __init__(self) -> None:
        self._length = 0
        """Characters taken so far."""
        self._begun: list[tuple[int, str | None]] = []
        """Where each token begins whose text is not over, and whose it is."""

    def take(self, chunk: Chunk) -> list[Piece]:
        """Take in a chunk; return the pieces of the text that became final with it.

        A verifier that does not tell where tokens begin gets the texts of the tokens on their own, in which a character
        that is split over tokens shows as U+FFFD.
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
