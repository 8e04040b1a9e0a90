"""Features for drafters outside the engine's thread, handed out as the target computes them."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from draftwire_core.engine.device.device_copy import HostCopy, apart, together
from draftwire_core.engine.engine.sequence import Sequence
from draftwire_core.engine.engine.step_result import SequenceFeatures
from draftwire_core.engine.model.features.feature_codec import encode, feature_bytes
from draftwire_core.engine.model.features.held_states import MOST_ROWS
from draftwire_core.engine.model.features.taps import Tap
from draftwire_core.engine.model.packed_batch import PackedBatch

MOST_UNSENT = 8 << 20
"""Most bytes of features handed out for a drafter and not yet sent to it. The others stay with the KV slots."""
MOST_KINDS = 8
"""Most kinds of features at once: each keeps a vector for every KV slot."""
MOST_WIDTH = 16
"""Most elements that are kept for a KV slot, in all kinds together, as a multiple of the target's hidden size."""
MOST_SHARE = 0.5
"""Most time that all maps together may take of a pass, as a multiple of its time without them. Maps of drafters that
are worth it take a few hundredths; for others it bounds what they cost until their accounts are empty."""
MOST_RESTING_SHARE = 0.01
"""Most time of passes that reading may take for a tap whose drafters are paused."""
MOST_BYTES = 1 << 20
"""Most bytes of one sequence's features handed out in one piece, unless one feature is larger."""


class TooManyKinds(Exception):
    """Raised for one kind of features more than there may be at once, and for more elements of them."""


class FeatureKind(NamedTuple):
    """The kind of features: drafters with equal ones share a tap."""

    layers: tuple[int, ...]
    shape: Hashable
    weights_sha256: str


@dataclass(slots=True)
class _Reader:
    """A drafter's use of a tap."""

    kind: FeatureKind
    dtype: str
    feature_bytes: int
    window: int = 0
    paused: bool = False
    credit: int = MOST_UNSENT
    """Bytes that may be handed out now."""
    handed_out: dict[int, int] = field(default_factory=dict)
    """For each of its sequences, the position up to which features have been handed out."""
    seconds: float = 0.0
    """Time spent on its features since last asked."""

    def takes(self, sequence: Sequence) -> bool:
        """Whether features of a sequence are of use to the drafter now."""
        return not self.paused or sequence.spec.always_draft


