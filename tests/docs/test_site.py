"""The site of the docs: it builds without a warning, stands alone, and leaves nothing out."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

import fray.backend
import fray.cluster
import fray.events
import fray.job
import fray.queue
import fray_local
import fray_queue
import fray_ray

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
pytestmark = pytest.mark.timeout(600)
# Attributes that make a browser fetch something by itself; `a href` is followed by people.
FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("SITE") or tmp_path_factory.mktemp("site"))
    folder.mkdir(parents=True, exist_ok=True)
    sphinx = [sys.executable, "-m", "sphinx", "--fresh-env", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*sphinx, str(DOCS), str(folder)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    outside = {url for page in pages for url in fetched(page) if re.match(r"(\w+:)?//", url)}
    styles = [style.read_text() for style in site.rglob("*.css")]
    outside |= {
        url for style in styles for url in re.findall(r"(?:url\(|@import)\s*['\"]?(\w*:?//[^'\")]+)", style)
    }
    assert not outside


def test_docstrings_made_the_reference(site: Path) -> None:
    page = (site / "reference" / "fray-job.html").read_text()
    assert 'id="fray.job.JobContext.wait"' in page
    assert "num_returns" in page


def test_llms_txt_stands_at_the_root_and_leads_to_pages(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    assert re.match(r"# \S.*\n\n> \S", text)
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S", text, re.MULTILINE)
    assert len(links) == text.count("](")
    missing = [link for link in links if not (DOCS / link).is_file()]
    assert not missing
    assert all((site / link).with_suffix(".html").is_file() for link in links)


@pytest.mark.parametrize(
    ("door", "pages"),
    [
        (fray, ["fray.md", "errors.md"]),
        (fray.backend, ["fray-backend.md"]),
        (fray.cluster, ["fray-cluster.md"]),
        (fray.events, ["fray-events.md"]),
        (fray.job, ["fray-job.md"]),
        (fray.queue, ["fray-queue.md"]),
        (fray_local, ["fray_local.md"]),
        (fray_queue, ["fray_queue.md"]),
        (fray_ray, ["fray_ray.md"]),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_every_public_name_has_its_place_in_the_reference(door: ModuleType, pages: list[str]) -> None:
    text = "".join((REFERENCE / page).read_text() for page in pages)
    missing = [name for name in door.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing, f"reference/{pages[0]} does not say where these are described: {missing}"


def test_every_variable_of_fray_is_described() -> None:
    page = (REFERENCE / "environment-variables.md").read_text()
    sources = ROOT.glob("packages/*/src/**/*.py")
    used = {name for path in sources for name in re.findall(r"\bFRAY_[A-Z_]+\b", path.read_text())}
    missing = sorted(name for name in used if f"`{name}`" not in page)
    assert not missing, f"reference/environment-variables.md lacks {missing}"


def test_every_reason_that_a_command_of_on_exit_may_find_is_named() -> None:
    page = (REFERENCE / "environment-variables.md").read_text()
    row = re.search(r"^\| `FRAY_JOB_REASON` \|(.*)$", page, re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row[1]) == [reason.value for reason in fray.cluster.ExitReason]


class _Fetched(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.urls += [value for name, value in attrs if value and (tag, name) in FETCHED]


def fetched(page: Path) -> Iterator[str]:
    parser = _Fetched()
    parser.feed(page.read_text())
    yield from parser.urls
