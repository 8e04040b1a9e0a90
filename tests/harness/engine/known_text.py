"""A stand-in for a draft model that knows a text by heart: a model's answers, computed from the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.translation.realignment import append_text
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree

_SURE = 20.0
"""Logit of the next token; all others have 0."""
_AHEAD = 48
"""Bytes of the rest of the text that are tokenized where no token of the whole text begins."""


class KnownText:
    """A packed model of one text. Its next token is the one that follows in the text as its tokenizer reads the whole,
    or where none begins, as it reads the rest. Beyond the text, and after another one, all tokens are alike."""

    def __init__(self, token_map: TokenMap, target_tokens: Sequence[int], slots: int = 4096):
        self.device = torch.device("cpu")
        self.group_size, self.most_rows, self.context_length = 1, 512, 1 << 20
        self.pool = SlotPool(slots)
        self._vocabulary = token_map.draft
        self.vocab_size = len(self._vocabulary)
        tokens: list[int] = []
        append_text(tokens, target_tokens, token_map)
        self._text = b"".join(map(self._symbol, tokens))
        self._native: dict[int, int] = {}
        offset = 0
        for token in tokens:
            self._native[offset] = token
            offset += len(self._symbol(token))
        self._read: dict[int, int | None] = {}
        """By slot, how much of the text has been read with it; None for another text."""

    def forward(self, batch: PackedBatch) -> Tensor:
        """Returns the logits of the wanted rows: [wanted, vocabulary]."""
        tokens, _, slots = batch.numbers.tolist()
        for lane in batch.lanes:
            at = self._read[int(lane.context[-1])] if len(lane.context) else 0
            for row in lane.rows:
                symbol = self._symbol(tokens[row])
                matches = at is not None and self._text.startswith(symbol, at)
                at = at + len(symbol) if at is not None and matches else None
                self._read[slots[row]] = at
        logits = torch.zeros(len(batch.wanted), self.vocab_size)
        for index, row in enumerate(batch.wanted):
            at = self._read[slots[row]]
            if at is not None and at < len(self._text):
                logits[index, self._next(at)] = _SURE
        return logits

    def _next(self, at: int) -> int:
        if at not in self._native:
            self._native[at] = self._vocabulary.encode(self._text[at : at + _AHEAD])[0]
        return self._native[at]

    def _symbol(self, token: int) -> bytes:
        """The bytes of a token; for a special one, bytes that no text has."""
        return self._vocabulary.spellings[token] or b"\xfe%d\xfe" % token


class KnownTextDrafting:
    """Counts what a drafter of a model that knows the target's text by heart drafts rightly when the text is
    verified greedily."""

    def __init__(
        self,
        token_map: TokenMap,
        tokens: Sequence[int],
        *,
        nodes: int = 8,
        prompt: int = 8,
        model: PackedModel | None = None,
    ):
        """tokens: the target's tokens of the text, of which the first `prompt` are given. model: another draft model
        than one that knows the text."""
        drafter = TranslatingDrafter(model or KnownText(token_map, tokens), token_map)  # type: ignore[arg-type]
        size = len(token_map.target)
        known = list(tokens[:prompt])
        tree = TokenTree(len(known), known[-1])
        reader = ProposalReader("draft", nodes, size)
        drafter.open(0, DraftSpec(list(known), SamplingParams(temperature=0.0), nodes, len(tokens), size))
        self.steps = self.accepted = self.missed = self.passes = 0
        self.wrong: list[tuple[int, list[int]]] = []
        """Indices of the tokens that were missed, with the tokens that were drafted in their place."""
        while len(known) < len(tokens):
            while drafter.busy:
                self.passes += 1
                for proposal in drafter.grow().proposals.values():
                    reader.merge(proposal, tree, known)
            rest = list(tokens[len(known) :])
            walked = tree.walk(rest)
            last = walked[-1] if walked else tree.root
            # The last token of all is never drafted, since it comes with the verdict on those before it.
            if len(walked) < len(rest) - 1 and (last.children or tree.size < nodes):
                self.missed += 1
                self.wrong.append((len(known) + len(walked), [child.token for child in last.children.values()]))
            verdict = rest[: len(walked) + 1]
            self.steps += 1
            self.accepted += len(walked)
            tree.commit(verdict)
            known += verdict
            drafter.commit(0, len(known), verdict)
        drafter.close(0)
        self.share = self.accepted / max(1, self.accepted + self.missed)
        """Share of the tokens right, of those for which there was room in the tree."""