class FeatureStreams:
    """Holds the taps of drafters outside the engine's thread, and each drafter's place in each sequence.

    Features are kept by KV slot, so a drafter that is attached late, or again, or that reads slowly, finds those of the
    committed tokens there, and so does one whose sequence began with slots of the prefix cache.
    """

    def __init__(self, running: Mapping[int, Sequence], hidden_size: int):
        """running: the engine's sequences that may hold KV slots. hidden_size: elements of the target's states."""
        self._most_width = MOST_WIDTH * hidden_size
        self._running = running
        self._taps: dict[FeatureKind, Tap] = {}
        self._readers: dict[str, _Reader] = {}
        self._coming: list[tuple[Tap, torch.Tensor, torch.Tensor]] = []
        """Features of a GPU's last pass that are on their way to the host: the tap, slots and features."""
        self._copy: HostCopy | None = None
        """The one copy of them all."""

    def __bool__(self) -> bool:
        """Whether there are any taps."""
        return bool(self._taps)

    def add(self, source: str, kind: FeatureKind, dtype: str, tap: Tap | None = None, *, window: int = 0) -> bool:
        """Adds a drafter that reads features as bytes of a type (`feature_codec`).

        tap: makes these features; None if another drafter's does. window: last tokens of a sequence whose features are
        of use to the drafter; 0 for all. Returns False, without effect, if no tap makes them. Raises TooManyKinds.
        """
        if kind not in self._taps and len(self._taps) >= MOST_KINDS:
            raise TooManyKinds(f"{MOST_KINDS} kinds of features are in use; at most {MOST_KINDS} may be")
        if kind not in self._taps and tap is not None:
            kept = sum(each.states.width for each in self._taps.values())
            if kept + tap.states.width > self._most_width:
                raise TooManyKinds(
                    f"features of {kept} elements a token are kept already; {tap.states.width} more would exceed "
                    f"{self._most_width}, {MOST_WIDTH} times the target's hidden size"
                )
        known = self._taps.setdefault(kind, tap) if tap is not None else self._taps.get(kind)
        if known is None:
            return False
        self._readers[source] = _Reader(kind, dtype, feature_bytes(known.states.width, dtype), window)
        return True

    def remove(self, source: str) -> None:
        """Removes a drafter; unknown ones are ignored. The last one of its kind takes the tap with it."""
        reader = self._readers.pop(source, None)
        if reader is not None and all(other.kind != reader.kind for other in self._readers.values()):
            del self._taps[reader.kind]

    def open(self, source: str, sequence_id: int) -> None:
        """Starts handing out a sequence's features for a drafter, from the first on; others' sources are ignored."""
        reader = self._readers.get(source)
        if reader is not None:
            reader.handed_out[sequence_id] = 0

    def close(self, source: str, sequence_id: int) -> None:
        """Stops handing out a sequence's features for a drafter."""
        reader = self._readers.get(source)
        if reader is not None:
            reader.handed_out.pop(sequence_id, None)

    def end(self, sequence_id: int) -> None:
        """Forgets a sequence that has ended."""
        for reader in self._readers.values():
            reader.handed_out.pop(sequence_id, None)

    def pause(self, source: str, *, paused: bool) -> None:
        """Records whether a drafter is paused: it then gets features only of sequences that always draft."""
        reader = self._readers.get(source)
        if reader is not None:
            reader.paused = paused

    def sent(self, source: str, count: int | None = None) -> None:
        """Records that `count` bytes have been sent to a drafter, so that more may be handed out for it; None for all
        that were handed out."""
        reader = self._readers.get(source)
        if reader is not None:
            reader.credit = MOST_UNSENT if count is None else min(reader.credit + count, MOST_UNSENT)

    def taps(self, parts: ListLike[tuple[Sequence, range]]) -> list[Tap]:
        """Returns the taps for a pass: those with a drafter that drafts for one of its sequences.

        parts: the pass's sequences, each with its rows, in their order. A tap reads the rows of those sequences that
        its drafters draft for. The states of those whose drafters are all paused are held unmapped. A tap whose
        drafters are paused for all of them, and that reads for long, does not read.
        """
        if not self._taps:
            return []
        read: dict[FeatureKind, dict[int, bool]] = {}
        for reader in self._readers.values():
            if not reader.handed_out:
                continue
            for index, (sequence, _) in enumerate(parts):
                if sequence.spec.sequence_id in reader.handed_out:
                    found = read.setdefault(reader.kind, {})
                    found[index] = found.get(index, False) or reader.takes(sequence)
        mapping = sum(any(found.values()) for found in read.values())
        for kind, found in list(read.items()):
            tap = self._taps[kind]
            if not any(found.values()) and tap.reading_share > MOST_RESTING_SHARE:
                del read[kind]
                continue
            self._read_rows(tap, [(parts[index][1], now) for index, now in sorted(found.items())])
            tap.most_share = MOST_SHARE / max(1, mapping)
        return [tap for kind, tap in self._taps.items() if kind in read]

    @staticmethod
    def _read_rows(tap: Tap, parts: ListLike[tuple[range, bool]]) -> None:
        """Sets the rows that a tap reads. parts: rows, and whether they are mapped at once."""
        tap.rows = np.concatenate([np.arange(rows.start, rows.stop) for rows, _ in parts])
        resting = np.concatenate([np.full(len(rows), not now) for rows, now in parts])
        if resting.all():
            tap.rows = tap.rows[-MOST_ROWS:]  # no more are held
        tap.resting = resting if resting.any() and not resting.all() else bool(resting.any())

    def tapped(self, batch: PackedBatch) -> None:
        """Settles a pass with its taps: the drafters that read are charged for them, and the slots that others' taps
        have not read are unknown to these. Queues the copy of what a GPU has mapped."""
        self._arrive()
        for kind, tap in self._taps.items():
            if tap in batch.taps:
                seconds = tap.take_seconds()
                readers = [each for each in self._readers.values() if each.kind == kind and each.handed_out]
                readers = [each for each in readers if not each.paused] or readers
                for reader in readers:
                    reader.seconds += seconds / len(readers)
            else:
                tap.forget(batch.numbers[2])
        self._coming = [(tap, *part) for tap in self._taps.values() for part in tap.take_coming()]
        if self._coming:
            self._copy = HostCopy(together([features for *_, features in self._coming]))

    def _arrive(self) -> None:
        """Keeps the features of a GPU's last pass. Their copy is queued right behind the pass, and is made while the
        step is settled."""
        if self._copy is not None:
            found = apart(self._copy.get(), [features for *_, features in self._coming])
            for (tap, slots, _), features in zip(self._coming, found, strict=True):
                tap.states.write(slots, features)
            self._coming, self._copy = [], None

    def hand_out(self) -> list[SequenceFeatures]:
        """Returns the features that have become known since the last call, as far as the drafters' credit goes."""
        self._arrive()
        found: list[SequenceFeatures] = []
        for source, reader in self._readers.items():
            for sequence_id in reader.handed_out:
                sequence = self._running.get(sequence_id)
                if sequence is not None and reader.takes(sequence):
                    found += self._hand_out(source, reader, sequence)
        return found

    def _hand_out(self, source: str, reader: _Reader, sequence: Sequence) -> list[SequenceFeatures]:
        sequence_id = sequence.spec.sequence_id
        start, end = reader.handed_out[sequence_id], len(sequence.slots)
        if reader.window:
            start = max(start, sequence.length - reader.window)
        if start >= end:
            return []
        tap = self._taps[reader.kind]
        slots = sequence.slots.array()[start:end]
        began = time.perf_counter()
        tap.catch_up(slots)
        tap.take_seconds()  # of this reader alone, and part of what is measured here
        states = tap.states
        known = np.flatnonzero(states.known(slots))
        taken = known[: reader.credit // reader.feature_bytes]
        if len(taken) == len(known):
            reader.handed_out[sequence_id] = end
        elif len(taken):
            reader.handed_out[sequence_id] = start + int(taken[-1]) + 1
        reader.credit -= len(taken) * reader.feature_bytes
        pieces = [
            SequenceFeatures(sequence_id, source, start + int(part[0]), encode(states.read(slots[part]), reader.dtype))
            for part in _pieces(taken, max(1, MOST_BYTES // reader.feature_bytes))
        ]
        reader.seconds += time.perf_counter() - began
        return pieces

    def share_of(self, seconds: float) -> float:
        """Returns the share that features have taken of a time that began after the last `take_seconds`."""
        spent = sum(reader.seconds for reader in self._readers.values())
        return min(1.0, spent / seconds) if seconds > 0 else 0.0

    def take_seconds(self) -> dict[str, float]:
        """Returns the time spent on features since the last call, by drafter."""
        spent = {source: reader.seconds for source, reader in self._readers.items() if reader.seconds}
        for source in spent:
            self._readers[source].seconds = 0.0
        return spent


def _pieces(positions: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Yields consecutive positions, at most `most` at a time, of ascending ones."""
    for run in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1):
        for first in range(0, len(run), most):
            yield run[first : first + most]
