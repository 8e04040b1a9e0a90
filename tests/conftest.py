"""Settings that hold for all tests, and the plugins of the suite."""

import importlib.util
import logging
import os
import signal

import pytest
from hypothesis import settings

from tests.harness.suite.tiers import TIERS

TORCH_THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
"""Two workers and their services on two cores: with two threads each they would wait for one another."""

settings.register_profile(
    "short", max_examples=60, stateful_step_count=60, derandomize=True, database=None, deadline=None, print_blob=True
)
settings.register_profile("long", settings.get_profile("short"), max_examples=3000, derandomize=False)
settings.load_profile("short")  # --hypothesis-profile=long on the command line is loaded later and overrides this

# Set before anything imports torch: small models run fastest on few threads. Services started by tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", str(TORCH_THREADS))
# Idle OpenMP threads sleep: spinning took three times as long when other processes were busy.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Set before anything imports triton: its kernels run in Triton's interpreter, on the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell's background job ignores SIGINT, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("structlog"):
    import structlog

    # Logs of services in the tests' own process: a traceback that rich formats takes 0.2 processor seconds.
    structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("draftwire")
    group.addoption("--tier", choices=TIERS, default="all", help="which tests run (default: all of those named)")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    from tests.harness.services import fixtures
    from tests.harness.suite.budget import Budget
    from tests.harness.suite.bytecode import make_bytecode
    from tests.harness.suite.durations import Durations
    from tests.harness.suite.engines import Engines
    from tests.harness.suite.garbage import Garbage
    from tests.harness.suite.groups import Groups
    from tests.harness.suite.skipped import Skipped
    from tests.harness.suite.tiers import Tiers

    config.pluginmanager.register(Garbage(), "draftwire Garbage")  # first: the imports below are part of it
    hands_out = "PYTEST_XDIST_WORKER" not in os.environ and getattr(config.option, "numprocesses", None)
    if importlib.util.find_spec("torch") and not hands_out:
        import torch

        torch.set_num_threads(TORCH_THREADS)
        # Six times a test, pytest adds a handler to each logger that does not propagate, of which torch has forty.
        for logger in logging.root.manager.loggerDict.values():
            if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
                logger.propagate = True
    config.pluginmanager.register(fixtures, "draftwire services")
    if importlib.util.find_spec("structlog"):
        from tests.harness.suite import logs

        config.pluginmanager.register(logs, "draftwire logs")
    tier, durations = config.option.tier, Durations.recorded()
    tiers = Tiers(tier, durations)
    if hands_out and config.args_source is config.ArgsSource.TESTPATHS:
        make_bytecode(config, lambda file: not tiers.pytest_ignore_collect(file, config))
    for plugin in (
        tiers,
        Groups(tier, durations),
        Budget(tier, durations, record=config.option.record_durations),
        Engines(),
        Skipped(),
    ):
        config.pluginmanager.register(plugin, f"draftwire {type(plugin).__name__}")
