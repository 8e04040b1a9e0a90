"""Runs the service named by TOLD_SERVICE, then prints which modules beyond OpenTelemetry's API it has imported."""

import json
import os
import runpy
import sys

if __name__ == "__main__":
    try:
        runpy.run_module(os.environ["TOLD_SERVICE"], run_name="__main__", alter_sys=True)
    finally:
        modules = sorted(
            name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))
        )
        print(json.dumps({"event": "imported", "modules": modules}), flush=True)
