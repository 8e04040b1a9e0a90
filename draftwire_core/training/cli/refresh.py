"""``draftwire train refresh``: a drafter keeps up with the traffic."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire_core.training.cli.options import (
    LearningRate,
    Rounds,
    Share,
    Threads,
    Top,
    TrialRequests,
    TrialSeconds,
    check_training_installed,
    device_of,
    show_downloads,
)
from draftwire_core.training.frozen_target.order import Device
from draftwire_tools.loading import interrupt
from draftwire_tools.rollout import parse_share


@connecting
def refresh(
    draft: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="What to start from, a directory or a hub id: a draft model, or an EAGLE-3 or DFlash drafter.",
        ),
    ],
    drafter: Annotated[str, typer.Option(metavar="NAME", help="Name of the drafter that new drafts replace.")],
    canary: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="A second drafter service, not attached, into which new drafts are loaded."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for checkpoints; the canary must see it under the same path.")
    ],
    verifier: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="A verifier started with --allow-scoring and --share-traffic."),
    ] = "localhost:50051",
    rounds: Rounds = 0,
    requests: Annotated[int, typer.Option(min=8, help="New finished requests to collect per round.")] = 64,
    replay: Annotated[int, typer.Option(min=8, help="Most requests kept for training.")] = 512,
    top: Top = 32,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps per round.")] = 200,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests per step.")] = 8,
    learning_rate: LearningRate = 5e-4,
    share: Share = "50%",
    trial_requests: TrialRequests = 16,
    trial_seconds: TrialSeconds = 600,
    threads: Threads = 1,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="How far the training yields to other processes (niceness).")
    ] = 10,
    device: Device = "auto",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The verifier's target, for EAGLE-3 and DFlash drafters: a directory or a hub id; by default the one "
            "that the drafter's config.json names.",
        ),
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Train a drafter on the served traffic, and roll it out whenever its acceptance is better."""
    check_training_installed()
    import torch

    from draftwire_core.engine.model.packed_model import ModelLoadError
    from draftwire_core.training.distillation.draft import Draft as DraftModel
    from draftwire_core.training.distillation.trainer import DistillationOptions
    from draftwire_core.training.refresh.draft_learner import DraftLearner
    from draftwire_core.training.refresh.head_checkpoint import HeadCheckpoint, is_head
    from draftwire_core.training.refresh.head_learner import HeadLearner
    from draftwire_core.training.refresh.learner import Learner
    from draftwire_core.training.refresh.refresher import Refresher, RefreshOptions, Standing, read_standing
    from draftwire_core.training.refresh.traffic_follower import TrafficFollower
    from draftwire_core.training.refresh.trial import TrialOptions
    from draftwire_core.training.teachers.verifier_teacher import VerifierTeacher

    part = parse_share(share)
    os.nice(nice)
    if threads:
        torch.set_num_threads(threads)
    out.mkdir(parents=True, exist_ok=True)
    standing = read_standing(out) or Standing(0, draft, drafter, canary)
    console = Console(highlight=False, markup=False)
    show_downloads(lambda line: console.print(line, soft_wrap=True))
    device = device_of(device, lambda line: console.print(line, soft_wrap=True))
    training = DistillationOptions(steps, batch_size, learning_rate)
    teacher = VerifierTeacher(verifier, **connection.options())

    def learner() -> Learner[Any]:
        if is_head(standing.draft):
            head = HeadCheckpoint.load(standing.draft, target, device)
            return HeadLearner(standing.draft, head, training, out)
        if target is not None:
            raise Failure("--target: a draft model learns from the verifier's probabilities and needs none")
        return DraftLearner(DraftModel(standing.draft, device=device), teacher, training, top)

    before = signal.signal(signal.SIGTERM, interrupt)  # so that a trial is withdrawn
    try:
        follower = TrafficFollower(teacher.client)
        try:
            follower.wait_until_following(30.0)
            console.print(f"following {verifier}; {standing.drafter} drafts with {standing.draft}", soft_wrap=True)
            Refresher(
                teacher,
                follower,
                learner(),
                out,
                standing,
                RefreshOptions(requests, replay),
                TrialOptions(part, trial_requests, trial_seconds),
                lambda line: console.print(line, soft_wrap=True),
            ).run(rounds or None)
        finally:
            follower.close()
    except (ModelLoadError, TimeoutError) as error:
        raise Failure(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)
        teacher.close()
