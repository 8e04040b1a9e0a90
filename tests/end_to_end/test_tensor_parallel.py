"""A model split between two processes over gloo: the same tokens as one process, and the loss of a rank."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwire import Client, Speculation, UnsupportedDrafterError
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS
from tests.harness.processes import ended
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.stand_ins.fixed_cost import FixedCost
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, eventually

pytestmark = pytest.mark.processes

PROMPTS = ["def read_config(path):\n", "class Stack:\n    def push(self, item):\n", "import os\n", "# größer → "]
TEMPERATURES = [0.0, 0.8, 1.2, 0.0]
TOKENS = 48
FEW = 6
"""Tokens of the requests that are not slow: the two ranks wait for each other in each layer."""
START_SECONDS = 300.0
"""Time limit in which two ranks start, one after another, on a busy machine."""
FLAGS = ("--dtype", "float32", "--kv-slots", "4096", "--tensor-parallel", "2")


Expected = Callable[[int], list[list[int]]]
"""The type of `expected(tokens)`."""


@pytest.fixture(scope="module")
def expected() -> Expected:
    """The outputs of one process, without drafters, one request after another."""
    model = PackedModel.load(str(MODELS / "target"), slots=1024, dtype="float32")
    tokenizer = Tokenizer.load(str(MODELS / "target"))
    engine = VerificationEngine(model, FixedCost([1, 51], [0.02, 0.04]), EngineLimits(prefix_cache=False))

    def ask_one(tokens: int) -> list[list[int]]:
        found = []
        for number, (prompt, temperature) in enumerate(zip(PROMPTS, TEMPERATURES, strict=True)):
            ids = tokenizer.encode(prompt)
            sampling = SamplingParams(temperature=temperature, seed=number)
            found += generate_all(engine, [SequenceSpec(number, ids, len(ids) + tokens, sampling)])
        return found

    return ask_one


@pytest.fixture(scope="module")
def split(module_services: Services) -> ServiceProcess:
    """A verifier of two ranks."""
    return module_services.verifier("target", *FLAGS).serving()


def others(service: ServiceProcess) -> list[int]:
    """Returns the processes that a service has started."""
    tasks = Path(f"/proc/{service.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def ask(client: Client, tokens: int, **options: object) -> list[list[int]]:
    """Returns a verifier's outputs for the prompts, all at once unless options say otherwise."""
    return [
        client.generate(
            prompt,
            max_tokens=tokens,
            temperature=temperature,
            seed=number,
            ignore_eos=True,
            **options,  # type: ignore[arg-type]
        ).token_ids
        for number, (prompt, temperature) in enumerate(zip(PROMPTS, TEMPERATURES, strict=True))
    ]


def test_two_ranks_say_what_one_process_says(split: ServiceProcess, expected: Expected) -> None:
    with Client(split.address, timeout=PATIENCE) as client:
        assert client.model_info().bit_exact
        assert ask(client, FEW, speculation=Speculation(enabled=False)) == expected(FEW)
        prompt = PROMPTS[0] * 4
        first, second = (client.generate(prompt, max_tokens=2, seed=3, ignore_eos=True) for _ in range(2))
        assert second.usage.cached_tokens > 10
        assert first.token_ids == second.token_ids


def test_a_part_of_the_layers_is_refused(split: ServiceProcess) -> None:
    with (
        Client(split.address, timeout=PATIENCE) as client,
        pytest.raises(UnsupportedDrafterError, match="--tensor-parallel"),
    ):
        client.drafters.attach("local:early_exit?layers=2")


def test_what_cannot_be_split_is_refused(services: Services) -> None:
    service = services.verifier("target", "--tensor-parallel", "4")
    assert service.process.wait(START_SECONDS) == 1
    (refusal,) = [event["reason"] for event in service.events() if event["event"] == "cannot start"]
    assert refusal.endswith(
        "--tensor-parallel: num_attention_heads of the model's configuration is 6, which is not divisible by 4 ranks"
    )


def drafted(client: Client, expected: list[list[int]]) -> int:
    """Repeats the requests with drafts; returns the number of rejected draft tokens."""
    rejected = 0
    for number, (prompt, temperature) in enumerate(zip(PROMPTS, TEMPERATURES, strict=True)):
        result = client.generate(prompt, max_tokens=TOKENS, temperature=temperature, seed=number, ignore_eos=True)
        assert result.token_ids == expected[number]
        rejected += result.speculation.draft_tokens - result.speculation.accepted_tokens
    return rejected


