"""The documents keep up with the code: reasons, modules, settings, and working links."""

import json
import re
from pathlib import Path

import pytest
import typer
from pydantic.fields import FieldInfo

import draftwire
from drafter_service.settings import DrafterSettings
from draftwire.cli.app import app
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.adapters.sglang.settings import SglangSettings
from draftwire_core.adapters.vllm.settings import VllmSettings
from draftwire_core.runtime.process.flags import flag_of
from draftwire_core.runtime.process.settings import ServiceSettings
from gateway_service.openai.chat_request import ChatRequest
from gateway_service.openai.completion_request import CompletionRequest
from gateway_service.openai.speculation_options import SpeculationOptions
from gateway_service.settings import GatewaySettings
from scripts.docs.module_catalogue import PACKAGES, catalogue
from verifier_service.settings import VerifierSettings

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("models/*.md"),
        ROOT / "benchmarks/README.md",
    )
)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SERVICES = ("verifier", "drafter", "gateway")
COMMAND = re.compile(r"^(?:[A-Z_]+=\S* )*(?:python -m (\w+_service)|(draftwire))( .*)?$", re.MULTILINE)
"""A command line with variables before it: the service or draftwire, and what follows."""


def read(document: str | Path) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def modules() -> set[str]:
    """Returns the hand-written modules by path; prose describes the packages' `__init__.py`."""
    found = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    return {path for path in found if not path.startswith("sdk/draftwire/v1/") and not path.endswith("__init__.py")}


def anchors(document: Path) -> set[str]:
    """Returns the anchors that GitHub gives a document's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_error_reason_is_explained() -> None:
    rows = re.findall(r"^\| `(ERROR_REASON_\w+)` \|", read("docs/protocol.md"), re.MULTILINE)
    assert rows == list(ErrorReason.keys())


def test_whoever_has_to_act_on_an_error_is_told() -> None:
    section = read("docs/operating.md").partition("## Error reasons")[2].partition("\n## ")[0]
    told = set(re.findall(r"`([A-Z_]+)`", section))
    assert told == {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()} - {"UNSPECIFIED"}  # noqa: SIM118


def test_every_public_name_is_in_the_reference() -> None:
    names = re.findall(r"^::: draftwire\.(\w+)$", read("docs/python-api.md"), re.MULTILINE)
    assert sorted(names) == sorted(set(draftwire.__all__) - {"__version__"})


def test_every_command_is_told_of() -> None:
    section = read("docs/getting-started.md").partition("## The command line")[2]
    rows = re.findall(r"^\| (`draftwire .+?) \| ", section, re.MULTILINE)
    told = {command.partition(" ")[0] for row in rows for command in re.findall(r"`draftwire ([^`]+)`", row)}
    assert told == set(typer.main.get_group(app).commands)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_commands_have_the_flags_that_they_are_given(document: Path) -> None:
    surface = json.loads(read("tests/surface/surface.json"))
    known = {f"{name}_service": surface["flags of the services"][f"python -m {name}_service"] for name in SERVICES}
    known |= {name: " ".join(flags).split() for name, flags in surface["commands"].items()}
    groups = {name.rpartition(" ")[0] for name in known}
    text = read(document).replace("\\\n", " ")
    lines = [*FENCED.findall(text), *re.findall(r"`([^`]+)`", FENCED.sub("", text).replace("\n", " "))]
    for service, client, rest in (found for each in lines for found in COMMAND.findall(each)):
        name, words = service or client, re.split(r" #| -- ", rest)[0].split()
        while words and f"{name} {words[0]}" in known:
            name = f"{name} {words.pop(0)}"
        assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", " ".join(words))) <= {*known[name], "--help", "--config"}, rest
        assert name not in groups or not words or words[0].startswith("-"), rest


def test_every_module_has_its_line_in_the_catalogue() -> None:
    page = catalogue()
    for path in modules():
        directory, _, name = path.rpartition("/")
        section = page.partition(f" `{directory}`\n")[2].partition("\n#")[0]
        assert re.search(rf"^\| `{re.escape(name)}` \| .+ \|$", section, re.MULTILINE), path


def test_every_room_of_a_package_is_named() -> None:
    section = read("docs/architecture.md").partition("\nThe rooms of each package")[2].partition("\n\n`")[0]
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", section, re.MULTILINE))
    assert len(rows) == 8
    for package, row in rows.items():
        folder = ROOT / ("sdk" if package == "draftwire" else "") / package.replace(".", "/")
        rooms = {room.parent.name for room in folder.glob("*/__init__.py")}
        assert rooms and rooms - set(re.findall(r"`(\w+)`", row)) == set(), package


def test_every_setting_is_explained() -> None:
    settings = read("docs/settings.md").partition("\n## Tuning\n")[0]
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", settings, re.MULTILINE))
    services = (VerifierSettings, DrafterSettings)
    flags = {flag_of(name) for service in services for name in service.model_fields}
    assert sorted(rows) == sorted(flags | {"--config"})
    for service in services:
        for name, field in service.model_fields.items():
            default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
            if field.default and not field.is_required():
                assert default in rows[flag_of(name)], name


@pytest.mark.parametrize(
    ("engine", "fields"), [("VLLM", VllmSettings.model_fields), ("SGLANG", SglangSettings.model_fields)]
)
def test_every_setting_of_the_adapters_is_explained(engine: str, fields: dict[str, FieldInfo]) -> None:
    head, *table = re.findall(r"^\| (?:variable|`[A-Z_]+`) \|.*$", read("docs/engines.md"), re.MULTILINE)
    column = head.split("|").index(f" `DRAFTWIRE_{engine}_` ")
    cells = {row.split("|")[1].strip(" `"): row.split("|")[column] for row in table}
    rows = {name: cell for name, cell in cells.items() if cell.strip() != "not there"}
    common = set(ServiceSettings.model_fields) - {"listen"}
    assert sorted(rows) == sorted(name.upper() for name in fields if name not in common)
    for name, row in rows.items():
        default = fields[name.lower()].default
        told = (
            f"{default:g}" if isinstance(default, float) else str(default).lower() if default is True else str(default)
        )
        assert row.strip() == (f"`{told}`" if default else ""), name


def test_every_setting_of_the_gateway_is_explained() -> None:
    rows = dict(re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", read("docs/gateway.md"), re.MULTILINE))
    fields = GatewaySettings.model_fields
    assert sorted(rows) == sorted(flag_of(name) for name in fields)
    for name, field in fields.items():
        default = field.default[0] if isinstance(field.default, tuple) and field.default else field.default
        if default:
            told = f"{default:g}" if isinstance(default, float) else str(default)
            assert told in rows[flag_of(name)], name


def test_every_field_of_the_gateways_requests_is_explained() -> None:
    told = set(re.findall(r"`(\w+)`", read("docs/gateway.md")))
    for request in (CompletionRequest, ChatRequest, SpeculationOptions):
        assert set(request.model_fields) - told == set(), request.__name__


def test_every_claim_about_threats_has_its_tests() -> None:
    section = read("docs/security.md").partition("## Threats")[2]
    rows = [row for row in re.findall(r"^\| (.+) \|$", section, re.MULTILINE) if not row.endswith("| test")]
    assert rows
    for claim, _, tests in (row.split(" | ") for row in rows):
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert named, claim
        for path, function in named:
            assert re.search(rf"^ *(async )?def {function}\(", read(f"tests/{path}"), re.MULTILINE), (path, function)


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
