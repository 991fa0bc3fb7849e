"""Which files of a workspace Iris takes along."""

import os
import random
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fake_controller import FakeController

from fray import create_cluster
from fray.cluster import Entrypoint, JobRequest, create_environment


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def repository(folder: Path, *names: str) -> Path:
    folder.mkdir()
    git(folder, "init", "-q")
    for name in names:
        (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def bundled(workspace: Path) -> list[str]:
    cluster: Any = create_cluster("iris", controller="http://127.0.0.1:1", user="ada")
    request = JobRequest("job", Entrypoint.from_binary("true"), environment=create_environment(workspace))
    return sorted(zipfile.ZipFile(BytesIO(cluster.launch_request(request).bundle)).namelist())


def test_submodules_and_repositories_inside_are_taken_along(tmp_path: Path) -> None:
    library = repository(tmp_path / "library", "module.py")
    workspace = repository(tmp_path / "workspace", "train.py")
    git(workspace, "submodule", "add", "-q", os.fspath(library), "libs/core")
    git(workspace, "commit", "-qam", "second")
    nested = repository(workspace / "nested", "inner.py", ".gitignore")
    (nested / ".gitignore").write_text("secret.txt")
    (nested / "secret.txt").touch()
    assert bundled(workspace) == [
        ".gitmodules", "libs/core/module.py", "nested/.gitignore", "nested/inner.py", "train.py",
    ]  # fmt: skip


def test_a_link_to_a_folder_of_the_workspace_leads_to_its_files(tmp_path: Path) -> None:
    for name in ("src/package/a.py", "src/b.py", "data/large.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "package").symlink_to("src/package")
    (tmp_path / "weights").symlink_to("data")  # what is ignored does not come along by another name
    (tmp_path / "src" / "around").symlink_to("..")
    (tmp_path / "gone").symlink_to("nowhere")
    found = bundled(tmp_path)
    assert [name for name in found if "around" not in name] == [
        ".gitignore", "package/a.py", "src/b.py", "src/package/a.py",
    ]  # fmt: skip


def test_a_file_that_is_older_than_archives_is_taken_along(tmp_path: Path) -> None:
    (tmp_path / "old.py").touch()
    os.utime(tmp_path / "old.py", (0, 0))
    assert bundled(tmp_path) == ["old.py"]


def test_more_than_iris_takes_is_refused_before_all_is_read(
    tmp_path: Path, controller: FakeController
) -> None:
    noise = random.Random(1).randbytes(1 << 20)  # which cannot be compressed
    with (tmp_path / "checkpoint.bin").open("wb") as file:
        file.writelines(noise for _ in range(26))
        file.truncate(50 << 30)  # without a place on the disk; minutes to read
    (tmp_path / "small.py").write_text("x = 1")
    cluster: Any = create_cluster("iris", controller="http://nowhere", user="ada")
    request = JobRequest("job", Entrypoint.from_binary("true"), environment=create_environment(tmp_path))
    with pytest.raises(ValueError, match=r"25 MB.* checkpoint\.bin \(51200\.0 MB\), small\.py.*gitignore"):
        cluster.launch(request)
    assert "launch_job" not in controller.asked


def test_many_files_that_are_too_large_together_are_refused(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"part-{number}.bin").write_bytes(random.Random(number).randbytes(3 << 20))
    with pytest.raises(ValueError, match=r"the largest are part-8\.bin \(3\.0 MB\), part-7"):
        bundled(tmp_path)


def test_a_file_that_vanishes_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept.py").touch()
    (tmp_path / "vanishes.lock").touch()
    is_file = Path.is_file

    def vanishes(path: Path) -> bool:
        found = is_file(path)
        if path.name == "vanishes.lock":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", vanishes)
    assert bundled(tmp_path) == ["kept.py"]
