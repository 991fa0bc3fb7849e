"""`fray --help` loads next to nothing: it must be there when the key is up."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "argv", [["--help"], ["run", "--help"], ["run", "--dry-run", "--json", "--", "true"]]
)
def test_a_command_line_loads_only_what_it_needs(argv: list[str]) -> None:
    code = (
        "import sys; from fray._cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'rich', 'cloudpickle', 'psutil', 'ray', 'fsspec', 'aiohttp', 'asyncio', 'fray_local'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout
