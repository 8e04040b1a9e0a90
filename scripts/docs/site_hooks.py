"""Hooks of MkDocs (mkdocs.yml) that turn documents written for a checkout into a site.

Some files outside docs/, such as the README, are pages of the site, and links lead to them. Links to source files lead
into the repository if REPOSITORY_URL is set; otherwise the link is replaced by the file's path.
A link whose text is a page's file gets the page's title. Pages with diagrams get mermaid, which comes with the site
(third_party/mermaid). The catalogue of modules is generated when the site is built.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docs.module_catalogue import catalogue

ROOT = Path(__file__).resolve().parents[2]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "models/README.md": "bundled-models.md",
}
"""Pages from outside docs/: their paths in the repository and in the site."""
MODULES = "modules.md"
"""The page of the catalogue of modules."""
DIRECTORIES = {"models": "bundled-models.md", "docs": "index.md"}
"""Directories that have a page."""

MERMAID = "assets/mermaid.tiny.js"
BRANCH = "main"

_FENCED = re.compile(r"^```.*?^```[ ]*$", re.DOTALL | re.MULTILINE)
_LINK_OR_CODE = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)|`[^`\n]+`")
_NAMED_BY_FILE = re.compile(r"\[(?:docs/)?([\w-]+\.md)\](?=\()")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, MODULES, content=catalogue()))
    files.append(File.generated(config, MERMAID, abs_src_path=str(ROOT / "third_party/mermaid/mermaid.tiny.js")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links so that they lead to the same targets as in a checkout."""
    if page.file.src_uri == MODULES:
        return markdown
    source = Path(str(page.file.abs_src_path)).relative_to(ROOT).parent.as_posix()

    def mended(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or re.match(r"[a-z]+:|#", target):
            return found[0]
        return link(found["text"], target, source, config.extra["repository"])

    def titled(found: re.Match[str]) -> str:
        file = files.get_file_from_path(found[1])
        return f"[{file.page.title}]" if file and file.page and file.page.title else found[0]

    parts, end = [], 0
    for fenced in _FENCED.finditer(markdown):
        parts += [_LINK_OR_CODE.sub(mended, markdown[end : fenced.start()]), fenced[0]]
        end = fenced.end()
    return _NAMED_BY_FILE.sub(titled, "".join([*parts, _LINK_OR_CODE.sub(mended, markdown[end:])]))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Adds mermaid to pages with diagrams, so that the theme does not load it from elsewhere."""
    if 'class="mermaid"' not in output:
        return output
    head, body, rest = output.partition("</head>")
    return f'{head}<script src="{posixpath.relpath(MERMAID, posixpath.dirname(page.url) or ".")}"></script>{body}{rest}'


def link(text: str, target: str, source: str, repository: str) -> str:
    """Returns the site's Markdown for a link.

    Args:
        text: its text.
        target: its target, relative to `source`.
        source: directory of the page that contains it, relative to the repository's root.
        repository: URL of the repository; may be empty.
    """
    path, _, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(source, path))
    anchor = f"#{anchor}" if anchor else ""
    if page := PAGES.get(path) or DIRECTORIES.get(path):
        return f"[{text}]({page}{anchor})"
    if path.startswith("docs/"):
        return f"[{text}]({path.removeprefix('docs/')}{anchor})"
    if repository:
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"[{text}]({repository.rstrip('/')}/{kind}/{BRANCH}/{path}{anchor})"
    return f"`{path}`" if text.strip("`") in (path, posixpath.basename(path)) else f"{text} (`{path}`)"
