"""A draft model in the verifier learns from what is served, and what it has learned outlives every process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftwire import Client, Speculation
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.learning.learning_directory import LearningState
from draftwire_core.training.learning.texts.served_text import ServedText
from tests.harness import processes
from tests.harness.checkout import MODELS
from tests.harness.lasting_address import lasting_address
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, eventually

pytestmark = pytest.mark.slow


def untrained(name: str, place: Path) -> Path:
    """Writes a bundled model with random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODELS / name))
    model.save_pretrained(place)
    for file in (MODELS / name).glob("tokenizer*"):
        (place / file.name).write_bytes(file.read_bytes())
    return place


def prompts() -> list[str]:
    """Returns prompts of which two are held out."""
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    texts = [f"def read_{name}(path):\n" for name in ("a", "config", "file", "lines", "table", "text", "user", "json")]
    texts += [f"class {name}:\n" for name in ("Node", "Tree", "Item", "Table", "Reader", "Writer", "Parser", "Field")]
    texts += [f"import {name}\n" for name in ("os", "sys", "re", "json", "time", "math", "enum", "types", "random")]
    held = [each for each in texts if ServedText.of(tokenizer.encode(each), [1], "own", 64).held_out]
    assert held, "none of the prompts is held out"
    return [*held[:2], *[each for each in texts if each not in held][:16]]


@contextmanager
def learner(verifier: str, place: Path, log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable, "-m", "tests.harness.eager_learner", "--verifier", verifier, "--dir", str(place),
        "--target-tokenizer", str(MODELS / "target"), "--tokens", "800", "--epochs", "60", "--steps", "60",
        "--learning-rate", "3e-3", "--trial-requests", "6", *flags,
    ]  # fmt: skip
    with log.open("ab") as output:
        process = processes.Popen(
            command, env=os.environ | processes.ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("name", "busy"), [("draft", False), ("draft-other", True)])
def test_what_was_learned_drafts_after_a_restart_of_everything(
    name: str, busy: bool, services: Services, tmp_path: Path
) -> None:
    """busy: whether requests go on during the trial; otherwise the learner decides by requests of its own.

    The one with another tokenizer learns the target's probabilities.
    """
    base = f"local:draft?model={untrained(name, tmp_path / 'base')}&kv_slots=4096"
    place, log, address = tmp_path / "learned", tmp_path / "learner.log", lasting_address()
    flags = ("--share-traffic", "--drafter", base, "--listen", address)
    asked = prompts()

    def ask(client: Client) -> list[list[int]]:
        forced = Speculation(planning="always")
        # Sampled: this target's greedy texts are loops, of which little is kept.
        options: dict[str, Any] = {"max_tokens": 48, "temperature": 0.8, "seed": 7, "ignore_eos": True}
        return [client.generate(each, speculation=forced, **options).token_ids for each in asked]

    def models(client: Client) -> list[str]:
        return [each.address.partition("model=")[2].partition("&")[0] for each in client.drafters.list()]

    def reported(client: Client) -> int:
        (drafter,) = client.drafters.list()
        return 0 if drafter.learning is None else drafter.learning.version

    def promoted() -> bool:
        assert process.poll() is None, log.read_text()
        assert not busy or ask(client) == plain
        return "; promoted: " in log.read_text()

    verifier = services.verifier("target", *flags)
    with Client(verifier.address, timeout=PATIENCE) as client:
        probabilities = ["--probabilities"] if name == "draft-other" else []
        with learner(address, place, log, *probabilities) as process:
            eventually(lambda: "following" in log.read_text(), "it follows", patience=LONG_PATIENCE)
            plain = ask(client)
            eventually(promoted, "a checkpoint takes over", patience=LONG_PATIENCE)
            (learned,) = models(client)
            assert Path(learned).parent == place
            eventually(lambda: reported(client) >= 1, "it reports the version to the verifier")
            assert ask(client) == plain
            verifier.kill()
            verifier = services.verifier("target", *flags)
            assert verifier.address == address
            eventually(lambda: models(client) == [learned], "it is swapped in", patience=LONG_PATIENCE)
        assert any(line in log.read_text() for line in ("verifier lost", "the verifier has restarted"))
        state = LearningState.read(place)
        assert state is not None
        assert state.promoted >= 1
        assert (state.before or 0) < (state.now or 0)
        assert ask(client) == plain
        verifier.kill()
        verifier = services.verifier("target", *flags)
        assert verifier.address == address
        assert models(client) == [str(tmp_path / "base")]
        with learner(address, place, log) as process:
            learned = str(place / f"v{state.promoted:05d}")
            eventually(lambda: models(client) == [learned], "it is swapped in again", patience=LONG_PATIENCE)
            assert ask(client) == plain
        assert len(list(place.glob("v*"))) <= 2


