"""The packages for a machine that has torch and transformers, but no network."""

import re

from scripts.service_wheels import wanted


def test_services_get_all_that_torch_and_transformers_do_not_bring() -> None:
    names = {re.split(r"[<>=!; ]", each)[0] for each in wanted()}
    assert {"grpcio", "protobuf", "pydantic", "structlog", "llguidance", "typer"} <= names
    assert not {"torch", "transformers", "numpy", "gguf"} & names
