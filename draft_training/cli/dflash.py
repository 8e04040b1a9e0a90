"""``draftwire train dflash``: a decoder of blocks on a target's inner hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draft_training.cli.options import Device, check_training_installed, device_of
from draftwire.cli.failure import Failure


def dflash(
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
    block: Annotated[
        int, typer.Option(min=2, max=128, help="Size of a block: one token more than it guesses ahead.")
    ] = 8,
    layers: Annotated[int, typer.Option(min=1, max=16, help="Layers of the drafter.")] = 2,
    anchors: Annotated[int, typer.Option(min=1, help="Random places per window and step at which to guess.")] = 32,
    draft_vocab: Annotated[
        int, typer.Option(min=0, help="Draft only this many of the texts' most frequent tokens; 0 for all.")
    ] = 0,
    mask_token: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Id of the token that stands for one to be guessed; by default the tokenizer's mask, an unused id, "
            "its padding or its end of text.",
        ),
    ] = None,
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
    """Train a DFlash drafter on a frozen target; attach it as local:dflash?model=DIR."""
    check_training_installed()
    from draft_training.dflash.run import DflashOrder, run
    from draft_training.frozen_target.order import TrainingError

    order = DflashOrder(
        model=model,
        prompts=tuple(prompts),
        out=out,
        block=block,
        layers=layers,
        anchors=anchors,
        draft_vocab=draft_vocab,
        mask_token=mask_token,
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
