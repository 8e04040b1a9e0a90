"""Weights that become float16 at load, since no product reads their type."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Conversions:
    """The tensors that became float16, by type, and their sizes before and after."""

    def __init__(self) -> None:
        self._sizes: dict[str, list[int]] = {}

    def add(self, type_name: str, before: int, elements: int) -> None:
        """Counts a tensor. before: bytes in the file"""
        size = self._sizes.setdefault(type_name, [0, 0])
        size[0] += before
        size[1] += 2 * elements

    def warn(self, file: str) -> None:
        """Logs each type, since products read more bytes than the file has. file: the file, or the directory"""
        for name, (before, after) in self._sizes.items():
            log.warning(
                "tensors converted to float16",
                extra={"file": file, "type": name, "mib_in_file": before >> 20, "mib_in_memory": after >> 20},
            )
