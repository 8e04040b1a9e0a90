"""Time is attributed to the part entered last."""

import threading

import pytest

from draftwire_core.engine.planning import step_clock
from draftwire_core.engine.planning.step_clock import StepClock
from tests.harness.engine.engines import engine_of, generate, packed, random_tokens, specs_of, tiny_model


class Time:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now / 2


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(step_clock, "time", made)
    return made


def test_parts_leave_nothing_out_but_idleness(time: Time) -> None:
    clock = StepClock()
    for part, now in [(None, 1.0), ("plan", 5.0), ("forward", 5.25), ("plan", 7.25), (None, 7.5), ("wire", 9.0)]:
        time.now = now
        clock.enter(part)  # type: ignore[arg-type]
    assert clock.seconds() == {
        "plan": 0.5,
        "layout": 0.0,
        "forward": 2.0,
        "sample": 0.0,
        "walk": 0.0,
        "rollback": 0.0,
        "draft": 0.0,
        "wire": 0.0,  # it has not ended
        "wait": 0.0,
    }
    assert clock.steps == 1


def test_cpu_time_is_that_between_forward_passes_of_one_thread(time: Time) -> None:
    clock = StepClock()

    def steps(*moments: float) -> None:
        for number, now in enumerate(moments):
            time.now = now
            clock.enter("plan" if number % 2 else "forward")

    steps(1.0, 3.0, 4.0, 9.0)
    assert clock.cpu_around_forward == 0.5
    thread = threading.Thread(target=steps, args=(11.0, 12.0, 13.0, 13.5))
    thread.start()
    thread.join()
    assert clock.cpu_around_forward == 1.0


def test_an_engine_counts_its_steps_and_enters_each_part() -> None:
    engine = engine_of(packed(tiny_model("Llama"), 100))
    generate(engine, specs_of([random_tokens(10)], 12))
    assert engine.clock.steps == 12
    entered = {part for part, seconds in engine.clock.seconds().items() if seconds}
    assert entered == {"plan", "layout", "forward", "sample", "walk"}, "without drafts nothing is rolled back"
