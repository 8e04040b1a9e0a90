"""Checks files against the schemas of their formats that come with check-jsonschema."""

from pathlib import Path

from check_jsonschema import main
from click.testing import CliRunner

COMPOSE = "vendor.compose-spec"
WORKFLOW = "vendor.github-workflows"


def schema_errors(path: Path, schema: str = COMPOSE) -> str:
    """Returns what is wrong with a file; nothing if it is valid."""
    result = CliRunner().invoke(main, ["--builtin-schema", schema, str(path)])
    return "" if result.exit_code == 0 else result.output
