"""`fray doctor` says what is wrong, and what to do."""

from pathlib import Path

import pytest
from command_line import answer, fray


def found(*argv: str, code: int = 0) -> dict[tuple[str | None, str], tuple[str, str, str]]:
    shown = answer("doctor", *argv, code=code)
    assert shown["healthy"] is (code == 0)
    return {
        (row["cluster"], row["check"]): (row["health"], row["found"], row["advice"])
        for row in shown["findings"]
    }


def test_nothing_is_wrong_on_a_good_machine(state_dir: Path) -> None:
    fray("run", "--", "true")
    rows = found()
    for check in ("state directory", "writing", "locks", "clock", "records", "reachable"):
        health = rows.get(("local", check), ("ok", "", ""))[0]
        assert health == "ok", check
    assert rows["local", "records"][1] == "1 jobs"
    assert rows[None, "versions"][0] == "ok"
    assert str(state_dir) in rows["local", "state directory"][1]
    assert list((state_dir / "jobs").glob(".doctor*")) == []


def test_a_state_directory_that_others_may_read_is_reported(state_dir: Path) -> None:
    fray("run", "--", "true")
    (state_dir / "jobs").chmod(0o755)
    health, text, advice = found()["local", "state directory"]
    assert health == "warning"
    assert "mode 755" in text
    assert f"chmod 700 {state_dir}" in advice


def test_a_damaged_record_is_named(state_dir: Path) -> None:
    job_id = fray("run", "--detach", "--", "true").stdout.strip()
    fray("wait", job_id)
    (state_dir / "jobs" / job_id / "status.json").write_text("{")
    health, text, advice = found()["local", "records"]
    assert (health, advice) == ("warning", "`fray rm ID` removes one")
    assert job_id in text


def test_a_state_directory_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAY_STATE_DIR", "/proc/nowhere")  # where root cannot write either
    rows = found(code=1)
    assert rows["local", "state directory"][0] == "error"
    assert "FRAY_STATE_DIR" in rows["local", "state directory"][2]


def test_every_configured_cluster_is_asked(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text(
        "[tool.fray]\ncluster = 'local?cpus=1'\n[tool.fray.clusters]\nlab = 'local?cpus=x'\nodd = 'nosuch'\n"
    )
    shown = answer("doctor", cwd=work, code=1)
    rows = {row["cluster"]: row for row in shown["findings"] if row["check"] == "reachable"}
    assert rows["local?cpus=1"]["health"] == "ok"
    assert "cpus" in rows["lab"]["found"]
    assert "Unknown cluster type 'nosuch'" in rows["odd"]["found"]


def test_files_that_are_wrong_are_reported_and_do_not_end_the_doctor(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text("[tool.fray]\nclutser = 'local'\n")
    done = fray("doctor", cwd=work, code=1)
    assert "unknown key 'clutser'" in done.stdout
    assert "correct the file" in done.stdout
