"""``draftwire train learn``: a draft model learns from what its verifier serves."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire_core.engine.device.choices import QuantisedWeights
from draftwire_core.training.cli.options import (
    LearningRate,
    Rounds,
    Share,
    Threads,
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
def learn(
    directory: Annotated[
        Path,
        typer.Option("--dir", metavar="DIR", help="Directory of texts, checkpoints and state, for one target."),
    ],
    verifier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A verifier started with --share-traffic; by default localhost:50051. Give further ones of the same "
            "target likewise: texts come from all, trials run at the first, and what takes over there drafts at all.",
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the drafter that learns; by default the first local:draft or local:recurrent there.",
        ),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="For a drafter service: a second one, not attached, into which new drafts are loaded.",
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="For a drafter service: the draft model that it has loaded."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Directory, GGUF file or hub id of the target, for a head (local:recurrent): the learner reads texts "
            "with it. Its tokenizer serves for --target-tokenizer, too.",
        ),
    ] = None,
    target_tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Directory, GGUF file or hub id of the target's tokenizer, for a draft model with another one.",
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Chat template (Jinja) that the verifier uses in place of the target's own."),
    ] = None,
    own_text: Annotated[
        bool,
        typer.Option(
            help="While nothing else runs, have the target continue prompts, and learn from these texts, too."
        ),
    ] = True,
    learn_prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Further prompts to continue: a .jsonl file with text or token_ids, or one text per line.",
        ),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            help="Learn the probabilities of the target's likeliest tokens, which the verifier then reports, and not "
            "its tokens alone."
        ),
    ] = False,
    rounds: Rounds = 0,
    tokens: Annotated[int, typer.Option(min=1, help="New output tokens to collect per round.")] = 4000,
    seconds: Annotated[float, typer.Option(min=1.0, help="Most processor seconds of training per round.")] = 300,
    steps: Annotated[int, typer.Option(min=1, help="Most optimizer steps per round.")] = 400,
    epochs: Annotated[int, typer.Option(min=1, help="Most passes over the texts per round.")] = 3,
    learning_rate: LearningRate = 1e-4,
    most_megabytes: Annotated[int, typer.Option(min=1, help="Size at which the oldest texts are deleted.")] = 32,
    weights: Annotated[
        QuantisedWeights,
        typer.Option(help="Weights that learned drafts are served with if the draft model is a quantised GGUF file."),
    ] = "q8_0",
    share: Share = "50%",
    trial_requests: TrialRequests = 16,
    trial_seconds: TrialSeconds = 600,
    threads: Threads = 1,
    device: Device = "cpu",
    *,
    connection: Connection,
) -> None:
    """Train the verifier's draft model or head on the texts that it serves, at the lowest priority, while it serves."""
    check_training_installed()
    from draftwire_core.training.learning.idle_priority import yield_to_others

    yield_to_others()  # before torch has threads
    import torch

    from draftwire_core.engine.model.packed_model import ModelLoadError
    from draftwire_core.engine.text.tokenizer import Tokenizer
    from draftwire_core.training.learning.further_verifier import FurtherVerifier
    from draftwire_core.training.learning.learners import Learners
    from draftwire_core.training.learning.learning_directory import Versions
    from draftwire_core.training.learning.learning_loop import LearningLoop, LearningOptions
    from draftwire_core.training.learning.seats.local_seat import LocalSeat
    from draftwire_core.training.learning.seats.seat import Seat
    from draftwire_core.training.learning.seats.service_seat import ServiceSeat
    from draftwire_core.training.learning.text_learner import TextTraining
    from draftwire_core.training.learning.texts.own_text import OwnText
    from draftwire_core.training.learning.texts.prompts import built_in_prompts, prompts_of
    from draftwire_core.training.learning.texts.top_tokens import TopTokens
    from draftwire_core.training.refresh.trial import TrialOptions

    if learn_prompts is not None and not own_text:
        raise ValueError("--learn-prompts: excludes --no-own-text")
    prompts = [*([] if learn_prompts is None else prompts_of(learn_prompts)), *built_in_prompts()]
    part = parse_share(share)
    versions = Versions(directory)
    seat: Seat = LocalSeat(versions, drafter)
    if canary is not None:
        if drafter is None or draft is None:
            raise ValueError("--canary: requires --drafter and --draft, the service that drafts and its model")
        seat = ServiceSeat(versions, drafter, canary, draft)
    elif draft is not None:
        raise ValueError("--draft: is for a drafter service (--canary); local:draft names its model itself")
    if threads:
        torch.set_num_threads(threads)
    console = Console(highlight=False, markup=False)

    def tell(line: str) -> None:
        console.print(line, soft_wrap=True)

    show_downloads(tell)

    tokenizer_source = target_tokenizer if target_tokenizer is not None else target

    def load_target_tokenizer() -> Tokenizer:
        assert tokenizer_source is not None
        found = Tokenizer.load(tokenizer_source)
        if chat_template is not None:
            found.use_chat_template(chat_template)
        return found

    before = signal.signal(signal.SIGTERM, interrupt)  # so that a trial is withdrawn
    try:
        with ExitStack() as clients:
            client, *others = [
                clients.enter_context(connection.client(address)) for address in verifier or ["localhost:50051"]
            ]
            loop = LearningLoop(
                client,
                directory,
                seat,
                LearningOptions(tokens=tokens, most_bytes=most_megabytes << 20, weights=weights),
                Learners(
                    TextTraining(
                        seconds=seconds,
                        steps=steps,
                        epochs=epochs,
                        learning_rate=learning_rate,
                        probabilities=probabilities,
                    ),
                    device_of(device, tell),
                    None if tokenizer_source is None else load_target_tokenizer,
                    target,
                ),
                TrialOptions(part, trial_requests, trial_seconds),
                tell,
                [FurtherVerifier(other, tell, likeliest=probabilities) for other in others],
            )

            def take_own(prompt: list[int], output: list[int], top: TopTokens) -> bool:
                return loop.take(prompt, output, "own", top)

            if own_text:
                loop.idle = OwnText(client, prompts, take_own, tell=tell, probabilities=probabilities).write
            loop.run(rounds or None)
    except ModelLoadError as error:
        raise Failure(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)
