"""The log events: each is a subject with a past participle, and docs/log-events.md lists them as the code has them."""

import re

import pytest

from tests.surface.log_events import ROOT, LogEvent, events_of, log_events

PROGRAMS = ("verifier", "drafter", "gateway", "vLLM", "SGLang", "SDK")
ALLOWED = {
    "starting": "a stage that has begun and not ended",
    "listening": "a stage that has begun and not ended",
    "draining": "a stage that has begun and not ended",
    "shutting down": "a stage that has begun and not ended",
    "cannot start": "the subject is the program itself",
    "cannot read the verifier's model info": "the subject is the program itself",
    "no authentication": "a state, not a happening",
    "caller left before its text was read": "a clause after the participle says when",
    "GPU kernels not available for this model": "a state, not a happening",
}
_PARTICIPLE = r"(?:\w+ed|chosen|found|left|lost|read|shut|cut)"
_EVENT = re.compile(rf"^(?!(?:the|a|an) ).+ (?:not )?{_PARTICIPLE}\b|^{_PARTICIPLE}\b")
_FINITE = re.compile(r"\b(?:is|are|was|were|has|have|does|do|did|goes|stayed|violate)\b")


def is_well_named(event: str) -> bool:
    """Whether the part of a name before a semicolon or colon is a subject with a past participle."""
    head = re.split("[;:]", event)[0]
    return head in ALLOWED or (_EVENT.match(head) is not None and _FINITE.search(head) is None)


def rows() -> dict[str, LogEvent]:
    """Returns the events of docs/log-events.md."""
    page = (ROOT / "docs" / "log-events.md").read_text(encoding="utf-8")
    found = {}
    for name, levels, programs, fields, meaning in re.findall(
        r"^\| `(.+?)` \| (.*?) \| (.*?) \| (.*?) \| (.*) \|$", page, re.MULTILINE
    ):
        assert name not in found and meaning, name
        found[name] = LogEvent(
            name,
            set(levels.split(", ")),
            set(re.findall(r"`(\w+)`", fields)),
            programs={each for each in PROGRAMS if each in programs.split(", ")},
        )
    return found


def test_every_event_is_a_subject_with_a_past_participle() -> None:
    assert [name for name in log_events() if not is_well_named(name)] == []
    assert {re.split("[;:]", name)[0] for name in log_events()} >= set(ALLOWED)


@pytest.mark.parametrize(
    "event",
    [
        "heartbeat stayed out",
        "leaving work undone",
        "the verifier does not tell its model",
        "makes features",
        "a text was read for nobody",
        "rank ends",
        "the heartbeat missed",
    ],
)
def test_other_names_are_found(event: str) -> None:
    assert not is_well_named(event)


def test_the_page_has_the_events_of_the_code() -> None:
    found, listed = log_events(), rows()
    assert sorted(listed) == sorted(found)
    for name, event in found.items():
        row = listed[name]
        assert (row.levels, row.programs) == (event.levels, event.programs), name
        assert event.fields <= row.fields and (event.has_more or row.fields <= event.fields), name


def test_the_page_is_sorted() -> None:
    names = list(rows())
    assert names == sorted(names, key=str.lower)


def test_events_are_found_in_every_form_of_a_call() -> None:
    source = """
NAME = "model lost"

class Session:
    def _fault(self, event: str, number: int) -> None:
        report = log.warning if number < 3 else log.debug
        report(event, number=number)

    def run(self, **more):
        log.exception(NAME, exc_info=True)
        log.info("file read", extra={"size": 1}, **more)
        self._fault("sequence failed", 1)
        self._fault("proposal refused", 2)
"""
    found = {event.name: event for event in events_of(source)}
    assert found == {
        "model lost": LogEvent("model lost", {"error"}),
        "file read": LogEvent("file read", {"info"}, {"size"}, has_more=True),
        "sequence failed": LogEvent("sequence failed", {"warning", "debug"}, {"number"}),
        "proposal refused": LogEvent("proposal refused", {"warning", "debug"}, {"number"}),
    }


def test_an_event_that_is_put_together_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a constant nor a parameter"):
        list(events_of('def run():\n    log.info(f"model {name} lost")\n'))
