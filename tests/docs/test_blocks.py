"""Every Python block of the README and the docs runs, as one program per page, top to bottom.

A block that shows the code of another library is marked ```python not-run and is read by people only.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("packages/*/README.md"))]
FENCE = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(page.read_text()) if found == language]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(blocks(page, "python")))
    monkeypatch.setenv("FRAY_STATE_DIR", str(tmp_path / "state"))
    # A Ray that a page starts for itself would else write a token into the user's home.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")  # of a busy machine, where 30 are too few
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_of_a_page_escapes(page: Path) -> None:
    """A fence inside a list is found by a reader and not by the tests above."""
    opened = re.findall(r"^\s*```\s*(python.*)$", page.read_text(), re.MULTILINE)
    run, read = blocks(page, "python"), blocks(page, "python not-run")
    assert len(opened) == len(run) + len(read), opened
