"""For the command line, which reads no models itself: prints the choice for a target as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from contextlib import closing
from dataclasses import asdict
from functools import partial

from rich.console import Console

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.suggesting.candidate import HOW
from draftwire_core.suggesting.hub_target import peeked
from draftwire_core.suggesting.preparing import fetched, prepare, universal_is_here
from draftwire_core.suggesting.suggestion import suggest
from draftwire_core.suggesting.target_facts import facts_of
from draftwire_tools.progress import LogLines, status


def main(arguments: list[str] | None = None) -> int:
    """Prints an object: the candidates with their reasons, and with --fetch the drafter that was made ready."""
    parser = argparse.ArgumentParser(prog="python -m draftwire_core.suggesting")
    parser.add_argument("--model", required=True, help="The target: a directory, a GGUF file or a hub id.")
    parser.add_argument("--device", default="cpu", help="Device of the target: cpu, cuda or cuda:N.")
    parser.add_argument("--fetch", action="store_true", help="Fetch the target and the drafter, with progress.")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a download in another process ends, too
    console = Console(stderr=True, highlight=False)
    say = partial(console.print, soft_wrap=True, markup=False)
    try:
        if given.fetch:
            with closing(LogLines(say, "draftwire_core.engine.checkpoint.hub")):
                facts = facts_of(Checkpoint.find(given.model))
        else:
            with status(console, "drafters") as shown:
                shown(f"reading the files of {given.model}", 0.0)
                facts = peeked(given.model)
    except ModelLoadError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    suggestion = suggest(facts, on_gpu=given.device != "cpu", here=universal_is_here())
    found = {
        "architecture": facts.architecture,
        "layers": facts.layers,
        "vocabulary": facts.vocabulary,
        "weight_bytes": facts.weight_bytes,
        "bytes_per_token": facts.bytes_per_token,
        "how": HOW,
        "candidates": [asdict(each) for each in suggestion.candidates],
    }
    if given.fetch:
        ready = prepare(suggestion, lambda each: fetched(each, console))
        found |= {
            "chosen": ready.candidate and ready.candidate.name,
            "address": ready.address,
            "notes": ready.notes,
        }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
