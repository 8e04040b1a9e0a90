"""The parameters of a simulation, and functions that run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.simulated_models import Agreement, ModelPair, Place
from benchmarks.harness.simulated_services import (
    Growth,
    SettledStep,
    SimulatedDrafter,
    SimulatedVerifier,
    Tally,
    VirtualClock,
)
from benchmarks.simulation.fixed_chain import FixedChainGrowth, FixedChainPlanner
from benchmarks.simulation.simulated_link import SimulatedLink
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.planning.planner import Planner
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.pool.standing.pause_policy import PausePolicy

_MAX_ROWS = 256
_SOURCE = "drafter"


@dataclass(frozen=True)
class Curve:
    """Times of whole steps by number of rows."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        self.cost()

    def cost(self) -> StepCost:
        """Returns the curve as a StepCost. Raises ValueError if it is not a cost curve."""
        return StepCost(self.rows, self.seconds)

    @classmethod
    def flat(cls, seconds: float) -> Curve:
        """Returns a curve as on a GPU at small batches: 64 rows take 5 % more than one."""
        return cls((1, 64), (seconds, 1.05 * seconds))

    @classmethod
    def cpu(cls, seconds: float) -> Curve:
        """Returns a curve as of packed bf16 products of a 400 M target on one CPU core."""
        factors = (1.0, 1.25, 1.9, 3.1, 5.1)
        return cls((1, 6, 16, 32, 64), tuple(seconds * factor for factor in factors))


@dataclass(frozen=True)
class Setting:
    """A target, a draft model, and the link between them."""

    target: Curve
    draft: Curve
    agreement: Agreement | Sequence[Sequence[Place]]
    """How often the models agree; or, by request, a real draft model's predictions for a real text."""
    round_trip: float
    """Round trip in seconds."""
    tokens: int = 1000
    """Number of new tokens of a request."""
    requests: int = 1
    """Requests of a stream, one after another; what was learned in one carries over to the next."""
    streams: int = 1
    """Number of concurrent requests."""
    seed: int = 1
    max_tree_nodes: int = 64
    """Most live nodes of a tree. The credit of a drafter that drafts ahead may be lower, depending on what is
    verified."""

    def __post_init__(self) -> None:
        for name, least in [("round_trip", 0), ("tokens", 2), ("requests", 1), ("streams", 1), ("max_tree_nodes", 1)]:
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is below {least}")
        if not isinstance(self.agreement, Agreement) and any(len(text) != self.tokens for text in self.agreement):
            raise ValueError(f"texts: each needs {self.tokens} places")

    def pair(self, stream: int, request: int) -> ModelPair:
        """Returns the models' tokens in one of a stream's requests."""
        agreement = self.agreement
        if not isinstance(agreement, Agreement):
            agreement = agreement[(request * self.streams + stream) % len(agreement)]
        return ModelPair(agreement, self.tokens + 1, f"{self.seed} {stream} {request}")


def plain(setting: Setting) -> Tally:
    """Runs plain decoding, without a drafter."""
    return _simulate(setting, Planner(setting.target.cost(), _MAX_ROWS), None)


def draft_then_verify(setting: Setting, length: int) -> Tally:
    """Runs chains of `length` tokens, drafted while nothing is verified."""
    return _simulate(setting, FixedChainPlanner(setting.target.cost(), _MAX_ROWS, length), FixedChainGrowth(length))


def drafted_ahead(setting: Setting, width: int | None = None) -> Tally:
    """Runs drafting ahead, as the services do it. width: most children of a node; the product's by default."""
    growth = TreeGrowth(setting.draft.cost())
    if width is not None:
        growth.width = width
    return _simulate(setting, Planner(setting.target.cost(), _MAX_ROWS), growth, PausePolicy())


def _simulate(setting: Setting, planner: Planner, growth: Growth | None, policy: PausePolicy | None = None) -> Tally:
    tally = Tally()
    for number in range(setting.requests):
        pairs = [setting.pair(stream, number) for stream in range(setting.streams)]
        tally.add(_run(setting, planner, growth, policy, pairs))
    return tally


def _run(
    setting: Setting, planner: Planner, growth: Growth | None, policy: PausePolicy | None, pairs: list[ModelPair]
) -> Tally:
    """Runs one request per stream to its end."""
    clock = VirtualClock()
    length = setting.tokens + 1
    link: SimulatedLink | None = None

    def settled(step: SettledStep) -> None:
        if link is not None:
            link.settle(step)

    def proposed(proposals: dict[int, Proposal]) -> None:
        assert link is not None, "there is a drafter"
        link.propose(proposals)

    verifier = SimulatedVerifier(clock, planner, setting.target.cost(), settled)
    if growth is not None:
        drafter = SimulatedDrafter(clock, growth, setting.draft.cost(), proposed)
        link = SimulatedLink(clock, setting.round_trip, verifier, drafter, _SOURCE, policy)
    for stream, pair in enumerate(pairs):
        verifier.add(stream, pair, setting.max_tree_nodes, length, None if link is None else _SOURCE)
        if link is not None:
            link.open(stream, pair, setting.max_tree_nodes, length)
    verifier.start()
    clock.run(lambda: verifier.done)
    return verifier.tally
