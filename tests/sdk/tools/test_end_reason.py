"""The end of a child process in a sentence, from logs as services write them."""

from pathlib import Path

import pytest

from draftwire_tools.end_reason import end_reason, reason_in
from draftwire_tools.service import Job
from tests.harness.waiting import PATIENCE

STAMP = "2026-11-28T12:40:15.237466Z"
STARTING = f"{STAMP} [info     ] starting build='draftwire 0.1' settings={{'model': 'reason=none'}}"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"{STAMP} [error    ] cannot start reason='model /n: not there'"], "model /n: not there"),
        ([f'{STAMP} [error    ] cannot start reason="it\'s a \\"quote\\""'], 'it\'s a "quote"'),
        ([f"{STAMP} [error    ] --listen: give --insecure"], "--listen: give --insecure"),
        (
            [
                f"{STAMP} [error    ] service failed module=a.b",
                "Traceback (most recent call last):",
                '  File "x.py", line 1, in f',
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            ],
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        (["python -m verifier_service: DRAFTWIRE_KV_SLOTS: got 5"], "DRAFTWIRE_KV_SLOTS: got 5"),
        (
            ["Fatal Python error: init_sys_streams: no memory", "Current thread (most recent call first):"],
            "Fatal Python error: init_sys_streams: no memory",
        ),
        ([], STARTING),
    ],
)
def test_the_reason_in_a_log(lines: list[str], reason: str) -> None:
    assert reason_in("\n".join([STARTING, *lines, ""])) == reason


OLD = f"{STAMP} [error    ] a request failed reason='the client broke off'"
SERVED = [f"{STAMP} [info     ] served" for _ in range(1000)]


def test_an_old_error_is_no_reason() -> None:
    assert reason_in("\n".join([OLD, *SERVED, "Fatal Python error: Aborted"])) == "Fatal Python error: Aborted"
    assert reason_in("\n".join([OLD, *SERVED])) == SERVED[-1]


def test_an_end_without_an_error() -> None:
    assert end_reason("verifier", 0, OLD) == "verifier ended with code 0"


@pytest.mark.processes
def test_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    program = "import sys; print(sys.argv[1]); print('x' * 100_000, '\\nlast'); sys.exit(3)"
    job = Job("job", ["-c", program, OLD], tmp_path)
    job.wait(PATIENCE)
    assert str(job.failure(3)) == "job ended with code 3: last"


def test_nothing_was_written() -> None:
    assert end_reason("verifier", 3, "") == "verifier ended with code 3"


def test_it_was_killed() -> None:
    killed = end_reason("verifier", -9, "line\n" * 100)
    assert killed == "verifier was killed (signal 9); out of memory is the usual cause"
    assert end_reason("drafter", -11, "") == "drafter ended by signal 11 (Segmentation fault)"


def test_lack_of_memory_comes_first_and_the_message_is_short() -> None:
    told = end_reason("verifier", 1, f"RuntimeError: [enforce fail] can't allocate memory: {'x' * 5000}")
    assert told.startswith("verifier ended with code 1: out of memory: RuntimeError")
    assert len(told) < 500
    assert "\n" not in told
