"""Tests of commands that run in forks: they see the same and end the same as in processes of their own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness import processes
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

LOOK = """
import json, os, sys
print(json.dumps({
    "name": __name__, "argv": sys.argv, "orig_argv": sys.orig_argv, "directory": os.getcwd(), "path": sys.path[0],
    "variables": {name: value for name, value in os.environ.items() if name.startswith("DRAFTWIRE_")},
    "input": sys.stdin.read(), "parent": os.getppid(), "imported": "torch" in sys.modules,
}))
print("to the other stream", file=sys.stderr)
sys.exit(3)
"""
HOLDS = "import time; print('here', flush=True); time.sleep(100)"
STARTS_ANOTHER = """
import os, subprocess, sys
done = subprocess.run([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL, capture_output=True, text=True)
print(os.getpid(), done.returncode, done.stderr.strip(), sep="|")
print(done.stdout)
"""
HAS_A_SERVER = """
import ctypes, os, socket, sys, time
from tests.harness import fork_server
from tests.harness.started_process import Start, receive_pid, send_start
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # adopts orphans
ours, theirs = socket.socketpair()
server = os.fork()
if server == 0:
    ours.close()
    if (command := fork_server.serve(theirs)) is not None:
        fork_server.become(command)
    os._exit(0)
theirs.close()
send_start(ours, Start(["-c", sys.argv[1]], dict(os.environ), "/", spares=1), (0, 1, 2))
print(server, receive_pid(ours), flush=True)
time.sleep(100)
"""
"""A process that forks in place of one that imports first, which would take seconds."""


def environment(**variables: str) -> dict[str, str]:
    return os.environ | processes.ENVIRONMENT | variables


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "looking.py"
    path.write_text(LOOK)
    return path


@pytest.mark.parametrize("kind", ["module", "code", "program"])
def test_a_command_sees_what_it_would_see_otherwise(kind: str, program: Path, tmp_path: Path) -> None:
    command = {"module": ["-m", "looking"], "code": ["-c", LOOK], "program": [str(program)]}[kind]
    options: dict[str, Any] = {
        "cwd": tmp_path, "input": "said", "env": environment(DRAFTWIRE_ANYTHING="1"), "capture_output": True,
        "text": True, "timeout": PATIENCE,
    }  # fmt: skip
    forked = processes.run([sys.executable, *command, "--flag", "value"], **options)
    plain = subprocess.run([sys.executable, *command, "--flag", "value"], check=False, **options)
    assert (forked.returncode, forked.stderr) == (plain.returncode, plain.stderr) == (3, "to the other stream\n")
    seen, expected = json.loads(forked.stdout), json.loads(plain.stdout)
    assert (seen.pop("imported"), expected.pop("imported")) == (True, False)
    assert seen == expected
    assert seen["parent"] == os.getpid()


def test_an_import_that_may_differ_starts_the_plain_way() -> None:
    for variables in ({"HF_HOME": "/nowhere"}, {"OMP_NUM_THREADS": "3"}):
        done = processes.run(
            [sys.executable, "-c", LOOK], env=environment(**variables), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert not json.loads(done.stdout)["imported"]


@pytest.mark.parametrize(
    "code",
    [
        "",
        "sys.exit('a reason')",
        "sys.exit(259)",
        "raise SystemExit(-1)",
        "atexit.register(print, 'later', end='')",
        "threading.Thread(target=lambda: (time.sleep(0.1), print('a thread'))).start()",
        "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
    ],
)
def test_it_ends_by_itself(code: str) -> None:
    options: dict[str, Any] = {"env": environment(), "capture_output": True, "text": True, "timeout": PATIENCE}
    command = [sys.executable, "-c", f"import atexit, sys, threading, time; print('said', end=''); {code}"]
    forked, plain = processes.run(command, **options), subprocess.run(command, check=False, **options)
    assert (forked.returncode, forked.stdout, forked.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_it_ends_by_an_exception() -> None:
    done = processes.run(
        [sys.executable, "-c", "raise KeyError('a fault')"], env=environment(), capture_output=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, b"KeyError: 'a fault'")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_it_ends_by_a_signal(number: signal.Signals) -> None:
    options: dict[str, Any] = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    codes = []
    for popen in (processes.Popen, subprocess.Popen):
        with popen([sys.executable, "-c", HOLDS], **options) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            assert process.poll() is None
            process.send_signal(number)
            codes.append(process.wait(PATIENCE))
        assert processes.ended(process.pid)
    assert codes[0] == codes[1] != 0


def test_a_process_that_it_starts_is_its_own_child_and_a_fork() -> None:
    with processes.Popen(
        [sys.executable, "-c", STARTS_ANOTHER, LOOK], env=environment(), stdout=subprocess.PIPE, text=True, spares=2
    ) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    own, _, seen = output.partition("\n")
    assert own == f"{process.pid}|3|to the other stream"
    assert (json.loads(seen)["parent"], json.loads(seen)["imported"]) == (process.pid, True)


def test_what_waited_in_vain_ends() -> None:
    with processes.Popen([sys.executable, "-c", HOLDS], env=environment(), stdout=subprocess.PIPE, spares=2) as process:
        assert process.stdout is not None
        process.stdout.readline()
        waiting = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(waiting) == 2
        process.kill()
    eventually(lambda: all(processes.ended(pid) for pid in waiting), "they have ended")


def test_nothing_outlives_a_process_that_is_killed() -> None:
    """Neither its fork server, nor what that has forked, nor what waits to be started by such a fork."""
    with processes.Popen(
        [sys.executable, "-c", HAS_A_SERVER, HOLDS], env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        server, fork = map(int, next(line for line in lines if line != "here\n").split())
        waiting = [int(pid) for pid in Path(f"/proc/{fork}/task/{fork}/children").read_text().split()]
        assert len(waiting) == 1 and not any(map(processes.ended, (server, fork, *waiting)))
        process.kill()
    for each in (server, fork, *waiting):
        eventually(lambda each=each: processes.ended(each), f"process {each} has ended")


def test_two_draw_different_random_numbers() -> None:
    code = "import random, uuid; print(random.random(), uuid.uuid4())"
    drawn = {
        processes.run([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, timeout=PATIENCE).stdout
        for _ in range(2)
    }
    assert len(drawn) == 2


def test_packages_that_only_pythonpath_names_are_found_by_services_as_well(tmp_path: Path) -> None:
    shown = "from tests.harness.processes import SERVICE_ENVIRONMENT as found; print(found['PYTHONPATH'])"
    path = os.pathsep.join([str(tmp_path), processes.SERVICE_ENVIRONMENT["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", shown], env=os.environ | {"PYTHONPATH": path}, cwd=processes.ROOT,
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    entries = done.stdout.strip().split(os.pathsep)
    assert entries[:2] == [str(processes.ROOT), str(processes.ROOT / "sdk")] and str(tmp_path) in entries[2:]
