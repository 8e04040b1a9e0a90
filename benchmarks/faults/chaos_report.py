"""The findings of a run of chaos.py, as figures and as missed targets."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.faults.chaos_cluster import Cluster, Member
from benchmarks.faults.stalls import AFTERMATH_SECONDS, Blame, gaps_by_kind, percentile
from benchmarks.harness.stream_load import Finding, Gap, StreamLoad

if TYPE_CHECKING:
    from drafter_watch import DrafterWatch

STALL_STEPS = 2.0
"""Most plain steps that a stream may stall after a drafter fault."""
GROWN_UP_SECONDS = 20.0
"""Age in seconds from which a process's memory is compared; before that it is still warming up."""
_SHOWN = 5


@dataclass
class Facts:
    """Everything that a run recorded."""

    cluster: Cluster
    load: StreamLoad = field(init=False)
    watch: DrafterWatch = field(init=False)
    plain_gaps: list[Gap] = field(default_factory=list)
    """Gaps of the reference runs, with all streams on one verifier and no drafter."""
    calm_gaps: list[Gap] = field(default_factory=list)
    """Gaps with drafters, before the first fault."""
    gaps: list[Gap] = field(default_factory=list)
    began: float = 0.0
    """Time of the first fault in seconds, by time.monotonic; 0 before."""
    ended: float = 0.0
    leaked: dict[str, int] = field(default_factory=dict)
    """KV slots in use when no request runs, by member."""
    untold: list[str] = field(default_factory=list)
    """Drafters that do not report what they hold."""
    away: list[str] = field(default_factory=list)
    """Drafters that are not ready at a verifier when no request runs."""
    unhandled: list[str] = field(default_factory=list)
    """Lines of logs that report an unhandled fault."""
    own_rss: tuple[int, int] = (0, 0)
    """Resident memory of this process, which runs clients and proxies, at the first fault and at the end."""

    bit_exact: bool = False
    """Whether the verifiers report their target as bit-exact."""

    @property
    def plain_step_alone(self) -> float:
        """Seconds of a plain decoding step with all streams on one verifier and no other work: the median time between
        two tokens of a stream."""
        return statistics.median(between_tokens(self.plain_gaps))

    @property
    def plain_step(self) -> float:
        """Seconds of a plain decoding step under the load of the faults, from the requests decoded plainly
        meanwhile."""
        return statistics.median(between_tokens(gap for gap in self.gaps if gap.plain) or [self.plain_step_alone])


def between_tokens(gaps: Iterable[Gap]) -> list[float]:
    """Returns the seconds of the gaps, without waits for first tokens."""
    return [gap.end - gap.start for gap in gaps if not gap.first]


def missed_targets(facts: Facts, faults: int, planted: int) -> list[str]:
    """Returns the missed targets in words. planted: the expected number of each of the first kinds."""
    # A planted request runs at a verifier, and also holds resources at its drafters.
    beside = {drafter.name for drafter in facts.cluster.drafters} if planted else set()
    found = {
        "differing outputs": (len(facts.load.differing), planted),
        "lost requests": (len(facts.load.lost), planted),
        "members with leaked slots": (len(facts.leaked.keys() - beside), planted),
        "unhandled faults in logs": (len(facts.unhandled), planted),
        "services that died": (len(facts.cluster.died), 0),
        "drafters that did not come back": (len(facts.away), 0),
    }
    missed = [f"{count} {what}, not {due}" for what, (count, due) in found.items() if count != due]
    if len(facts.cluster.injected) < faults:
        missed.append(f"{len(facts.cluster.injected)} faults of {faults}")
    return missed


