"""The learner of the draft model as a child process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from draftwire.cli.failure import Failure
from draftwire_tools.serve.auto import LOOKUP
from draftwire_tools.serve.plan import DRAFT, ServePlan, name_of
from draftwire_tools.service import Job

HEAD = "local:recurrent"
"""The drafter in the verifier that drafts nothing until it has learned from nothing but the target."""
_NEWS = ("; promoted: ", " drafts, as learned before; ")
"""The parts of lines about a version that drafts from now on, and about one that drafts again after a start."""
LOOKUP_TEXTS = "lookup.ids"
"""Name of the file, in the directory of what is learned, with the texts that lookup begins with."""
_FINGERPRINT = 12
"""Characters of a target's fingerprint in the name of a directory."""


class LearnerProcess(Job):
    """A child process that trains the drafter in the verifier. It has the lowest priority and one thread."""

    def __init__(self, verifier: str, directory: Path, plan: ServePlan, logs: Path) -> None:
        """Starts it. verifier: its address. directory: of texts and checkpoints."""
        self.directory = directory
        flags = ["--verifier", verifier, "--dir", str(directory), "--target", plan.model]
        if plan.options.chat_template is not None:
            flags += ["--chat-template", str(plan.options.chat_template.resolve())]
        if plan.options.learn_prompts is not None:
            flags += ["--learn-prompts", str(plan.options.learn_prompts.resolve())]
        if plan.options.learn_probabilities:
            flags += ["--probabilities"]
        super().__init__("learner", ["-m", "draftwire.cli", "train", "learn", *flags], logs)
        self._read = 0

    def news(self) -> list[str]:
        """Returns the lines since the last call about learned versions that draft."""
        whole = b""
        with contextlib.suppress(FileNotFoundError), self.log.open("rb") as log:  # systems remove old temporary files
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return [line for line in whole.decode(errors="replace").splitlines() if any(part in line for part in _NEWS)]


def can_learn(addresses: Iterable[str]) -> bool:
    """Returns whether one of these is a draft model or a head in the verifier, which can learn."""
    return any(address.partition("?")[0] in (DRAFT, HEAD) for address in addresses)


def tunable(plan: ServePlan) -> bool:
    """Returns whether a plan has a draft model or a head in the verifier, which can learn."""
    return can_learn(plan.local)


def learns_head(plan: ServePlan) -> bool:
    """Returns whether a head is to learn next to lookup, because nothing else was found for a target on a CPU. On a
    GPU's host the learner would read each text with a copy of the target on the CPU. Ranks can have no head."""
    whole = os.environ.get("DRAFTWIRE_TENSOR_PARALLEL", "1") == "1"
    return plan.chosen == {LOOKUP} and not tunable(plan) and plan.options.device.target == "cpu" and whole


def learned_lookup(directory: Path) -> str:
    """Returns the address of the lookup drafter that begins with the texts of earlier starts, and adds those served."""
    return f"local:suffix?shared=true&texts={quote(str(directory / LOOKUP_TEXTS), safe='/')}"


def learning_directory(plan: ServePlan, fingerprint: str) -> Path:
    """Returns the directory of a target's texts and checkpoints: the given one, or by default one in ``$XDG_DATA_HOME``
    or ``~/.local/share``.

    Raises:
        Failure: there is none, for a user without a home.
    """
    if plan.options.learn_directory is not None:
        return plan.options.learn_directory.resolve()
    try:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:
        raise Failure("--learn: this user has no home directory; name a directory with --learn-dir") from None
    return data / "draftwire" / "learning" / f"{name_of(plan.model)}-{fingerprint[:_FINGERPRINT]}"
