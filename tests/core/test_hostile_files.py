"""Whatever stands in a file of a project or a user: it is read, or refused with one clear error."""

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fray.backend import fits, warn_of_another_python, workspace_files
from fray.testing.command_line import main

DRAWN = settings(
    max_examples=100 * int(os.environ.get("TORTURE", "1")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KEYS = st.sampled_from(
    [
        *(
            "cluster",
            "context",
            "clusters",
            "clusters.big",
            "fray",
            "x",
            '"\\u0000"',
            "a.b.c",
            "run",
            "run.cpu",
        ),
        *("run.ram", "run.env", "run.label", "run.replicas", "run.snapshot", "run.timeout", "run.gpu"),
    ]
)
SCALARS = st.sampled_from(
    [
        *('""', '"local"', '"2g"', '"\\u0000"', "1", "-1", "1e400", "nan", "true", "[]", "[1,[2]]", "{}"),
        *("{a=1}", "1979-05-27", "?", "9" * 5000, "[" * 3000, "{a = " * 3000),
    ]
)
LINES = st.lists(st.tuples(KEYS, SCALARS).map(" = ".join), max_size=4).map("\n".join)
BYTES = st.binary(max_size=30)
DEEP = b"a = " + b"[" * 3000


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("table", ["", "[tool.fray]\n"], ids=["user", "project"])
def test_settings_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    numbers = itertools.count()

    @DRAWN
    @example(DEEP)
    @given(LINES.map(str.encode) | BYTES)
    def read(data: bytes) -> None:
        folder = tmp_path / str(next(numbers))  # what a file says is read once
        file = folder / ("pyproject.toml" if table else "fray/config.toml")
        file.parent.mkdir(parents=True)
        file.write_bytes(table.encode() + b"# fray\n" + data)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
        assert main(["config", "show"]) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err

    read()


VERSIONS = st.lists(
    st.sampled_from(
        [">=", "==", "~=", "!=", "<", "===", ",", " ", "3", "3.11", ".*", "*", "²", "9" * 5000, "x"]
    ),
    max_size=6,
).map("".join)


@pytest.mark.usefixtures("no_collection")
@DRAWN
@example(b"project = 3")
@example(b"[project]\nrequires-python = 3")
@example(DEEP)
@given(
    VERSIONS.map(lambda text: f'[project]\nrequires-python = "{text}"'.encode())
    | LINES.map(str.encode)
    | BYTES
)
def test_projects_that_require_any_python(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "pyproject.toml"
    file.unlink(missing_ok=True)
    file.write_bytes(data)
    assert all("the project requires Python" in text for text in warn_of_another_python(tmp_path, "uv"))


@DRAWN
@example("==" + "9" * 5000)
@given(VERSIONS)
def test_versions_of_any_shape(required: str) -> None:
    assert fits("3.11.7", required) in (True, False)


RULES = st.lists(
    st.sampled_from(
        ["a", "b", "a.py", "*", "**", "?", "/", "!", "#", "[", "]", "\\", " ", "(", "+", "\x00", "\n"]
    ),
    max_size=12,
).map("".join)


@DRAWN
@given(RULES.map(str.encode) | BYTES, st.sampled_from([".gitignore", ".frayignore"]), st.booleans())
def test_ignore_rules_of_any_kind(tmp_path: Path, rules: bytes, name: str, below: bool) -> None:
    folder = tmp_path / "workspace"
    (folder / "a" / "b").mkdir(parents=True, exist_ok=True)
    files = {"a.py", "a/b/a.py", "a/b/b"}
    for file in files:
        (folder / file).touch()
    for other in folder.rglob(".*ignore"):
        other.unlink()
    (folder / "a" / name if below else folder / name).write_bytes(rules)
    assert {file for file in workspace_files(folder) if not file.endswith("ignore")} <= files