def test_several_verifiers_teach_one_learner_and_draft_with_what_it_learned(services: Services, tmp_path: Path) -> None:
    """All requests go to the second verifier; the first one, idle, decides the trial."""
    base, place, log = untrained("draft", tmp_path / "base"), tmp_path / "learned", tmp_path / "learner.log"
    flags = ("--share-traffic", "--drafter", f"local:draft?model={base}&kv_slots=4096")
    first, second = (services.verifier("target", *flags) for _ in range(2))
    asked = prompts()

    def ask(client: Client) -> list[list[int]]:
        options: dict[str, Any] = {"max_tokens": 48, "temperature": 0.8, "seed": 7, "ignore_eos": True}
        return [client.generate(each, **options).token_ids for each in asked]

    def drafting(client: Client) -> list[Path]:
        return [Path(each.address.partition("model=")[2].partition("&")[0]) for each in client.drafters.list()]

    def both() -> bool:
        return [each.parent for each in drafting(idle)] == [place] and drafting(busy) == drafting(idle)

    with Client(first.address, timeout=PATIENCE) as idle, Client(second.address, timeout=PATIENCE) as busy:
        with learner(first.address, place, log, "--verifier", second.address, "--no-own-text"):
            eventually(
                lambda: f"following {second.address}, too" in log.read_text(), "it follows", patience=LONG_PATIENCE
            )
            plain = ask(busy)
            eventually(lambda: "; promoted: " in log.read_text(), "a checkpoint takes over", patience=LONG_PATIENCE)
            eventually(both, "both draft with it", patience=LONG_PATIENCE)
        assert ask(busy) == plain


def test_the_draft_of_a_service_learns_and_takes_over(services: Services, tmp_path: Path) -> None:
    """The first service's draft model learns, the second one tries what was learned, and both change their roles. What
    was learned outlives the drafter services, which begin with the base again."""
    base, place, log = untrained("draft-other", tmp_path / "base"), tmp_path / "learned", tmp_path / "learner.log"
    addresses = [lasting_address(), lasting_address()]
    asked = prompts()

    def drafters() -> list[ServiceProcess]:
        flags = ("--target-tokenizer", str(MODELS / "target"), "--listen")
        return [services.drafter(str(base), *flags, address) for address in addresses]

    def ask(client: Client) -> list[list[int]]:
        forced = Speculation(planning="always")
        options: dict[str, Any] = {"max_tokens": 48, "temperature": 0.8, "seed": 7, "ignore_eos": True}
        return [client.generate(each, speculation=forced, **options).token_ids for each in asked]

    def drafting(client: Client) -> list[tuple[str, str]]:
        found = [each for each in client.drafters.list() if each.state == "ready"]
        return [(each.name, Path(each.model.model_id).name) for each in found if each.model is not None]

    def promoted() -> bool:
        assert process.poll() is None, log.read_text()
        assert ask(client) == plain
        return "; promoted: " in log.read_text()

    pair = drafters()
    verifier = services.verifier("target", "--share-traffic")
    flags = ("--drafter", "first", "--draft", str(base), "--canary", addresses[1])
    with Client(verifier.address, timeout=PATIENCE) as client:
        plain = ask(client)
        client.drafters.attach(addresses[0], "first")
        with learner(verifier.address, place, log, *flags) as process:
            eventually(promoted, "a checkpoint takes over", patience=LONG_PATIENCE)
            eventually(lambda: any(each.learning for each in client.drafters.list()), "it reports the version")
        state = LearningState.read(place)
        assert state is not None
        assert (state.address, state.canary) in (tuple(addresses), tuple(reversed(addresses)))
        learned = [(state.drafter, f"v{state.promoted:05d}")]
        assert drafting(client) == learned
        for drafter in pair:
            drafter.kill()
        drafters()
        eventually(lambda: drafting(client) == [(state.drafter, base.name)], "it drafts again", patience=LONG_PATIENCE)
        with learner(verifier.address, place, log, *flags) as process:
            eventually(lambda: drafting(client) == learned, "it is loaded again", patience=LONG_PATIENCE)
            assert ask(client) == plain


def test_traffic_that_is_not_shared_is_told(services: Services, tmp_path: Path) -> None:
    verifier = services.verifier("target")
    log = tmp_path / "log"
    with learner(verifier.address, tmp_path / "learned", log) as process:
        assert process.wait(LONG_PATIENCE) == 1
    assert "start the verifier with --share-traffic" in log.read_text()


@pytest.mark.parametrize("scores", [True, False])
def test_a_head_learns_from_nothing(scores: bool, services: Services, tmp_path: Path) -> None:
    """scores: whether the verifier reads the texts for it; otherwise a copy of the target does."""
    place, log = tmp_path / "learned", tmp_path / "learner.log"
    flags = ["--share-traffic", "--drafter", "local:recurrent", *(["--allow-scoring"] if scores else [])]
    of_target = "--target", str(MODELS / "target")
    verifier = services.verifier("target", *flags)
    with (
        Client(verifier.address, timeout=PATIENCE) as client,
        learner(verifier.address, place, log, *of_target, "--rounds", "1") as process,
    ):
        assert process.wait(LONG_PATIENCE) == 0, log.read_text()
        told = log.read_text()
        assert "v00001: on trial" in told
        assert "agreement on held-out texts 0.0 % before" in told
        state = LearningState.read(place)
        assert state is not None
        assert state.last_round is not None
        assert state.last_round.agreement_after > 0
        (drafter,) = client.drafters.list()
        assert drafter.learning is not None
        assert drafter.learning.rounds == 1
    verifier.kill()
