"""How Sphinx makes a site of these pages: `python noxfile.py -s docs`; it lands in .nox/site."""

import enum
import logging
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parent

project = "Fray"
author = "the authors of Fray"
release = metadata.version("fray-core")

sys.path.insert(0, str(DOCS))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "_rooms"]
# Directives are fenced with colons, so that ``` in a page is a block of code, always.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# A name in a docstring that two classes have (`type`) leads to one of them.
suppress_warnings = ["ref.python"]

LINK = re.compile(r"\[([^]]+)\]\((\.\./[^)#\s]+)[^)]*\)")

html_theme = "furo"
html_title = f"Fray {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

# A name in single backticks is a link where the name is documented, and code where it is not.
default_role = "py:obj"
QUOTED = re.compile(r"`([^`]+)`")
NAME = re.compile(r"[A-Za-z_](\w|\.\w)*")
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
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


def unlink_pages_of_the_repository(_: Sphinx, page: str, source: list[str]) -> None:
    """Keep only the words of a link to a page or folder outside of docs/, which is not on the site."""

    def words(link: re.Match[str]) -> str:
        target = (DOCS / page).parent.joinpath(link[2]).resolve()
        outside = not target.is_relative_to(DOCS.resolve()) and (target.suffix == ".md" or target.is_dir())
        return link[1] if outside else link[0]

    source[0] = LINK.sub(words, source[0])


def read_as_markdown(_: Sphinx, what: str, *event: Any) -> None:
    """Docstrings indent code and quote it with single backticks; say so in reStructuredText."""
    *_, lines = event
    # An empty comment goes first where napoleon would take the "words" of "words: more words" for a type.
    shown = ["..", ""] if what in ("property", "attribute") else []
    before = " "  # the last line that was not empty
    for line in lines:
        if line.startswith("    ") and not shown[-1] and not before.startswith(" "):
            shown += ["::", ""]
        shown.append(QUOTED.sub(_code_unless_a_name, line))
        before = line or before
    lines[:] = shown


def _code_unless_a_name(quoted: re.Match[str]) -> str:
    return quoted[0] if NAME.fullmatch(quoted[1]) else f"``{quoted[1].strip()}``"


def drop_empty_signatures(_: Sphinx, what: str, __: str, thing: Any, *___: Any) -> tuple[str, None] | None:
    """A protocol cannot be called, and who needs a member of an enumeration names it."""
    made_by_nobody = isinstance(thing, enum.EnumMeta) or getattr(thing, "_is_protocol", False)
    return ("", None) if what == "class" and made_by_nobody else None


def setup(app: Sphinx) -> None:
    """Register what this site adds to Sphinx."""
    app.connect("build-finished", copy_llms_txt)
    app.connect("source-read", unlink_pages_of_the_repository)
    # Before napoleon, which comes at 500 and makes indented lines of its sections.
    app.connect("autodoc-process-docstring", read_as_markdown, priority=400)
    app.connect("autodoc-process-signature", drop_empty_signatures)
    # A pattern of the index may wait for its page; suppress_warnings cannot name this warning.
    logging.getLogger("sphinx.sphinx.directives.other").addFilter(
        lambda record: getattr(record, "subtype", None) != "empty_glob"
    )
