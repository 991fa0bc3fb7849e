"""A pipeline over text on every context: the same rows come out, whatever runs the stages."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from text_pipeline import Store, expected_rows, run

from fray.job import JobContext

ROWS = 6_000


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """What each context has given."""
    return {}


@pytest.mark.parametrize("stored", ["objects", "files"])
def test_it_keeps_one_row_of_each(
    context: JobContext,
    stored: str,
    results: dict[str, dict[str, Any]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    store = Store(context, tmp_path if stored == "files" else None)
    result = run(store, ROWS, shards=4, chunk_rows=500)
    assert (result["rows"], result["kept"]) == (ROWS, expected_rows(ROWS))
    assert list(result["seconds"]) == ["map", "shuffle", "deduplicate"]
    results[request.node.callspec.id] = result
    assert len({result["checksum"] for result in results.values()}) == 1


@pytest.mark.parametrize("kind", ["threadpool", "process"])
def test_it_is_a_program(kind: str) -> None:
    program = Path(__file__).parent / "programs" / "text_pipeline.py"
    done = subprocess.run(
        [sys.executable, str(program), "--context", kind, "--rows", "2000", "--workers", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f'"rows": 2000, "kept": {expected_rows(2000)}' in done.stdout
    assert "fray.job.create_job_ctx is an older spelling of fray.create_context" in done.stderr
