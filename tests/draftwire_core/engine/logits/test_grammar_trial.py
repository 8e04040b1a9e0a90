"""The process in which forms are tried: a form that ends it or one of its children ends nothing else."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from draftwire_core.engine.logits import grammar_compiler, grammar_trial
from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_trial import GrammarTrial
from draftwire_core.engine.text.token_table import TokenTable
from tests.harness.hostile_forms import patterns
from tests.harness.processes import ended
from tests.harness.waiting import eventually

pytestmark = pytest.mark.processes

TOKENIZER = Path(__file__).resolve().parents[4] / "models" / "target" / "tokenizer.json"
FINE = Grammar(FormKind.REGEX, "[a-z]+")
TOO_MUCH = Grammar(FormKind.JSON_SCHEMA, patterns())


def table() -> TokenTable:
    return TokenTable.of(Tokenizer.from_file(str(TOKENIZER)))


def children() -> set[int]:
    """Returns the processes that any thread of this one has started and that have not ended.

    With the fork server they include, for a moment, a form's process whose parent was killed.
    """
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            found |= set(map(int, (task / "children").read_text().split()))
    return {each for each in found if not ended(each)}


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> GrammarTrial:
    monkeypatch.setattr(grammar_trial, "MOST_SECONDS", 0.5)  # how long it takes to exhaust memory differs by machine
    return GrammarTrial(table)


def test_what_takes_too_much_ends_alone_and_is_logged(trial: GrammarTrial, caplog: pytest.LogCaptureFixture) -> None:
    assert trial.check(FINE).memory >= 0
    before = children()
    with pytest.raises(GrammarError, match=r"MiB of memory|seconds to compile"):
        trial.check(TOO_MUCH)
    [record] = caplog.records
    assert record.getMessage() == "grammar compilation aborted"
    assert (record.__dict__["kind"], record.__dict__["bytes"]) == ("json_schema", len(TOO_MUCH.text))
    assert trial.check(FINE).memory >= 0
    assert children() <= before, "the process is the same"


def test_another_process_is_started_when_it_was_killed(trial: GrammarTrial, caplog: pytest.LogCaptureFixture) -> None:
    before = children()
    trial.check(FINE)
    [pid] = children() - before
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: ended(pid), "it has ended")
    assert trial.check(FINE).memory >= 0
    assert [record.getMessage() for record in caplog.records] == ["grammar process restarted"]
    eventually(lambda: len(children() - before) == 1, "another one runs")
    assert pid not in children()


def test_forms_are_tried_side_by_side(trial: GrammarTrial) -> None:
    refused: list[str] = []

    def ask() -> None:
        with pytest.raises(GrammarError) as caught:
            trial.check(TOO_MUCH)
        refused.append(str(caught.value))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert trial.check(FINE).memory >= 0
    assert len(refused) < 2, "it did not wait for both"
    for thread in threads:
        thread.join()
    assert len(refused) == 2


def test_its_process_ends_with_it() -> None:
    before = children()
    trial = GrammarTrial(table)
    trial.check(FINE)
    [pid] = children() - before
    del trial
    eventually(lambda: ended(pid), "it has ended")


@pytest.mark.parametrize("large", [False, True])
def test_a_large_vocabulary_is_prepared_before_the_first_form(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[TokenTable] = []

    def tokens() -> TokenTable:
        reads.append(table())
        return reads[-1]

    monkeypatch.setattr(grammar_compiler, "_LARGE", 4000 if large else 5000)
    before = children()
    compiler = grammar_compiler.GrammarCompiler(tokens, 4096)
    compiler.prepare()
    begun, read = children() - before, len(reads)
    assert (len(begun), read) == ((1, 2) if large else (0, 0))
    compiler.form(FINE, [0])
    assert len(reads) == 2
    assert not large or children() - before == begun
