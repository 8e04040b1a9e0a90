"""Two services against others who decode with the same two models: rates, the best setting of each, equal outputs.

    python -m benchmarks.peers.compare_peers [--prompts 20] [--runs 5] [--max-tokens 128] [--peers vllm,llama] [--json]

The bundled pair is inflated (models/inflate.py), bfloat16. Every peer lives in a virtual environment of its own, which
is made at the first run and kept where temporary files are, and runs as a child process. Held-out prompts are decoded
greedily, one at a time, and everybody gets the same token ids. Settings that leave a choice, such as the number of
draft tokens, are tried on a few prompts first; the best of them is measured. Then all take turns from request to
request, and whoever's turn it is not is stopped. Rates are of the tokens after a request's first ones, timed where they
are asked for; those with the prompt are printed beside them.

Two arrangements:

one box    everybody has all cores, and as many threads as --threads says. Ours takes one or more for the verifier,
           whichever is better, and one for the drafter.
two hosts  the target's host is one core. Peers run both models there with one thread; our drafter has another core, as
           if it were another machine.

A peer that cannot be installed or run is reported with the reason. Who rounds otherwise gives other tokens now and
then: how many outputs are the same is a figure, not a failure.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.harness.held_out import MODELS, held_out_prompts
from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.report import print_report
from benchmarks.harness.timings import decode_rate
from benchmarks.peers.catalogue import Method, Peer, Setting, peers
from benchmarks.peers.comparison import Contestant, best, described, figures
from benchmarks.peers.environment import PLACE, PeerUnavailable
from benchmarks.peers.process import PeerProcess

_ROOM = 64  # tokens of context beyond prompt and output, for drafts


@dataclass(frozen=True)
class Arrangement:
    """Where everybody runs."""

    name: str
    threads: int
    """Of a peer, and at most of our verifier."""
    cores: list[int]
    """Of peers and of our verifier."""
    drafter_cores: list[int]


class Contest:
    """All peers in one arrangement."""

    def __init__(self, arrangement: Arrangement, models: dict[str, str], prompts: Sequence[list[int]], tokens: int):
        """models: directories of "target" and "draft". tokens: to decode for each prompt."""
        self._arrangement = arrangement
        self._models = models
        self._prompts = prompts
        self._tokens = tokens
        self._processes: dict[str, PeerProcess] = {}
        self._about: dict[str, str] = {}
        self._broken: dict[str, str] = {}
        self._kept: set[str] = set()
        self._ways: dict[str, tuple[Peer, Method, Setting]] = {}
        self.contestants: list[Contestant] = []

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.stop()

    def enter(self, peer: Peer, method: Method, choosing: Sequence[list[int]]) -> None:
        """Find the method's best setting on `choosing` and warm it up."""
        name = f"{peer.name} {method.name}"
        settings = {described(setting): setting for setting in method.settings}
        tried: dict[str, float | str] = {}
        for label, setting in settings.items():
            try:
                process = self._process(peer, method, setting)
                process.generate(self._prompts[0], self._tokens, setting)  # warms up
                if len(settings) > 1:
                    timings = [process.generate(prompt, self._tokens, setting) for prompt in choosing]
                    tried[label] = decode_rate(timings)
                else:
                    tried[label] = 0.0  # nothing to choose
            except PeerUnavailable as problem:
                key = peer.process_key(method, setting)
                tried[label] = self._broken[key] = str(problem)
                self._discard(key)
            self._stop_losers(peer, method, settings, tried)
        chosen = best(tried)
        contestant = Contestant(name, method.precise, chosen or "", tried, "")
        self.contestants.append(contestant)
        if chosen is None:
            contestant.failure = str(next(iter(tried.values())))
        else:
            key = peer.process_key(method, settings[chosen])
            self._kept.add(key)
            self._ways[name] = (peer, method, settings[chosen])
            contestant.about = self._about[key]
        print(f"{self._arrangement.name}: {name}: {tried}", file=sys.stderr)

    def run(self, number: int) -> None:
        """All take turns over all prompts."""
        for contestant in self.contestants:
            contestant.runs.append([])
        for place, prompt in enumerate(self._prompts):
            able = [each for each in self.contestants if each.failure is None]
            first = (number + place) % max(1, len(able))
            for contestant in able[first:] + able[:first]:
                peer, method, setting = self._ways[contestant.name]
                try:
                    timing = self._process(peer, method, setting).generate(prompt, self._tokens, setting)
                    contestant.runs[-1].append(timing)
                except PeerUnavailable as problem:
                    contestant.failure = str(problem)
        for contestant in self.contestants:
            if contestant.failure is None:
                rate = decode_rate(contestant.runs[-1])
                print(f"{self._arrangement.name}: {contestant.name:32} {rate:6.2f} tokens/s", file=sys.stderr)

    def _process(self, peer: Peer, method: Method, setting: Setting) -> PeerProcess:
        key = peer.process_key(method, setting)
        if key in self._broken:
            raise PeerUnavailable(self._broken[key])
        if key not in self._processes:
            arrangement = self._arrangement
            own = peer.environment is None  # it puts its services where they belong, and its client on any core
            cores = sorted(os.sched_getaffinity(0)) if own else arrangement.cores
            self._processes[key] = PeerProcess(peer, arrangement.threads, cores)
            order = {
                "method": method.name,
                "setting": dict(setting),
                "threads": arrangement.threads,
                "cores": arrangement.cores,
                "drafter_cores": arrangement.drafter_cores,
                "max_length": max(map(len, self._prompts)) + self._tokens + _ROOM,
                "cache": str(PLACE / "models"),
            }
            self._about[key] = self._processes[key].load(order | self._models)
        return self._processes[key]

    def _stop_losers(
        self, peer: Peer, method: Method, settings: dict[str, Setting], tried: dict[str, float | str]
    ) -> None:
        """Memory is for those that will be measured."""
        leading = best(tried)
        keys = {label: peer.process_key(method, settings[label]) for label in tried}
        for key in set(keys.values()):
            if key not in self._kept and (leading is None or key != keys[leading]):
                self._discard(key)

    def _discard(self, key: str) -> None:
        process = self._processes.pop(key, None)
        if process is not None:
            process.stop()


