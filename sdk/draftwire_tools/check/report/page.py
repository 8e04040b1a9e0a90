"""The certificate as one HTML page, without external resources."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape

from draftwire_tools.check.output import Difference
from draftwire_tools.check.report.certificate import Certificate
from draftwire_tools.check.report.tables import Table, tables

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --soft: #f3f4f6; --line: #d5d9df;
  --good: #116329; --good-back: #dcf5e3; --bad: #9c1c1c; --bad-back: #fde3e3; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7eb; --back: #14171b; --soft: #1e2329; --line: #39414b;
  --good: #7ee2a0; --good-back: #12331f; --bad: #ff9d9d; --bad-back: #401a1a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 70rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .75rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { padding: .9rem 1.1rem; border-radius: .5rem; font-size: 1.15rem; font-weight: 600; }
.good { color: var(--good); background: var(--good-back); }
.bad { color: var(--bad); background: var(--bad-back); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; }
.right { text-align: right; white-space: nowrap; }
pre { margin: .4rem 0; padding: .6rem .8rem; background: var(--soft); border-radius: .4rem; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace; }
details { border-bottom: 1px solid var(--line); padding: .4rem 0; }
summary { cursor: pointer; }
"""


def page(certificate: Certificate) -> str:
    """Returns the page: the verdict first, then all that it rests on."""
    passed = "good" if certificate.passed else "bad"
    word = certificate.word.capitalize()
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>draftwire check: {escape(certificate.subject)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Does speculation change the output of {escape(certificate.subject)}?</h1>",
        f'<p class="verdict {passed}">{word}: {escape(certificate.verdict)}.</p>',
        *(f"<p>{escape(note)}</p>" for note in certificate.notes),
        *_differences(certificate.differences),
        *(_table(table) for table in tables(certificate)),
        "<h2>Conditions</h2>",
        _rows((name, value) for name, value in certificate.about.items()),
        "<h2>Repeat it</h2>",
        f"<pre>{escape(chr(10).join(certificate.commands))}</pre>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _differences(differences: list[Difference]) -> list[str]:
    if not differences:
        return []
    return ["<h2>Differences</h2>", *(_difference(each) for each in differences)]


def _difference(each: Difference) -> str:
    request = json.dumps(each.request, indent=2, ensure_ascii=False)
    seed = each.request["options"].get("seed")
    return (
        f"<details><summary>{escape(each.case)}: {escape(each.what)} at {each.position} "
        f"({escape(each.request['kind'])}, {escape(each.request['sampling'])}, seed {seed})</summary>"
        f"<p>Plain:</p><pre>{escape(each.plain)}</pre><p>Other:</p><pre>{escape(each.other)}</pre>"
        f"<p>Request:</p><pre>{escape(request)}</pre></details>"
    )


def _table(table: Table) -> str:
    right = [' class="right"' if each == ">" else "" for each in table.align]
    head = "".join(f"<th{how}>{escape(text)}</th>" for how, text in zip(right, table.headings, strict=True))
    body = "".join(
        f"<tr{' class=bad' if bad else ''}>"
        + "".join(f"<td{how}>{escape(cell)}</td>" for how, cell in zip(right, row, strict=True))
        + "</tr>"
        for row, bad in zip(table.rows, table.bad, strict=True)
    )
    return f'<h2>{escape(table.title)}</h2><div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _rows(pairs: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in pairs)
    return f'<div class="wide"><table>{body}</table></div>'
