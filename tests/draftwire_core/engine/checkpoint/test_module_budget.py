"""Modules are counted while a configuration is built, whichever of its fields asks for them."""

import contextlib
import threading

import pytest
from torch import nn

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.load_errors import LoadAbandonedError, abandoned_by
from draftwire_core.engine.checkpoint.module_budget import check_declared, module_budget
from draftwire_core.engine.checkpoint.weight_files import WeightTotals


def test_what_never_ends_is_stopped() -> None:
    made = 0
    with pytest.raises(ModelLoadError, match="more parts than its files, which have 5 tensors, can fill"):
        with module_budget("tiny", 5):
            layers = nn.ModuleList()
            while True:
                layers.append(nn.Identity())
                made += 1
    assert made < 2000


def test_a_constructor_that_turns_errors_into_its_own() -> None:
    def build() -> None:
        try:
            nn.ModuleList(nn.Identity() for _ in range(10**9))
        except Exception as error:
            raise RuntimeError("cannot be built") from error

    with pytest.raises(ModelLoadError, match="more parts than its files"), module_budget("tiny", 5):
        build()


@pytest.mark.parametrize("kind", [Exception, BaseException])
def test_a_constructor_that_swallows_errors(kind: type[BaseException]) -> None:
    layers = nn.ModuleList()
    with pytest.raises(ModelLoadError, match="more parts than its files"), module_budget("tiny", 5):
        with contextlib.suppress(kind):
            while True:
                layers.append(nn.Identity())


def test_other_threads_and_later_modules_are_not_counted() -> None:
    with module_budget("tiny", 0):
        thread = threading.Thread(target=lambda: nn.ModuleList(nn.Identity() for _ in range(3000)))
        thread.start()
        thread.join()
        nn.ModuleList(nn.Identity() for _ in range(100))
    nn.ModuleList(nn.Identity() for _ in range(3000))


def test_parameters_without_elements_in_the_files() -> None:
    def make() -> nn.Module:
        return nn.Linear(10**9, 10**9, bias=False)

    with pytest.raises(ModelLoadError, match=r"describes 1000000000000000000 parameters, but its files hold 7$"):
        check_declared("tiny", WeightTotals(1, 7), make)  # type: ignore[arg-type]
    assert check_declared("tiny", WeightTotals(1, 10), lambda: nn.Linear(5, 2, bias=False)) == 10  # type: ignore[arg-type, return-value]


def test_loading_that_nobody_waits_for_ends() -> None:
    given_up = threading.Event()
    with abandoned_by(given_up):
        nn.Sequential(nn.Identity())
        given_up.set()
        with pytest.raises(LoadAbandonedError):
            nn.Sequential(nn.Identity())
    nn.Sequential(nn.Identity())