def contest(arrangement: Arrangement, options: argparse.Namespace, models: dict[str, str]) -> dict[str, object]:
    """Measure one arrangement; its figures."""
    tokenizer = Tokenizer.from_file(str(Path(models["target"]) / "tokenizer.json"))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in held_out_prompts(options.prompts)]
    missing: dict[str, object] = {}
    with Contest(arrangement, models, prompts, options.max_tokens) as all_peers:
        for peer in _asked_for(peers(arrangement.threads), options.peers):
            try:
                if peer.environment is not None:
                    peer.environment.prepare()
            except PeerUnavailable as problem:
                missing[peer.name] = f"not measured: {problem}"
                continue
            for method in peer.methods:
                all_peers.enter(peer, method, prompts[: options.choosing_prompts])
        for number in range(options.runs):
            all_peers.run(number)
        found = figures(all_peers.contestants, "draftwire plain", "draftwire two services")
    return {f"{arrangement.name}: {name}": value for name, value in (found | missing).items()}


def _asked_for(everybody: Sequence[Peer], names: str) -> list[Peer]:
    """Peers whose names begin with one of `names`, and us."""
    wanted = tuple(name.lower() for name in names.split(",") if name)
    return [each for each in everybody if each.environment is None or each.name.lower().startswith(wanted or "")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target-millions", type=float, default=400.0, help="parameters of the inflated target")
    parser.add_argument("--draft-millions", type=float, default=25.0, help="parameters of the inflated draft model")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--choosing-prompts", type=int, default=4, help="of those, for the choice of settings")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peers", default="", help="beginnings of names, such as vllm,openvino; all by default")
    parser.add_argument("--setting", choices=("one box", "two hosts", "both"), default="both")
    parser.add_argument("--threads", type=int, default=2, help="of a peer on one box")
    parser.add_argument("--target-core", type=int, default=0, help="the target's host")
    parser.add_argument("--drafter-core", type=int, default=1, help="the host of our drafter")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # peers' processes are ended then
    models = {
        "target": str(inflated(MODELS / "target", options.target_millions)),
        "draft": str(inflated(MODELS / "draft", options.draft_millions)),
    }
    cores = sorted(os.sched_getaffinity(0))
    arrangements = [
        Arrangement("one box", options.threads, cores, cores),
        Arrangement("two hosts", 1, [options.target_core], [options.drafter_core]),
    ]
    found: dict[str, object] = {
        "pair": f"bundled, inflated: target {options.target_millions:g} M, draft {options.draft_millions:g} M "
        "parameters, bfloat16",
        "requests": f"{options.prompts} held-out prompts, greedy, {options.max_tokens} tokens, one at a time; settings "
        f"chosen on {min(options.prompts, options.choosing_prompts)} of them",
        "rates": "tokens after a request's first ones, over the time after those",
        "one box": f"cores {cores}, {options.threads} threads; ours: verifier 1 to {options.threads}, drafter 1",
        "two hosts": f"core {options.target_core}, 1 thread; our drafter on core {options.drafter_core}, 1 thread",
    }
    for arrangement in arrangements:
        if options.setting in (arrangement.name, "both"):
            found |= contest(arrangement, options, models)
    for peer in _asked_for(peers(options.threads), options.peers):
        if peer.environment is not None and peer.environment.ready:
            found[f"versions, {peer.name}"] = ", ".join(f"{k} {v}" for k, v in peer.environment.versions.items())
    print_report("compare_peers", found, options.json)


if __name__ == "__main__":
    main()
