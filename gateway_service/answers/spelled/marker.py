"""The texts that look like a marker, in the pieces that calls are spelled in."""

from __future__ import annotations

import re

MARKER = re.compile(r"<[^<>]+>|<[^<>]{2,}$|\[[A-Z_/]+\]")
"""A marker; at the end of a piece also the start of one."""
