"""The choice of drafters for a target, with the alternatives and the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from draftwire_core.suggesting.candidate import ACCEPTANCE, DrafterCandidate, Kind, expected_gain
from draftwire_core.suggesting.known_drafters import MODEL, KnownDrafter, fitting, known_drafters
from draftwire_core.suggesting.target_facts import TargetFacts
from draftwire_tools.small_model import SMOLLM2

LEAST_RATIO = 2
"""A drafter with a model is chosen if the target reads at least so many times its bytes of weights for a token: with
less it cannot pay, and whether it does with more is measured while it drafts."""
UNIVERSAL_READ_BYTES = 97_000_000
"""Bytes of weights that SmolLM2-135M-Instruct reads for a token."""
_MEGA = 1_000_000
_SCHEME = "hf://"
LOOKUP = DrafterCandidate(
    kind=Kind.LOOKUP,
    name="local:ngram",
    reason="looks the text up in itself; needs no model, and gains only on text that repeats itself",
)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The drafters that fit a target, best first, and those that do not."""

    facts: TargetFacts
    candidates: tuple[DrafterCandidate, ...]
    """All that were considered, in the order in which they would be chosen; lookup is the last."""

    @property
    def usable(self) -> tuple[DrafterCandidate, ...]:
        """The candidates that can be chosen, lookup left out: the first that can be had drafts next to lookup."""
        return tuple(each for each in self.candidates if each.fits and each.kind is not Kind.LOOKUP)


def suggest(
    facts: TargetFacts, *, on_gpu: bool = False, table: Sequence[KnownDrafter] | None = None, here: bool = False
) -> Suggestion:
    """Returns the choice for a target.

    The order is: layers and heads in the checkpoint's own directory, a published head or a small model with the same
    tokenizer, the universal drafter. on_gpu: whether the target runs on a GPU, where no head has been timed yet.
    table: of published drafters, by default the one next to the code. here: whether the universal drafter's file has
    been fetched.
    """
    known = known_drafters() if table is None else table
    found = [*_own(facts, on_gpu), *_published(facts, known, on_gpu), _universal(facts, here)]
    return Suggestion(facts, (*(_with_gain(each, facts) for each in found), LOOKUP))


def _own(facts: TargetFacts, on_gpu: bool) -> Iterator[DrafterCandidate]:
    if facts.mtp_layers:
        size = facts.bytes_per_token // max(1, facts.layers)
        made = DrafterCandidate(
            kind=Kind.MTP,
            name="local:mtp",
            read_bytes=size,
            memory_bytes=size,
            reason=f"the checkpoint has {facts.mtp_layers} multi-token prediction layer(s)",
            checked="the checkpoint's own",
        )
        if facts.gguf:
            made = replace(made, fits=False, reason=f"{made.reason}, which are not read from GGUF files")
        yield _on_device(made, on_gpu)
    for head in facts.heads:
        yield _on_device(
            DrafterCandidate(
                kind=Kind(head.kind),
                name=f"{head.directory.name} ({head.kind})",
                source=str(head.directory),
                read_bytes=head.bytes,
                memory_bytes=head.bytes,
                reason="lies in the checkpoint's directory",
                checked="the checkpoint's own",
            ),
            on_gpu,
        )


def _published(facts: TargetFacts, table: Sequence[KnownDrafter], on_gpu: bool) -> Iterator[DrafterCandidate]:
    for entry, how in fitting(facts, table):
        read = entry.read_megabytes * _MEGA
        made = DrafterCandidate(
            kind=Kind(entry.kind),
            name=entry.repository,
            source=f"{_SCHEME}{entry.repository}",
            revision=entry.revision,
            reason=f"published for such targets, found {how}",
            fetch_bytes=entry.download_megabytes * _MEGA,
            read_bytes=read,
            memory_bytes=entry.download_megabytes * _MEGA,
            slot_bytes=entry.slot_bytes,
            licence=entry.licence,
            checked=entry.checked,
        )
        yield _large_enough(made if entry.kind == MODEL else _on_device(made, on_gpu), facts)


def _universal(facts: TargetFacts, here: bool) -> DrafterCandidate:
    made = DrafterCandidate(
        kind=Kind.UNIVERSAL,
        name="SmolLM2-135M-Instruct",
        source=SMOLLM2.name,
        reason="small and general, and translates its guesses to the target's tokens",
        fetch_bytes=0 if here else SMOLLM2.download_size,
        read_bytes=UNIVERSAL_READ_BYTES,
        memory_bytes=SMOLLM2.size,
        licence="apache-2.0",
        checked="run with SmolLM2's and Gemma 3's tokenizers",
    )
    return _large_enough(made, facts)


def _on_device(made: DrafterCandidate, on_gpu: bool) -> DrafterCandidate:
    """Leaves a head for a target on a GPU to those who name it, until it has been timed there. Medusa's heads read the
    last hidden state alone, which a pass computes anyway."""
    if not on_gpu or made.kind is Kind.MEDUSA or not made.fits:
        return made
    return replace(made, fits=False, reason=f"{made.reason}; not timed on GPUs yet, where it drafts if it is named")


def _large_enough(made: DrafterCandidate, facts: TargetFacts) -> DrafterCandidate:
    """Refuses a drafter that is too large for the target to pay."""
    if not facts.bytes_per_token:
        return made
    ratio = facts.bytes_per_token / made.read_bytes
    sizes = f"the target reads {megabytes(facts.bytes_per_token)} a token, the drafter {megabytes(made.read_bytes)}"
    if not made.fits or ratio >= LEAST_RATIO:
        return replace(made, reason=f"{made.reason}; {sizes}")
    return replace(
        made, fits=False, reason=f"the target is too small for it to pay: {sizes}; {LEAST_RATIO} times is the least"
    )


def _with_gain(made: DrafterCandidate, facts: TargetFacts) -> DrafterCandidate:
    if not facts.bytes_per_token or made.kind not in ACCEPTANCE:
        return made
    return replace(made, gain=expected_gain(ACCEPTANCE[made.kind], made.read_bytes / facts.bytes_per_token))


def megabytes(size: int) -> str:
    """Returns a size for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / _MEGA:.0f} MB"
