"""`python -m tests.harness.eager_learner`: `draftwire train learn` at the usual priority.

The lowest one may get no processor time at all while other tests run.
"""

from __future__ import annotations

import sys

from draftwire.cli import main
from draftwire_core.training.learning import idle_priority

if __name__ == "__main__":
    idle_priority.yield_to_others = lambda: None
    sys.argv[1:1] = ["train", "learn"]
    main()
