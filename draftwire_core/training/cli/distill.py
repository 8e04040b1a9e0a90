"""``draftwire train distill``: a draft model learns from a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.cli.options import Json
from draftwire_core.training.cli.options import (
    Draft,
    LearningRate,
    Seed,
    Threads,
    Top,
    check_training_installed,
    device_of,
    show_downloads,
)
from draftwire_core.training.frozen_target.order import Device

Divergences = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Divergence to minimize: forward-kl, reverse-kl, total-variation or jensen-shannon."
    ),
]


@connecting
def distill(
    draft: Draft,
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Prompts: a .jsonl file with text or token_ids, or one text per line.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the data, the training state and the new checkpoint.")
    ],
    verifier: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Learn from a running verifier, started with --allow-scoring."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="DIR", help="Learn from a target that is loaded in this process.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a continuation of a prompt.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature of the continuations.")] = 1.0,
    samples: Annotated[int, typer.Option(min=1, help="Continuations per prompt.")] = 1,
    top: Top = 32,
    max_megabytes: Annotated[
        int, typer.Option(min=1, help="Size of the data set at which collecting ends, in MiB.")
    ] = 1024,
    divergence: Divergences = "forward-kl",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 400,
    batch_size: Annotated[int, typer.Option(min=1, help="Continuations per step.")] = 8,
    learning_rate: LearningRate = 5e-4,
    held_out: Annotated[
        float, typer.Option(min=0.01, max=0.5, help="Share of the prompts held out to measure acceptance on.")
    ] = 0.1,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two checkpoints.")] = 100,
    seed: Seed = 0,
    threads: Threads = 0,
    device: Device = "auto",
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Train a draft model on a target's outputs. After an interruption, the same command resumes where it stopped."""
    if (verifier is None) == (target is None):
        raise ValueError("--verifier, --target: give exactly one of them")
    check_training_installed()
    import torch

    from draftwire_core.engine.model.packed_model import ModelLoadError
    from draftwire_core.training.data.dataset import DatasetError
    from draftwire_core.training.distillation.distiller import CollectionOptions, Distiller
    from draftwire_core.training.distillation.divergence import DIVERGENCES
    from draftwire_core.training.distillation.draft import Draft as DraftModel
    from draftwire_core.training.distillation.trainer import DistillationOptions, TrainingStateError
    from draftwire_core.training.teachers.local_teacher import LocalTeacher
    from draftwire_core.training.teachers.teacher import Teacher
    from draftwire_core.training.teachers.verifier_teacher import VerifierTeacher

    kind = next((each for each in DIVERGENCES if each == divergence), None)
    if kind is None:
        raise ValueError(f"--divergence: expected one of {', '.join(DIVERGENCES)}, got {divergence!r}")
    if threads:
        torch.set_num_threads(threads)
    console = Console(stderr=True, highlight=False, markup=False)
    show_downloads(lambda line: console.print(line, soft_wrap=True))
    device = device_of(device, lambda line: console.print(line, soft_wrap=True))
    teacher: Teacher
    try:
        console.print(f"loading {draft}" + (f" and {target}" if target else ""), soft_wrap=True)
        model = DraftModel(draft, device=device)
        teacher = (
            VerifierTeacher(verifier, **connection.options()) if verifier else LocalTeacher(str(target), device=device)
        )
        try:
            result = Distiller(
                teacher,
                model,
                out,
                CollectionOptions(max_tokens, temperature, samples, top, most_bytes=max_megabytes << 20),
                DistillationOptions(steps, batch_size, learning_rate, divergence=kind, seed=seed),
                lambda line: console.print(line, soft_wrap=True),
                held_out=held_out,
                checkpoint_every=checkpoint_every,
            ).run(prompts)
        finally:
            teacher.close()
    except (ModelLoadError, DatasetError, TrainingStateError) as error:
        raise Failure(str(error)) from error
    if result.worse:
        console.print(f"warning: {result.worse}", style="yellow", soft_wrap=True)
    if as_json:
        print(json.dumps(_as_json(result)))
    else:
        print(f"{result.directory}: held-out acceptance {result.after}; before, {result.before}")


def _as_json(result: Any) -> dict[str, Any]:
    return {
        "draft": str(result.directory),
        "worse": result.worse or None,
        "examples": result.examples,
        "held_out": result.held_out,
        "steps": result.steps,
        "positions": result.after.positions,
        "coupled_acceptance_before": result.before.coupled,
        "coupled_acceptance": result.after.coupled,
        "agreement_before": result.before.agreement,
        "agreement": result.after.agreement,
    }
