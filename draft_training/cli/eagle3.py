"""``draftwire train eagle3``: a layer on a target's inner hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draft_training.cli.options import Device, check_training_installed, device_of
from draftwire.cli.failure import Failure


def eagle3(
    model: Annotated[str, typer.Option(metavar="DIR", help="The target: a directory or a hub id. It is not changed.")],
    prompts: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Texts to learn from: JSON lines with `prompt` or `text`, or a text file; may be repeated.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the drafter. An interrupted training resumes there.")
    ],
    ahead: Annotated[int, typer.Option(min=1, max=16, help="Steps of drafting to learn: tokens guessed ahead.")] = 4,
    draft_vocab: Annotated[
        int, typer.Option(min=0, help="Draft only this many of the texts' most frequent tokens; 0 for all.")
    ] = 0,
    aux_layers: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Layers of the target whose inputs the drafter reads; their number stands for the last one's output, "
            "which MTP layers read. By default the usual ones of EAGLE-3.",
        ),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300,
    batch: Annotated[int, typer.Option(min=1, help="Windows per step.")] = 8,
    window: Annotated[int, typer.Option(min=16, help="Tokens per window.")] = 256,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate.")] = 1e-3,
    continuations: Annotated[
        int,
        typer.Option(min=0, help="How often the target continues each text; 0 trains on the texts alone."),
    ] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a continuation.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature of the continuations.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the continuations and of the training.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default as many as torch finds.")] = None,
    device: Device = "auto",
) -> None:
    """Train an EAGLE-3 drafter on a frozen target; attach it as local:eagle3?model=DIR."""
    check_training_installed()
    from draft_training.eagle.run import EagleOrder, run
    from draft_training.frozen_target.order import TrainingError

    order = EagleOrder(
        model=model,
        prompts=tuple(prompts),
        out=out,
        ahead=ahead,
        draft_vocab=draft_vocab,
        aux_layers=_layers(aux_layers),
        steps=steps,
        batch=batch,
        window=window,
        learning_rate=learning_rate,
        continuations=continuations,
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        threads=threads,
        device=device_of(device, lambda line: print(line, flush=True)),
    )
    try:
        run(order, lambda line: print(line, flush=True))
    except TrainingError as error:
        raise Failure(str(error)) from error


def _layers(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in given.split(",") if given)
    except ValueError:
        raise Failure(f"--aux-layers must be numbers with commas between them, got {given!r}") from None
