"""Sphinx extension: Mermaid diagrams, drawn in the reader's browser by a script of the site.

``sphinxcontrib-mermaid`` loads an ES module, and browsers load no module for a page that was opened as a
file. The script used here is an ordinary one, so the built site works from a disk and without a network. The
npm package is fetched once into the models' cache, and its digest is checked.
"""

from __future__ import annotations

import os
import sys
import tarfile
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from sm.settings import Settings
from trireme_tools.cache import Cache
from trireme_tools.prepare.packages import Fetcher, PackageFile
from trireme_tools.progress import Progress

MERMAID = PackageFile(
    kind="npm",
    name="@mermaid-js/tiny",  # flowcharts, sequences and states; a quarter of the full package
    version="11.17.2",
    sha256="28302a2f6bd556bfd223acff76a1fd511bcc9e6f1cac1bad91b904469aeca102",
    size=683_022,
    licence="MIT",
)
SCRIPT = "mermaid.tiny.js"


class Diagram(nodes.General, nodes.Element):
    """A Mermaid diagram; its text is the attribute ``code``."""


class Mermaid(Directive):
    """The body of a ``mermaid`` fence."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [Diagram(code="\n".join(self.content))]


def visit_diagram(translator: Any, node: Diagram) -> None:
    translator.body.append(f'<pre class="mermaid">{escape(node["code"])}</pre>')
    raise nodes.SkipNode


def fetch_script(app: Sphinx) -> None:
    """Put Mermaid's script beside the built pages."""
    target = Path(app.outdir) / "_static" / SCRIPT
    if app.builder.format != "html" or target.exists():
        return
    cache, progress = Cache(Settings.read(os.environ).cache), Progress(sys.stderr)
    with cache.locked(progress.say):
        package = Fetcher(cache, progress, os.environ).fetch(MERMAID, "docs")
        with tarfile.open(package) as archive:
            script = archive.extractfile(f"package/dist/{SCRIPT}")
            assert script is not None
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(script.read())


def add_script(
    app: Sphinx, _page: str, _template: str, _context: dict[str, Any], tree: nodes.document | None
) -> None:
    """Load the script on the pages that have a diagram; it is 2.5 MB."""
    if tree is not None and next(tree.findall(Diagram), None) is not None:
        app.add_js_file(SCRIPT)
        app.add_js_file("diagrams.js")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(Diagram, html=(visit_diagram, None))
    app.add_directive("mermaid", Mermaid)
    app.connect("builder-inited", fetch_script)
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
