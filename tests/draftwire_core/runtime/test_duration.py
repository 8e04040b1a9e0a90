"""The message with step times by part."""

from draftwire_core.runtime.duration import step_times


def test_each_part_has_its_field() -> None:
    times = step_times(3, {"plan": 0.25, "forward": 1.5e-9, "wait": 2.0}, 0.5)
    assert times.steps == 3
    assert times.plan.ToMilliseconds() == 250
    assert times.forward.ToNanoseconds() == 2
    assert times.wait.ToSeconds() == 2
    assert times.cpu_around_forward.ToMilliseconds() == 500
    assert times.event_loop.ToNanoseconds() > 0
