"""All trials. The first one must pass for the others to make sense."""

from draftwire_tools.check_drafter.trials.closing import CLOSING
from draftwire_tools.check_drafter.trials.drafting import DRAFTING
from draftwire_tools.check_drafter.trials.features import FEATURES
from draftwire_tools.check_drafter.trials.handshake import HANDSHAKE, SIGNS_OF_LIFE
from draftwire_tools.check_drafter.trials.limits import LIMITS
from draftwire_tools.check_drafter.trials.malformed import MALFORMED
from draftwire_tools.check_drafter.trials.openings import OPENINGS
from draftwire_tools.check_drafter.trials.verdicts import VERDICTS

# What shows that the drafter is done comes early.
TRIALS = [
    HANDSHAKE[0], *SIGNS_OF_LIFE, *HANDSHAKE[1:], *OPENINGS, *DRAFTING, *VERDICTS, *MALFORMED, *FEATURES, *CLOSING,
    *LIMITS,
]  # fmt: skip
