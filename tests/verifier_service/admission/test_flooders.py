"""Three floods within a minute close Verify to a caller for a while, and to no other."""

import pytest

from draftwire_core.runtime.errors import ServiceError
from verifier_service.admission import flooders as module
from verifier_service.admission.flooders import Flooders


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_three_floods_within_a_minute() -> None:
    clock = Clock()
    flooders = Flooders(clock)
    for _ in range(2):
        flooders.count("a")
        flooders.check("a")
    flooders.count("a")
    flooders.count("a")  # of a stream that was open then
    with pytest.raises(ServiceError, match=r"a sent more proposals .* refused for 5 s") as caught:
        flooders.check("a")
    assert caught.value.reason_name == "CREDIT_EXCEEDED"
    assert caught.value.retry_after_seconds == 5.0
    flooders.check("b")
    clock.now += 5.1
    flooders.check("a")
    for _ in range(3):
        flooders.count("a")
    with pytest.raises(ServiceError, match="refused for 10 s"):
        flooders.check("a")


def test_callers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 4)
    flooders = Flooders(Clock())
    for number in range(50):
        flooders.count(str(number))
    assert len(flooders._breakers) == 4
