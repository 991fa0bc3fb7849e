"""Wheels that a test has installed for a job."""

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str) -> Path:
    """Make a wheel with one module, which needs nothing to be installed."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": f"NAME = {name!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in [*files.items(), (f"{about}/RECORD", record)]:
            archive.writestr(file, text)
    return path
