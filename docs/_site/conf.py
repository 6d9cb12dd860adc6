"""Sphinx's configuration. ``make docs`` builds ``build/docs``; every warning is an error.

The source folder is the root of the repository, so that pages link to each other, to the examples and to the
reports in ``bench/`` by the same relative paths on GitHub and here.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "extensions"), str(ROOT / "tools"), str(Path(__file__).parent)]

from sm import __version__  # noqa: E402

project = "Trireme"
author = "The Trireme authors"
project_copyright = "The Trireme authors, Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_external_toc",
    "diagrams",
    "http_api",
]

# Which pages there are, and in which of the five parts, says the table of contents; pages on GitHub stay free
# of it.
external_toc_path = str(Path(__file__).parent / "contents.yml")
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bench/README.md",
    "bench/reports/*.md",
    "bench/results/*.md",
    "model/README.md",
    "model/*/README.md",
    "examples/*/README.md",
    "examples/*/hub/README.md",
    "examples/*/repository/code/*/sample/README.md",
    "tests/*/README.md",
    "tests/*/*/README.md",
]
# The folders are not searched: they hold packages, weights or thousands of files.
exclude_patterns = [
    ".*",
    "build",
    "sm",
    "clients",
    "gateway",
    "model/*/recipe",
    "examples/*/repository/[!c]*",
]

# GitHub's anchors for headings down to the fourth level, and its fences for Mermaid.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    # What the router calls on a client or a payload, and pydantic's own members.
    "exclude-members": "__new__, __init__, model_config, model_fields, attach_request, "
    "may_have_caused, parameter_names, names_of, field_of, model_post_init, batches, readiness",
}
nitpicky = True
# Types of the standard library and of other projects: their own pages describe them.
nitpick_ignore_regex = [(r"py:.*", r"(?!sm\.).*"), (r"py:data", r"sm\.client\.decode_budget\.DECODED")]

# Tables that the benchmark writes have no heading; the table of contents names them.
suppress_warnings = ["toc.no_title"]

html_theme = "furo"
html_title = f"Trireme {version}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_extra_path = ["root"]
html_copy_source = False
