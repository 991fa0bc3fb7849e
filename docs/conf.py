"""How Sphinx makes a site of these pages: `python noxfile.py -s docs`; it lands in .nox/site."""

import logging
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parent

project = "Fray"
author = "the authors of Fray"
release = metadata.version("fray-core")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Directives are fenced with colons, so that ``` in a page is a block of code, always.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# A name in a docstring that two classes have (`type`) leads to one of them.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"Fray {release}"
html_copy_source = False
html_show_copyright = False

# Single backticks in docstrings are names: a link where the name is documented, code where it is not.
default_role = "py:obj"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
# No page is fetched while building, so the names of other projects lead nowhere.
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r".*"),
    ("py:(class|exc)", r"(?!fray).*"),
    ("py:class", r"fray\w*\._.*|fray\.testing\..*"),  # type variables, and what is nobody's interface
]


def copy_llms_txt(app: Sphinx, error: Exception | None) -> None:
    """Put llms.txt where its convention expects it: at the root of the site."""
    if error is None:
        shutil.copy(DOCS / "llms.txt", app.outdir)


def show_indented_lines_as_code(*event: Any) -> None:
    """Docstrings indent what is code, as Markdown does; reStructuredText wants to be told with `::`."""
    *_, lines = event
    shown: list[str] = []
    before = " "  # the last line that was not empty
    for line in lines:
        if line.startswith("    ") and not shown[-1] and not before.startswith(" "):
            shown += ["::", ""]
        shown.append(line)
        before = line or before
    lines[:] = shown


def setup(app: Sphinx) -> None:
    """Register what this site adds to Sphinx."""
    app.connect("build-finished", copy_llms_txt)
    # Before napoleon, which comes at 500 and makes indented lines of its sections.
    app.connect("autodoc-process-docstring", show_indented_lines_as_code, priority=400)
    # A pattern of the index may wait for its page; suppress_warnings cannot name this warning.
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(
        lambda record: getattr(record, "subtype", None) != "empty_glob"
    )
