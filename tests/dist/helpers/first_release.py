"""The wheels of 0.1.0, and what it wrote: what an upgrade starts from.

Its wheels are built from the history where a clone has it. A clone without history gets wheels of the same
names, needs, entry points and files, which are empty: enough to see what an upgrade puts in their place.
"""

import base64
import json
import subprocess
import tarfile
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
COMMIT = "a870fa6812cfd9f425ee82c85d4a9623b649d2ca"  # the last one of 0.1.0
RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("release_0_1_0.json").read_text(encoding="utf-8")
)
_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def sources(folder: Path) -> list[Path]:
    """Put the packages of 0.1.0 into a folder and return their paths; none where the history is not there."""
    command = ["git", "-C", str(ROOT), "archive", COMMIT, "packages"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return []
    if done.returncode:
        return []
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return sorted((folder / "packages").iterdir())


def stand_ins(folder: Path) -> list[Path]:
    """Write wheels with the metadata of 0.1.0 and empty files, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_stand_in(folder, name, about) for name, about in RECORDED["wheels"].items()]


def _stand_in(folder: Path, name: str, about: dict[str, Any]) -> Path:
    stem = f"{name.replace('-', '_')}-0.1.0"
    needs = "".join(f"Requires-Dist: {need}\n" for need in about["requires"])
    files = dict.fromkeys(about["files"], "") | {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.1.0\n{needs}",
        f"{stem}.dist-info/WHEEL": _WHEEL,
    }
    if about["entry_points"]:
        files[f"{stem}.dist-info/entry_points.txt"] = about["entry_points"]
    record = f"{stem}.dist-info/RECORD"
    files[record] = "".join(f"{path},,\n" for path in [*files, record])
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def write_stores(folder: Path) -> None:
    """Write what programs of 0.1.0 left: two finished jobs, a queue of files, the folder of a server."""
    for name, content in RECORDED["stores"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        data = base64.b64decode(content["base64"]) if "base64" in content else content["text"].encode()
        path.write_bytes(data)
        path.chmod(0o600)
