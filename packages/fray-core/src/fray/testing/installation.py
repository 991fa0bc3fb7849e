"""What is installed, for tests that install a made-up plugin, or none."""

import pytest

from fray._discovery import current, plugins
from fray._discovery.plugins import Plugin, find, forget_plugins

__all__ = ["end_current", "find", "forget_plugins", "installed", "know_no_provider", "uninstall_all"]


def installed(group: str) -> dict[str, tuple[Plugin, ...]]:
    """Return what is installed of an entry-point group, by name; imports none of it."""
    return plugins.plugins(group)


def uninstall_all(patch: pytest.MonkeyPatch) -> None:
    """Have no plugin installed, until the patch is undone."""
    patch.setattr(plugins, "_found", {})


def know_no_provider(patch: pytest.MonkeyPatch) -> None:
    """Know of no distribution that would provide a missing name, until the patch is undone."""
    patch.setattr(plugins, "_PROVIDERS", {group: {} for group in plugins.KINDS})


def end_current() -> None:
    """Shut down the current contexts and clusters that nobody made explicitly, as the process's end does."""
    current.close_made()