@pytest.mark.slow
class TestLongerTexts:
    def test_two_ranks_say_what_one_process_says(self, split: ServiceProcess, expected: Expected) -> None:
        with Client(split.address, timeout=LONG_PATIENCE) as client:
            assert ask(client, TOKENS, speculation=Speculation(enabled=False)) == expected(TOKENS)
            batch = client.generate_batch(
                PROMPTS[1:3], max_tokens=TOKENS, temperature=0.0, seed=1, ignore_eos=True,
                speculation=Speculation(enabled=False),
            )  # fmt: skip
            alone = [
                client.generate(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True) for prompt in PROMPTS[1:3]
            ]
            assert [each.token_ids for each in batch] == [each.token_ids for each in alone]

    def test_trees_and_rollback_change_nothing(
        self, split: ServiceProcess, good_drafter: str, bad_drafter: str, expected: Expected
    ) -> None:
        with Client(split.address, timeout=LONG_PATIENCE) as client:
            for address in (good_drafter, bad_drafter):
                client.drafters.attach(address, name="drafter")
                eventually(lambda: client.drafters.list()[0].state == "ready", "the drafter is ready")
                rejected = eventually(lambda: drafted(client, expected(TOKENS)), "draft tokens were verified")
                assert rejected
                client.drafters.detach("drafter")

    def test_the_prefix_cache_holds_at_all_ranks(self, split: ServiceProcess) -> None:
        prompt = "def read_config(path):\n    " * 8
        with Client(split.address, timeout=LONG_PATIENCE) as client:
            first, second = (client.generate(prompt, max_tokens=TOKENS, seed=3, ignore_eos=True) for _ in range(2))
            assert second.usage.cached_tokens > 40
            assert first.token_ids == second.token_ids

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
    def test_a_lost_rank_ends_the_verifier_and_requests_go_on(self, services: Services, number: signal.Signals) -> None:
        """Requests continue at another pair of ranks: one process has other numerics."""
        pair = services.verifier("target", "--tensor-parallel", "2", "--tensor-parallel-timeout-seconds", "5").serving()
        other = services.verifier("target", "--tensor-parallel", "2").serving()
        with Client([pair.address, f"{other.address}?weight=0"], timeout=LONG_PATIENCE) as client:
            (follower,) = others(pair)
            stream = client.stream(PROMPTS[0], max_tokens=200, ignore_eos=True)
            tokens: list[int] = []
            for chunk in stream:
                if not tokens:
                    os.kill(follower, number)
                tokens += chunk.token_ids
        assert len(tokens) == 200
        assert pair.process.wait(LONG_PATIENCE) == 1
        (lost,) = [event["reason"] for event in pair.events() if event["event"] == "model lost"]
        assert "rank 1" in lost
        assert eventually(lambda: ended(follower), "no process is left")

    def test_a_dead_rank_is_noticed_when_nobody_asks(self, services: Services) -> None:
        pair = services.verifier("target", *FLAGS).serving()
        os.kill(others(pair)[0], signal.SIGKILL)
        assert pair.process.wait(LONG_PATIENCE) == 1
        assert "rank 1 of 2 has ended" in pair.log.read_text()

    def test_the_others_end_with_rank_0(self, services: Services) -> None:
        pair = services.verifier("target", *FLAGS).serving()
        (follower,) = others(pair)
        pair.kill()
        assert eventually(lambda: ended(follower), "the other rank has ended")

    def test_a_drafter_by_torchrun_drafts(self, verifier: ServiceProcess, client: Client, services: Services) -> None:
        """torchrun starts both ranks, and a signal to it ends both."""
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "drafter_service"]
        flags = (
            "--model",
            str(MODELS / "draft"),
            "--verifier",
            verifier.address,
            "--name",
            "split",
            "--kv-slots",
            "4096",
        )
        drafter = services.start(torchrun, *flags, forked=False)
        try:
            assert drafter.address
            eventually(lambda: [each.state for each in client.drafters.list()] == ["ready"], "it drafts")
            request = {"max_tokens": TOKENS, "seed": 3, "ignore_eos": True}
            plain = client.generate(PROMPTS[0], speculation=Speculation(enabled=False), **request)
            # The verifier waits for the drafts: two ranks on shared cores may never be in time otherwise.
            result = client.generate(PROMPTS[0], speculation=Speculation(planning="always"), **request)
            assert result.token_ids == plain.token_ids
            assert result.speculation.accepted_tokens
        finally:
            drafter.stop()
        log = drafter.log.read_text()
        assert log.count('"event": "shutting down"') == 1
        assert "rank failed" not in log


def test_all_ranks_end_together(split: ServiceProcess) -> None:
    """Must run last of the tests of the shared pair: a signal ends its ranks in order."""
    (follower,) = others(split)
    assert split.stop() == 0
    assert eventually(lambda: ended(follower), "the other rank has ended")
