"""An engine for drafters in its own thread."""

from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine


class Attached(VerificationEngine):
    """An engine that attaches all its drafters to every sequence."""

    def add(self, spec: SequenceSpec) -> None:
        super().add(spec)
        for source in self._local._drafters:
            self.attach(spec.sequence_id, source)