def figures_of(facts: Facts) -> dict[str, object]:
    """Returns the figures to print."""
    step = facts.plain_step
    load, injected = facts.load, facts.cluster.injected
    blames = [Blame(i.start, i.end, i.fault.kind, i.fault.of_verifier) for i in injected]
    stalls = gaps_by_kind([gap for gap in facts.gaps if not gap.first], blames)
    of_verifiers = {i.fault.kind for i in injected if i.fault.of_verifier}
    detection = facts.watch.detection_seconds(injected)
    refused = Counter(f"{i.fault.kind}: {i.refused}" for i in injected if i.refused is not None)
    of_drafters = [gap for kind, gaps in stalls.items() if kind and kind not in of_verifiers for gap in gaps]
    after_drafters = between_tokens(of_drafters)
    after_verifiers = between_tokens(gap for kind in of_verifiers for gap in stalls.get(kind, []))

    def shown(seconds: list[float]) -> str:
        longest = max(seconds, default=0.0)
        return f"{longest:.2f} s ({longest / step:.1f} plain steps; 99 % below {percentile(seconds, 0.99):.2f} s)"

    met = max(after_drafters, default=0.0) <= STALL_STEPS * step
    figures: dict[str, object] = {
        "seconds": round(facts.ended - facts.began, 1),
        "faults": len(injected),
        "faults by kind": dict(sorted(Counter(i.fault.kind for i in injected).items())),
        "swaps and detachments refused": sum(refused.values()),
        "requests": load.requests,
        "resumed": load.resumes,
        "tokens": load.tokens,
        "differing outputs": len(load.differing),
        "lost requests": len(load.lost),
        "target bit-exact": facts.bit_exact,
        "plain step": f"{1e3 * facts.plain_step_alone:.0f} ms alone, {1e3 * step:.0f} ms beside everything else",
        "longest stall, plain decoding alone": shown(between_tokens(facts.plain_gaps)),
        "longest stall, drafters, before the faults": shown(between_tokens(facts.calm_gaps)),
        "longest stall, no fault under way": shown(between_tokens(stalls.get("", []))),
        "longest stall, drafter faults": shown(after_drafters),
        "longest stall, drafter faults, requests without drafters": shown(
            between_tokens(gap for gap in of_drafters if gap.plain)
        ),
        "longest stall, verifier faults": shown(after_verifiers),
        "longest wait for first tokens": f"{max((g.end - g.start for g in facts.gaps if g.first), default=0.0):.2f} s",
        "longest stall by kind": {
            kind: f"{max(times):.2f} s, {max(times) / step:.1f} plain steps"
            for kind, times in ((kind, between_tokens(gaps)) for kind, gaps in sorted(stalls.items()) if kind)
        },
        "drafter noticed as gone after": {
            kind: f"{statistics.median(times):.2f} s, at most {max(times):.2f} s, {len(times)} times"
            for kind, times in sorted(detection.items())
            if times
        },
        "stall target": (
            f"{STALL_STEPS:g} plain steps, {STALL_STEPS * step:.2f} s, and no time to notice, as the verifier does not "
            f"wait for a drafter that is overdue: {'met' if met else 'missed'}"
        ),
        "members with leaked slots": dict(facts.leaked),
        "drafters that do not tell what they hold": len(facts.untold),
        "drafters that did not come back": len(facts.away),
        "services that died": len(facts.cluster.died),
        "RSS growth": {
            **{m.name: _growth(m) for m in (*facts.cluster.verifiers, *facts.cluster.drafters)},
            "clients and proxies": f"{(facts.own_rss[1] - facts.own_rss[0]) / 1e6:+.1f} MB",
        },
        "unhandled faults in logs": len(facts.unhandled),
    }
    for title, findings in (("differing", load.differing), ("lost", load.lost)):
        for finding in findings[:_SHOWN]:
            figures[f"{title}: request {finding.number}"] = f"{finding.what}; under {_around(finding, facts)}"
    for number, gap in enumerate(_longest_apart(of_drafters)):
        figures[f"drafter stall {number + 1}"] = f"{gap.end - gap.start:.2f} s under {_around(gap, facts)}"
    for title, lines in (
        ("refused", [f"{count} x {what}" for what, count in refused.most_common()]),
        ("unhandled", facts.unhandled),
        ("died", facts.cluster.died),
        ("away", facts.away),
    ):
        for number, line in enumerate(lines[:_SHOWN]):
            figures[f"{title} {number + 1}"] = line[:500]
    return figures


def _around(what: Finding | Gap, facts: Facts) -> str:
    """Returns the faults that overlapped a request or a gap."""
    met = [
        f"{i.fault.kind.split()[0]} {i.member} at {i.start - what.start:+.1f} s for {i.end - i.start:.1f} s"
        for i in facts.cluster.injected
        if i.start <= what.end and i.end + AFTERMATH_SECONDS >= what.start
    ]
    return "; ".join(met[-8:]) or "no fault"


def _longest_apart(gaps: Sequence[Gap]) -> list[Gap]:
    """Returns the longest gaps at different moments: the streams of a verifier stall together."""
    chosen: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.start - gap.end):
        if all(gap.end < other.start or gap.start > other.end for other in chosen):
            chosen.append(gap)
            if len(chosen) == _SHOWN:
                break
    return chosen


def _growth(member: Member) -> str:
    """Returns the growth of RSS in the longest life, after its warm-up."""
    grown: list[tuple[float, int, int]] = []
    for life in member.lives:
        if life.samples:
            first = life.samples[0][0]
            old = [(at, usage.rss_bytes) for at, usage in life.samples if at - first >= GROWN_UP_SECONDS]
            if len(old) > 1:
                grown.append((old[-1][0] - old[0][0], old[0][1], old[-1][1]))
    if not grown:
        return f"no process lived long enough, of {len(member.lives)}"
    seconds, before, after = max(grown)
    return (
        f"{(after - before) / 1e6:+.1f} MB in {seconds:.0f} s, from {before / 1e6:.0f} MB "
        f"(the longest-lived of {len(member.lives)})"
    )
