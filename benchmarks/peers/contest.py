"""A contest of peers in one arrangement: their best settings, then requests in turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.rates import decode_rate
from benchmarks.peers.catalogue import Method, Peer, Setting
from benchmarks.peers.comparison import Contestant, best, described
from benchmarks.peers.environment import PLACE, PeerUnavailable
from benchmarks.peers.process import PeerProcess
from draftwire_tools.turns import turns

_ROOM = 64  # room in the context beyond prompt and output, for drafts


@dataclass(frozen=True)
class Arrangement:
    """The cores and the machine that each contestant runs on."""

    name: str
    threads: int
    """Threads of each peer, and most threads of our verifier."""
    cores: list[int]
    """Cores of the peers and of our verifier."""
    drafter_cores: list[int]


class Contest:
    """All peers in one arrangement."""

    def __init__(self, arrangement: Arrangement, models: dict[str, str], prompts: Sequence[list[int]], tokens: int):
        """models: directories of "target", "draft" and, or empty, "eagle", the type of their "weights", our
        verifier's "kernels", and the directory of llama.cpp's programs, "llama_cpp", for peers that need these. tokens:
        number to decode for each prompt."""
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
        """Finds the method's best setting on the `choosing` prompts and warms it up."""
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
        contestant = Contestant(name, method.precise, chosen or "", tried, "", peer.name)
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
        """Runs one round: all contestants take turns over all prompts."""
        for contestant in self.contestants:
            contestant.runs.append([])
        able = [each for each in self.contestants if each.failure is None]
        for _, _, contestant, prompt in turns(able, self._prompts, [number]):
            if contestant.failure is not None:
                continue
            peer, method, setting = self._ways[contestant.name]
            try:
                batch = self._process(peer, method, setting).generate(prompt, self._tokens, setting)
                contestant.runs[-1].append(batch)
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
            own = peer.environment is None  # this runner places its own services, and its client may use any core
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
        """Stops processes with losing settings, so that memory is free for those that will be measured."""
        leading = best(tried)
        keys = {label: peer.process_key(method, settings[label]) for label in tried}
        for key in set(keys.values()):
            if key not in self._kept and (leading is None or key != keys[leading]):
                self._discard(key)

    def _discard(self, key: str) -> None:
        process = self._processes.pop(key, None)
        if process is not None:
            process.stop()
