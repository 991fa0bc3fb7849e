"""`fray --help` names `fray queue`, and imports nothing that only its commands need."""

from fray.testing.command_line import modules_of


def test_the_help_of_fray_imports_no_command_of_queues() -> None:
    loaded = modules_of("--help")
    assert "fray_queue" in loaded
    assert not loaded & {"fray.queue", "fray.backend", "subprocess", "asyncio", "aiohttp"}
