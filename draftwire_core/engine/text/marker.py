"""The texts of a chat template that look like a marker."""

from __future__ import annotations

import re

MARKER = re.compile(r"<[^<>]+>|<[^<>]{2,}|\[[A-Z_/]+\]")
"""A marker, or the start of one."""
