"""Lack of memory, recognised in the errors of any library."""

import re

_WORDS = re.compile(r"out of memory|not enough memory|can(no|')t allocate memory|unable to allocate", re.IGNORECASE)


def lacks_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory did not suffice."""
    return isinstance(error, MemoryError) or _WORDS.search(str(error)) is not None
