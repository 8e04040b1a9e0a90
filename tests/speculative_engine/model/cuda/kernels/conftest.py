"""The kernels run in Triton's interpreter."""

import importlib.util

if importlib.util.find_spec("triton"):
    from tests.harness.kernels.quick_interpreter import quicken

    quicken()
