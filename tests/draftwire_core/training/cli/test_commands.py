"""The SDK's part of training: scores, traffic, and commands that report missing requirements."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from draftwire import Prediction
from draftwire._messages.scoring import ScoreReader
from draftwire._messages.traffic import read_traffic
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.training.learning import idle_priority
from draftwire_core.training.refresh import traffic_follower
from draftwire_core.training.teachers import verifier_teacher
from tests.harness.command import Command
from tests.harness.forbidden_imports import FORBID
from tests.harness.waiting import LONG_PATIENCE


def test_scores_are_read_and_gone_on_with() -> None:
    reader = ScoreReader([5, 6, 7], 2, 2)
    assert reader.next_request(resumable=False) == pb.ScoreRequest(token_ids=[5, 6, 7], top=2, first_position=2)
    part = reader.read(pb.ScoreResponse(first_position=2, top=2, token_ids=[8, 9], log_probs=[-0.5, -1.0]))
    assert part == [Prediction(2, [8, 9], [-0.5, -1.0])]
    assert not reader.finished
    assert reader.next_request(resumable=False).first_position == 3  # after a lost connection
    reader.read(pb.ScoreResponse(first_position=3, top=2, token_ids=[1, 2], log_probs=[-0.5, -1.0]))
    assert reader.finished


def test_traffic_is_read() -> None:
    assert read_traffic(pb.FollowTrafficResponse()).requests == []
    request = pb.ServedRequest(prompt_token_ids=[1, 2], token_ids=[3, 4, 5], drafters=["draft"])
    request.speculation.steps = 2
    found = read_traffic(pb.FollowTrafficResponse(requests=[request], dropped=7))
    assert found.dropped == 7
    [served] = found.requests
    assert (served.prompt_token_ids, served.token_ids, served.drafters) == ([1, 2], [3, 4, 5], ["draft"])
    assert (served.speculation.steps, served.speculation.acceptance_length) == (2, 1.5)
    assert (served.top, len(served.top_token_ids), len(served.top_log_probs)) == (0, 0, 0)
    request.MergeFrom(pb.ServedRequest(top=2, top_token_ids=[3, 4, 5, 6], top_log_probs=[-0.5, -1.0, -0.25, -2.0]))
    [served] = read_traffic(pb.FollowTrafficResponse(requests=[request])).requests
    assert (served.top, list(served.top_token_ids)) == (2, [3, 4, 5, 6])
    assert list(served.top_log_probs) == [-0.5, -1.0, -0.25, -2.0]


def test_a_distillation_has_one_teacher(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(monkeypatch, capsys)
    for options in ([], ["--target", "t", "--verifier", "v:1"]):
        outcome = command("train", "distill", "--draft", "d", "--prompts", "p", "--out", "o", *options)
        assert (outcome.code, outcome.err) == (2, "draftwire: --verifier, --target: give exactly one of them\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--canary", "c:1"], "--canary: requires --drafter and --draft, the service that drafts and its model"),
        (["--draft", "d"], "--draft: is for a drafter service (--canary); local:draft names its model itself"),
    ],
)
def test_learning_in_services_needs_all_of_them(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(idle_priority, "yield_to_others", lambda: None)
    outcome = Command(monkeypatch, capsys)("train", "learn", "--dir", str(tmp_path), *options)
    assert (outcome.code, outcome.err) == (2, f"draftwire: {words}\n")


class IdleTeacher:
    """A teacher, or a follower, that does nothing."""

    client = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_refresh_that_is_asked_to_end_does_so_as_by_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """So that a trial is withdrawn: else half of the requests would go on to a draft that nobody watches."""

    class Follower(IdleTeacher):
        def wait_until_following(self, seconds: float) -> None:
            signal.raise_signal(signal.SIGTERM)

    def own(number: int, frame: object) -> None:
        raise AssertionError("the command has not handled the signal")

    monkeypatch.setattr(verifier_teacher, "VerifierTeacher", IdleTeacher)
    monkeypatch.setattr(traffic_follower, "TrafficFollower", Follower)
    before = signal.signal(signal.SIGTERM, own)
    try:
        options = ["--drafter", "d", "--draft", "m", "--canary", "c:1", "--out", str(tmp_path), "--nice", "0"]
        outcome = Command(monkeypatch, capsys)("train", "refresh", *options, "--threads", "0")
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert outcome.code == 130


def test_an_address_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Follower(IdleTeacher):
        def wait_until_following(self, seconds: float) -> None:
            pass

    monkeypatch.setattr(verifier_teacher, "VerifierTeacher", IdleTeacher)
    monkeypatch.setattr(traffic_follower, "TrafficFollower", Follower)
    options = ["--drafter", "d", "--draft", str(tmp_path), "--canary", "c:1", "--out", str(tmp_path), "--nice", "0"]
    outcome = Command(monkeypatch, capsys)(
        "train", "refresh", *options, "--verifier", "[fd00::1]:50051", "--threads", "0"
    )
    assert "\nfollowing [fd00::1]:50051; d drafts with " in outcome.out


MISSING = FORBID.replace('raise AssertionError(f"imported {name}")', "raise ModuleNotFoundError(name=name)")
ABSENT = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in Forbid.names else find(name)
"""


@pytest.mark.processes
class TestWithoutTorch:
    @pytest.mark.parametrize(
        "arguments",
        [
            "distill --draft d --prompts p --out o --target t",
            "refresh --drafter n --draft d --canary localhost:1 --out o",
            "learn --dir d",
        ],
    )
    def test_commands_say_what_they_need(self, arguments: str) -> None:
        call = f"import sys; sys.argv[1:] = {['train', *arguments.split()]}; from draftwire.cli import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", MISSING + ABSENT + call],
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            check=False,
        )
        assert result.returncode == 1
        assert result.stderr.startswith("draftwire: training requires torch, transformers: pip install")
