"""The kernels run in Triton's interpreter."""

import importlib.util

if importlib.util.find_spec("triton"):
    from tests.harness.kernels.prepared_interpreter import prepare_interpreter

    prepare_interpreter()
