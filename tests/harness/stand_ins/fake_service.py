"""Services without models, as child processes of commands that start services."""

from __future__ import annotations

import time
from pathlib import Path

from tests.harness.waiting import PATIENCE

FAKE_SERVICE = """
import argparse, os, pathlib, sys, threading
sys.path[:0] = {path!r}
parser = argparse.ArgumentParser()
parser.add_argument("--model"), parser.add_argument("--listen"), parser.add_argument("--target-tokenizer")
arguments, _ = parser.parse_known_args()
if arguments.model.endswith("broken"):
    sys.exit("no model in there")
place = pathlib.Path({pids!r}) / pathlib.Path(arguments.model).name
place.with_name(place.name + ".tokenizer").write_text(arguments.target_tokenizer or "")
place.with_name(place.name + ".pid").write_text(str(os.getpid()))
from tests.harness.stand_ins.fake_verifier import FakeVerifier
fake = FakeVerifier()
fake.delay = 0.01
fake.start(arguments.listen)
threading.Event().wait()
"""


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.02)
    return int(path.read_text())
