"""`fray --help` names `fray actors`, and imports nothing that only its commands need."""

from fray.testing.command_line import modules_of


def test_the_help_of_fray_imports_no_process_context() -> None:
    loaded = modules_of("--help")
    assert "fray_local" in loaded
    assert not loaded & {"fray.job", "fray.backend", "cloudpickle", "subprocess", "asyncio", "psutil"}
