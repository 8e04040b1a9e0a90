"""The files with slow tests that a change touches, by the import graph.

    python -m scripts.touched_tests [--since COMMIT] [--minutes 12]

Prints the files nearest to the change, as many as fit by their recorded processor time (`tests/durations.json`), and on
stderr the ones left out. A test file is touched if it imports a changed module, directly or through others,
starts it as a process, or names a changed file that is no module. Without COMMIT the change is what came after the last
run of all tests, `tests/last_full_run.txt`; in a clone that lacks that commit every file is touched.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
LAST_FULL_RUN = ROOT / "tests" / "last_full_run.txt"
PACKAGES = (
    "benchmarks",
    "drafter_service",
    "draftwire",
    "draftwire_core",
    "draftwire_sglang",
    "draftwire_tools",
    "draftwire_vllm",
    "gateway_service",
    "scripts",
    "tests",
    "verifier_service",
)
COMPILED = ("draftwire_core/engine/kernels/csrc/", "draftwire_core.engine.kernels.library")
"""The folder of the C sources, and the module that loads what they are compiled to."""
SERVICES = "tests.harness.services.services"
"""The module that starts services for tests. Which of them a test needs is in its calls."""
FORK_SERVER = "tests.harness.fork_server"
"""The module that imports all services for those that start one."""
STARTED = {
    "verifier": "tests.harness.steady_verifier",
    "drafter": "drafter_service.__main__",
    "gateway": "gateway_service.__main__",
    "in_process_verifier": "tests.harness.services.in_process_verifier",
    "in_process_drafter": "tests.harness.services.in_process_drafter",
}
"""Modules that the methods of the `services` fixtures start."""
UNRECORDED_SECONDS = 60.0
"""Processor time assumed for a file that has not been recorded yet."""
_SLOW = re.compile(r"^(pytestmark = (\[\s*)?|@)pytest\.mark\.slow\b", re.MULTILINE)


def main() -> None:
    """Prints the files."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    arguments.add_argument("--since", help="the commit before the change")
    arguments.add_argument("--minutes", type=float, default=12.0, help="processor minutes that the tests may take")
    chosen = arguments.parse_args()
    sys.path[:0] = [str(ROOT / "sdk"), str(ROOT)]
    slow = {file: (ROOT / file).read_text(encoding="utf-8") for file in _slow_files()}
    changed = changed_files(chosen.since or LAST_FULL_RUN.read_text().strip())
    near = distances(changed, slow) if changed is not None else dict.fromkeys(slow, 0)
    fitting, left_out = fit(near, _recorded(), chosen.minutes * 60)
    # pytest 9.1 loses the fixtures of a folder's conftest if many files of other folders stand between its own.
    for file in sorted(fitting):
        print(file)
    for file in left_out:
        print(f"left out, for lack of time: {file}", file=sys.stderr)


def changed_files(since: str) -> list[str] | None:
    """The files that differ from a commit, from the root of the checkout; None if there is no such commit here."""
    done = subprocess.run(
        ["git", "diff", "--name-only", f"{since}..."], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else None


def distances(changed: Iterable[str], slow: Mapping[str, str]) -> dict[str, int]:
    """The number of imports between each touched file with slow tests and the nearest change; 0 if it changed itself.

    slow: texts by file.
    """
    graph = _graph()
    files = {_module(file): file for file in slow}
    found: dict[str, int] = {}
    now, others = set(), []
    for file in changed:
        module = COMPILED[1] if file.startswith(COMPILED[0]) else _module(file)
        if module in graph.modules:
            now.add(module)
        else:
            others.append(file)
    for file, text in slow.items():
        if any(re.search(rf"\b{re.escape(Path(other).name)}\b", text) for other in others):
            found[file] = 1
    seen: set[str] = set()
    for distance in range(len(graph.modules)):
        if not now:
            break
        for module in now & files.keys():
            found[files[module]] = min(distance, found.get(files[module], distance))
        seen |= now
        now = {importer for module in now for importer in graph.find_modules_that_directly_import(module)} - seen
    return found


def fit(near: Mapping[str, int], seconds: Mapping[str, float], budget: float) -> tuple[list[str], list[str]]:
    """Splits touched files into those that fit into a number of processor seconds, nearest and cheapest first, and the
    rest."""
    fitting, left_out, used = [], [], 0.0
    for file in sorted(near, key=lambda file: (near[file], seconds.get(file, UNRECORDED_SECONDS), file)):
        taken = seconds.get(file, UNRECORDED_SECONDS)
        if used + taken > budget:
            left_out.append(file)
        else:
            used += taken
            fitting.append(file)
    return fitting, left_out


@functools.cache
def _graph() -> grimp.ImportGraph:
    """Imports of all packages and tests. A test imports what it starts as a process, and its folders' fixtures, too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for module in [each for each in graph.modules if each.startswith("tests.") or each.endswith(".__main__")]:
        for fixtures in _fixtures(module) & graph.modules:
            graph.add_import(importer=module, imported=fixtures)
        for started in _started(module, graph.modules) if module not in (SERVICES, FORK_SERVER) else ():
            graph.add_import(importer=module, imported=started)
    for started in STARTED.values():
        graph.remove_import(importer=SERVICES, imported=started)
    return graph


def _recorded() -> dict[str, float]:
    from tests.harness.suite.durations import Durations

    return Durations.recorded().slow


def _slow_files() -> list[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return sorted(each.relative_to(ROOT).as_posix() for each in files if _SLOW.search(each.read_text(encoding="utf-8")))


def _module(file: str) -> str:
    return file.removeprefix("sdk/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _fixtures(module: str) -> set[str]:
    """The conftest modules of a test's folders, without the one that all tests share."""
    folders = module.split(".")[:-1]
    return {".".join([*folders[:depth], "conftest"]) for depth in range(2, len(folders) + 1)} - {module}


def _started(module: str, known: Iterable[str]) -> set[str]:
    """The modules that a test starts as services, and those that a module names in strings to run them."""
    path = ROOT / (module.replace(".", "/") + ".py")
    if not path.exists():
        return set()
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    texts = {each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    methods = {
        each.attr
        for each in nodes
        if isinstance(each, ast.Attribute) and ast.unparse(each.value).endswith("services") and each.attr in STARTED
    }
    named = {name for text in texts for name in (text, f"{text}.__main__") if name in known}
    return named | {STARTED[method] for method in methods}


if __name__ == "__main__":
    main()
