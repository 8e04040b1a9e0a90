"""Weights that become another type at load, since no product reads their own."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

_HALF = "f16"


class Conversions:
    """The tensors that became another type, by both types, and their sizes before and after."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], list[int]] = {}

    def add(self, type_name: str, before: int, elements: int) -> None:
        """Counts a tensor that became float16. before: bytes in the file"""
        self.add_repacked(type_name, _HALF, before, 2 * elements)

    def add_repacked(self, type_name: str, into: str, before: int, after: int) -> None:
        """Counts a tensor whose values are kept. before, after: bytes in the file and in memory"""
        size = self._sizes.setdefault((type_name, into), [0, 0])
        size[0] += before
        size[1] += after

    def tell(self, file: str) -> None:
        """Logs each type, since products read more bytes than the file has. file: the file, or the directory"""
        for (name, into), (before, after) in self._sizes.items():
            if into == _HALF:
                log.warning(
                    "tensors converted to float16",
                    extra={"file": file, "type": name, "mib_in_file": before >> 20, "mib_in_memory": after >> 20},
                )
            else:
                log.info(
                    "tensors repacked",
                    extra={
                        "file": file,
                        "type": name,
                        "into": into,
                        "mib_in_file": before >> 20,
                        "mib_in_memory": after >> 20,
                    },
                )
