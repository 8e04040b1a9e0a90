"""The order of a training of an EAGLE-3 drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from draftwire_core.training.frozen_target.order import DraftVocabulary, TrainingError, TrainingOrder


@dataclass(frozen=True, slots=True)
class EagleOrder(TrainingOrder):
    """Options of a training; see `draftwire train eagle3`."""

    ahead: Annotated[int, typer.Option(min=1, max=16, help="Steps of drafting to learn: tokens guessed ahead.")] = 4
    draft_vocab: DraftVocabulary = 0
    aux_layers: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Layers of the target whose inputs the drafter reads; their number stands for the last one's output, "
            "which MTP layers read. By default the usual ones of EAGLE-3.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raises TrainingError for layers that are no numbers."""
        _ = self.layers_read

    @property
    def layers_read(self) -> tuple[int, ...]:
        """Indices of the layers of `aux_layers`."""
        try:
            return tuple(int(each) for each in self.aux_layers.split(",") if self.aux_layers)
        except ValueError:
            raise TrainingError(
                f"--aux-layers must be numbers with commas between them, got {self.aux_layers!r}"
            ) from None
