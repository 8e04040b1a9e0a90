"""Admission of requests, and the errors of those that are refused."""

from collections.abc import Callable

import pytest

from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.runtime.errors import ServiceError
from verifier_service.admission.admission import Admission
from verifier_service.admission.expected_wait import ExpectedWait

COST = StepCost([1, 256], [0.01, 0.01])


def busy_for(steps: int) -> ExpectedWait:
    """Returns a wait behind this many prompt steps of ten milliseconds each."""
    wait = ExpectedWait(COST, 128)
    wait.add(1, 128 * steps)
    return wait


def refusal(call: Callable[[], None]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        call()
    assert (caught.value.code.name, caught.value.reason_name) == ("RESOURCE_EXHAUSTED", "AT_CAPACITY")
    return caught.value


def test_as_many_as_there_is_room_for() -> None:
    admission = Admission(busy_for(1), 3)
    admission.check(2, 64)
    assert refusal(lambda: admission.check(3, 64)).retry_after_seconds == 1.0


def test_a_wait_that_is_too_long() -> None:
    Admission(busy_for(1000), 300).check(1, 64)  # no limit
    Admission(busy_for(1000), 300, 10.5).check(1, 64)
    error = refusal(lambda: Admission(busy_for(1000), 300, 4.0).check(1, 64))
    assert error.retry_after_seconds == pytest.approx(6.0)
    assert error.message == "1 requests are ahead; the wait would be about 10.0 s, but --max-wait-seconds allows 4.0 s"


def test_a_deadline_that_comes_before_its_turn() -> None:
    admission = Admission(busy_for(1000), 300)
    admission.check(1, 64, 11.0)
    error = refusal(lambda: admission.check(1, 64, 9.0))
    assert error.retry_after_seconds == pytest.approx(1.0) and "deadline allows 9.0 s" in error.message
    assert refusal(lambda: admission.check(1, 64, 0.0)).retry_after_seconds == pytest.approx(10.0)
    assert refusal(lambda: Admission(busy_for(1000), 300, 9.99).check(1, 64, 60.0)).retry_after_seconds == 0.1


def test_whoever_finds_nobody_comes_in_whatever_the_deadline() -> None:
    Admission(ExpectedWait(COST, 128), 1, 0.001).check(0, 64, 1e-9)
