"""The documents keep up with the code: reasons, modules, settings, benchmarks, and links that lead somewhere."""

import re
from pathlib import Path

import pytest

from drafter_service.settings import DrafterSettings
from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.flags import flag_of
from verifier_service.settings import VerifierSettings

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("models/*.md"))
)
PACKAGES = (
    "sdk/draftwire",
    "speculative_engine",
    "service_runtime",
    "drafter_service",
    "verifier_service",
    "draft_training",
    "gateway",
)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def read(document: str | Path) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def modules() -> set[str]:
    """Every module that people write, by path; packages' own `__init__.py` are told of in prose."""
    found = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    return {path for path in found if not path.startswith("sdk/draftwire/v1/") and not path.endswith("__init__.py")}


def anchors(document: Path) -> set[str]:
    """The anchors GitHub gives a document's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_error_reason_is_explained() -> None:
    rows = re.findall(r"^\| `(ERROR_REASON_\w+)` \|", read("docs/protocol.md"), re.MULTILINE)
    assert rows == list(ErrorReason.keys())


def test_every_module_has_its_line() -> None:
    rows = re.findall(r"^\| `([\w/.]+\.py)` \| .+ \|$", read("docs/architecture.md"), re.MULTILINE)
    assert sorted(rows) == sorted(modules())


def test_every_setting_is_explained() -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", read("docs/settings.md"), re.MULTILINE))
    services = (VerifierSettings, DrafterSettings)
    flags = {flag_of(name) for service in services for name in service.model_fields}
    assert sorted(rows) == sorted(flags | {"--config"})
    for service in services:
        for name, field in service.model_fields.items():
            default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
            if field.default and not field.is_required():
                assert default in rows[flag_of(name)], name


def test_every_benchmark_has_its_section() -> None:
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert scripts
    sections = set(re.findall(r"^## (\w+\.py)$", read("docs/benchmarks.md"), re.MULTILINE))
    assert scripts - sections == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", read(document))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (ROOT / document).parent / path if path else ROOT / document
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_named_files_exist(document: Path) -> None:
    text = FENCED.sub("", read(document))
    for path in re.findall(r"`((?:tests|benchmarks|examples|models|scripts|protos)/[\w/.-]+\.\w+)`", text):
        assert (ROOT / path).exists(), path
