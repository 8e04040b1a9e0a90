"""The catalogue of modules, a page of the site made from their docstrings: a section per package, a line per module.

`python -m scripts.docs.module_catalogue` prints it.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = (
    "sdk/draftwire",
    "sdk/draftwire_tools",
    "draftwire_core",
    "verifier_service",
    "drafter_service",
    "gateway_service",
    "draftwire_vllm",
    "draftwire_sglang",
)
GENERATED = ("sdk/draftwire/v1",)
"""Packages of generated code, which are left out."""

_SENTENCE = re.compile(r"(.+?[.?!])(?:\s|$)", re.DOTALL)


def catalogue() -> str:
    """Returns the page in Markdown. Raises ValueError that names a module or package without a docstring."""
    parts = ["# Modules", "", "A line a module, the first sentence of its docstring.", ""]
    for package in PACKAGES:
        for directory in [ROOT / package, *sorted(each for each in (ROOT / package).rglob("*") if each.is_dir())]:
            path = directory.relative_to(ROOT).as_posix()
            if (directory / "__init__.py").exists() and not path.startswith(GENERATED):
                parts += _section(directory, "##" if path == package else "###")
    return "\n".join(parts)


def _section(directory: Path, heading: str) -> list[str]:
    files = sorted(path for path in directory.glob("*.py") if path.name != "__init__.py")
    lines = [f"{heading} `{directory.relative_to(ROOT).as_posix()}`", "", summary(directory / "__init__.py"), ""]
    if files:
        lines += ["| module | |", "|---|---|"]
        lines += [f"| `{path.name}` | {summary(path).replace('|', chr(92) + '|')} |" for path in files]
    return [*lines, ""]


def summary(path: Path) -> str:
    """Returns the first sentence of a module's docstring. Raises ValueError, naming the file, if there is none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring")
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    found = _SENTENCE.match(paragraph)
    return found[1] if found else paragraph


if __name__ == "__main__":
    print(catalogue())
