"""Cut the prompts in prompts.jsonl from held-out files: one per file, in a place where a programmer would go on."""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

from tokenizers import Tokenizer

from corpus import SEED, Document, documents

HERE = Path(__file__).parent
MIN_TOKENS, MAX_TOKENS = 64, 200
_HEADER = re.compile(r"^\s*(async def|def|class) .*:$")
_STATEMENT = re.compile(r"^\s+(return|if|for|while|with|elif|else|try|raise|self\.|[a-z_]+ = ).*[:)\w]$")


def cut(document: Document, vocabulary: Tokenizer, wanted: re.Pattern[str], chance: random.Random) -> str | None:
    """Some whole lines of `document`, MIN_TOKENS to MAX_TOKENS long, the last of which matches `wanted`; no newline
    at the end, because a newline and the next line's indentation are one token."""
    lines = document.text.split("\n")
    ends = [i for i, line in enumerate(lines) if i >= 6 and wanted.match(line)]
    chance.shuffle(ends)
    for end in ends[:8]:
        budget = chance.randint(MIN_TOKENS + 16, MAX_TOKENS)
        start = end
        while start > 0 and len(vocabulary.encode("\n".join(lines[start - 1 : end + 1])).ids) <= budget:
            start -= 1
        text = "\n".join(lines[start : end + 1]).lstrip("\n")
        if MIN_TOKENS <= len(vocabulary.encode(text).ids) <= MAX_TOKENS:
            return text
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=160)
    options = parser.parse_args()
    vocabulary = Tokenizer.from_file(str(HERE / "target" / "tokenizer.json"))
    chance = random.Random(SEED)
    held_out = [d for d in documents() if d.held_out]
    chance.shuffle(held_out)
    held_out.sort(key=lambda d: d.package != "stdlib")  # the standard library's files first, whatever the count
    rows: list[dict[str, str]] = []
    for document in held_out:
        pattern = (_HEADER, _STATEMENT)[len(rows) % 2]
        text = cut(document, vocabulary, pattern, chance)
        if text is not None and len(rows) < options.count:
            rows.append({"id": f"p{len(rows):03d}", "source": document.name, "text": text})
    (HERE / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} prompts from {len({row['source'].split(':')[0] for row in rows})} packages")


if __name__ == "__main__":
    main()
