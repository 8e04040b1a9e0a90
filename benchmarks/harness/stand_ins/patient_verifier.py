"""The verifier service with a planner that waits for its drafters.

    python -m benchmarks.harness.stand_ins.patient_verifier --model models/target --listen 127.0.0.1:0

All flags are those of `python -m verifier_service`.
"""

from __future__ import annotations

import sys

from benchmarks.harness.stand_ins.patient_planner import PatientPlanner
from draftwire_core.engine.engine import verification_engine
from verifier_service.process import main

if __name__ == "__main__":
    verification_engine.Planner = PatientPlanner
    sys.exit(main())
