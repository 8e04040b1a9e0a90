"""A demo's show: the services that run, and the scenes that are played with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import draftwire
from draftwire._types.options import GenerateOptions
from draftwire_tools.demo.scene import DemoDrafter, Scene, attached, killed, swapped
from draftwire_tools.demo.stage import Stage, stage
from draftwire_tools.service import Service

TARGET, DRAFT, EARLY = "target", "draft", "draft-early"
INFLATE = "inflate.py"
TARGET_SIZE = "70M"
"""Parameters of the bundled target. As trained it sits in a processor's cache, where checking eight tokens costs eight
times as much as one. Grown to this size it has the same outputs and is read from memory, as targets in use are."""
KV_SLOTS = "4096"
SMOLLM2, SMALL = "SmolLM2", "small"
LOOKUP = DemoDrafter("lookup", "local:ngram")
SUFFIXES = DemoDrafter("suffixes", "local:suffix")

CODE = '''def read_config(path):
    """Read a configuration file and return its sections as a dictionary."""
'''
QUESTION = "How do I read a CSV file in Python and print the average of one column?"
EDIT = """Correct the spelling mistakes.

We received your letter of the third of May and have read it with great intrest. Your garden has won the first prise \
in the competition of our socity. The jury liked the roses near the gate, the old apple tree and the small pond in \
front of the house. The prize will be given to you on the second Saturday of June, at three in the afternoon, in the \
hall of the town libary. Please write to us untill the end of May how many guests will come."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's options; None stands for the demo's own."""

    prompt: str | None
    """The text to continue, or the question to answer."""
    max_tokens: int
    """Most tokens of a request."""
    temperature: float | None
    """Softmax temperature; 0 is greedy."""
    seed: int
    """Seed of the requests."""

    def options(self, temperature: float) -> GenerateOptions:
        """Returns the options of a request. temperature: unless one was given."""
        given = temperature if self.temperature is None else self.temperature
        return {"max_tokens": self.max_tokens, "temperature": given, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Show:
    """Services that run, and scenes for them."""

    model: str
    """The target's name."""
    verifier: Service
    """The verifier."""
    drafters: Sequence[str]
    """Names of the drafters, in the order of the legend."""
    scenes: Sequence[Scene]
    """The scenes."""


Start = Callable[[Stage], Show]
"""The type of a function that starts the services of a show, and waits until they serve."""


@contextmanager
def running(start: Start, console: Console, *, keeps_logs: bool) -> Iterator[Show]:
    """Runs a show's services. keeps_logs: whether the logs are kept if they do not start.

    Raises:
        Failure: a service does not start.
    """
    with stage(console) as made:
        made.keeps_logs = keeps_logs
        with made.loading:
            show = start(made)
        made.keeps_logs = True
        yield show


def bundled(models: Path, asked: Asked) -> Start:
    """Returns the start of the show with the bundled pair. models: its directory."""

    def start(made: Stage) -> Show:
        target = made.scratch / TARGET
        made.models.append(target)
        inflate = [str(models / INFLATE), str(models / TARGET), str(target), "--parameters", TARGET_SIZE]
        growing = made.job("inflate", inflate, f"growing {TARGET} to {TARGET_SIZE} parameters")
        first = made.drafter(EARLY, models / EARLY)
        made.loading.wait(growing)
        verifier = made.verifier(TARGET, target, "--kv-slots", KV_SLOTS)
        second = made.drafter(DRAFT, models / DRAFT)
        made.loading.wait(verifier, first, second)
        scene = code_scene(asked, drafter_of(first), drafter_of(second))
        return Show(f"bundled target, grown to {TARGET_SIZE}", verifier, (EARLY, DRAFT), [scene])

    return start


def real(target: Path, models: Path | None, asked: Asked) -> Start:
    """Returns the start of the show with SmolLM2. target: its file. models: directory of the bundled draft model, which
    translates. If that is not here or does not start (then the console says why), the show is of lookup alone."""

    def start(made: Stage) -> Show:
        verifier = made.verifier(SMOLLM2, target, "--kv-slots", KV_SLOTS, "--drafters-per-request", "2")
        translates = ("--target-tokenizer", str(target))
        small = [] if models is None else [made.drafter(SMALL, models / DRAFT, *translates, needed=False)]
        made.loading.wait(verifier, *small)
        serving = [drafter_of(each) for each in small if each not in made.loading.given_up]
        names = (LOOKUP.name, SUFFIXES.name, *(each.name for each in serving))
        return Show("SmolLM2-135M-Instruct", verifier, names, real_scenes(asked, *serving))

    return start


def drafter_of(service: Service) -> DemoDrafter:
    """Returns a service as a drafter of the demo."""
    return DemoDrafter(service.name, service.address, service.kill)


def code_scene(asked: Asked, first: DemoDrafter, second: DemoDrafter) -> Scene:
    """Returns the scene of the bundled pair: one draft model is swapped for a better one, which is killed."""
    # The request lasts long enough for all that is to happen.
    options: GenerateOptions = {**asked.options(0.7), "ignore_eos": True}
    changes = [attached(second), swapped(first, second, 0.5), killed(second, 0.8)]
    return Scene("text", asked.prompt or CODE, False, options, [first], changes)


def real_scenes(asked: Asked, *small: DemoDrafter) -> list[Scene]:
    """Returns the scenes of a real model: a question, in which the draft model, if there is one, is killed, and an
    edit, in which one kind of lookup is swapped for the other."""
    kills = [killed(each, 0.5) for each in small]
    question = Scene("question", asked.prompt or QUESTION, True, asked.options(0.7), [LOOKUP, *small], kills)
    edit = Scene("edit", EDIT, True, asked.options(0.0), [], [attached(SUFFIXES), swapped(LOOKUP, SUFFIXES, 0.5)])
    return [question, edit]


def find_models(given: Path | None, *, needed: bool) -> Path | None:
    """Returns the directory of the bundled models, which come with a checkout, and not with wheels.

    Args:
        given: the directory that has them; by default, it is looked for.
        needed: whether the demo needs them; otherwise, None is returned if they are not found.

    Raises:
        ValueError: the given directory has none, or they are needed, and none of the places has them.
    """
    files = (INFLATE, *(f"{name}/config.json" for name in (TARGET, DRAFT, EARLY)))
    checkout = Path(draftwire.__file__).resolve().parents[2]
    places = [given] if given is not None else [Path.cwd() / "models", checkout / "models"]
    for place in places:
        if all((place / name).is_file() for name in files):
            return place
    if given is None and not needed:
        return None
    looked = " or ".join(str(place) for place in places)
    raise ValueError(
        f"the bundled models ({TARGET}, {DRAFT}, {EARLY}) and {INFLATE} are not in {looked}; they come with a checkout "
        "of draftwire: run the demo in one, or name its models directory with --models DIR"
    )
