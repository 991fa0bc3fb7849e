"""`fray --help` loads next to nothing: it must be there when the key is up."""

import pytest

from fray.testing.command_line import modules_of

HEAVY = {"rich", "cloudpickle", "psutil", "ray", "fsspec", "aiohttp", "asyncio", "fray.job"}


@pytest.mark.parametrize(
    "argv", [["--help"], ["run", "--help"], ["run", "--dry-run", "--json", "--", "true"]]
)
def test_a_command_line_loads_only_what_it_needs(argv: list[str]) -> None:
    loaded = modules_of(*argv)
    assert "fray" in loaded
    assert loaded & HEAVY == set()
