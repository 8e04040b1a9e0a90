"""The packages for a machine that has torch and transformers, but no network."""

import re
from collections.abc import Iterable
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from draftwire_core.runtime.process.program import NEEDED
from scripts.release.service_wheels import wanted
from tests.harness.imports_without import problem_without

MODULES = """
verifier_service.service verifier_service.target drafter_service.service
benchmarks.gpu.services benchmarks.laws.invariance
"""


def test_services_get_all_that_torch_and_transformers_do_not_bring() -> None:
    whole, alone = ({re.split(r"[<>=!; ]", each)[0] for each in some} for some in wanted())
    assert {"grpcio", "protobuf", "pydantic", "structlog", "llguidance", "typer"} <= whole
    assert not {"torch", "transformers", "numpy"} & (whole | alone)
    assert alone == {"gguf"}


def closure(requirements: Iterable[str]) -> set[str]:
    """Names of the packages that requirements bring, those of no extra."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for other machines, such as CUDA's
            continue
        if name in found and extras == {""}:
            continue
        found.add(name)
        for each in map(Requirement, needed):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                each.marker = None
                waiting.append(each)
    return found


def test_services_start_only_with_what_is_there() -> None:
    """Packages that services ask for before they start are among the wheels, or come with torch and transformers."""
    whole, alone = wanted()
    there = closure([*whole, "torch", "transformers"]) | {Requirement(each).name for each in alone}
    distributions = metadata.packages_distributions()
    assert [each for each in NEEDED if not {canonicalize_name(name) for name in distributions[each]} & there] == []


@pytest.mark.slow
class TestImports:
    def test_services_and_their_benchmark_need_nothing_else(self) -> None:
        """On a machine with torch, transformers and these wheels."""
        whole, _ = wanted()
        there = closure([*whole, "torch", "transformers"])
        assert {"grpcio", "structlog", "numpy", "safetensors"} <= there
        lacking = [
            module
            for module, packages in metadata.packages_distributions().items()
            if not {canonicalize_name(each) for each in packages} & (there | {"draftwire"})
        ]
        assert {"pytest", "gguf", "hypothesis"} <= set(lacking)
        assert problem_without(" ".join(lacking), MODULES) == ""
