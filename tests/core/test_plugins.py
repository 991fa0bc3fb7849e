"""Discovery: what is installed, what is missing, what is broken."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fray
from fray import PluginConflictError, PluginLoadError, PluginNotFoundError, create_cluster, create_context
from fray.testing.installation import installed, uninstall_all

if TYPE_CHECKING:
    from tests.core.conftest import Install
else:
    Install = object

MINE = """
class Mine:
    def __init__(self, size: int = 1) -> None:
        self.size = size
"""


def test_a_strangers_backend_is_found_by_its_entry_point(install: Install) -> None:
    install("fray-mine", {"fray.contexts": {"mine": "mine_backend:Mine"}}, mine_backend=MINE)
    context = create_context("mine?size=3")
    assert type(context).__name__ == "Mine"
    assert context.size == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("broken", ["Missing | None", "math.Missing", "int | 'text'"])
def test_an_annotation_that_cannot_be_evaluated_concerns_its_own_option_alone(
    install: Install, broken: str
) -> None:
    code = f"""
from __future__ import annotations
import math
class Mine:
    def __init__(self, size: int = 1, other: {broken} = None) -> None:
        self.size, self.other = size, other
"""
    install("fray-mine", {"fray.contexts": {"mine": "mine_backend:Mine"}}, mine_backend=code)
    context: Any = create_context("mine?size=3&other=text")
    assert (context.size, context.other) == (3, "text")


@pytest.mark.parametrize(
    ("create", "kind"), [(create_context, "context type"), (create_cluster, "cluster type")]
)
def test_an_unknown_name_answers_with_what_is_installed(install: Install, create: object, kind: str) -> None:
    group = "fray.contexts" if create is create_context else "fray.clusters"
    install("fray-mine", {group: {"mine": "mine_backend:Mine"}}, mine_backend=MINE)
    with pytest.raises(PluginNotFoundError) as caught:
        create("mime")  # type: ignore[operator]
    assert str(caught.value).startswith(f"Unknown {kind} 'mime'")
    assert "mine" in str(caught.value)
    assert "did you mean 'mine'?" in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_known_name_that_is_not_installed_says_which_wheel_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uninstall_all(monkeypatch)
    with pytest.raises(PluginNotFoundError, match="pip install fray-ray"):
        create_cluster("ray")
    with pytest.raises(PluginNotFoundError, match="pip install fray-local"):
        fray.get_job_context()


def test_a_broken_plugin_is_reported_with_its_cause_and_hides_no_other(install: Install) -> None:
    install(
        "fray-broken",
        {"fray.contexts": {"broken": "broken_backend:Broken", "gone": "whole_backend:Gone"}},
        broken_backend="import a_module_that_is_not_there",
    )
    install("fray-whole", {"fray.contexts": {"whole": "whole_backend:Mine"}}, whole_backend=MINE)
    with pytest.raises(PluginLoadError) as caught:
        create_context("broken")
    for fact in ("fray-broken", "broken_backend:Broken", "a_module_that_is_not_there"):
        assert fact in str(caught.value)
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(PluginLoadError, match="Gone"):
        create_context("gone")
    assert type(create_context("whole")).__name__ == "Mine"


def test_a_plugin_that_ends_the_program_when_it_is_imported_is_broken_as_well(install: Install) -> None:
    install(
        "fray-exit", {"fray.contexts": {"exit": "exit_backend:X"}}, exit_backend="raise SystemExit('no GPU')"
    )
    with pytest.raises(PluginLoadError, match="no GPU"):
        create_context("exit")


@pytest.mark.parametrize("damage", [b"[console_scripts]\nno equals sign\n", b"[x]\nname = \xff\xfe\n"])
def test_a_distribution_that_is_damaged_is_reported_and_hides_no_other(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes
) -> None:
    install("fray-mine", {"fray.contexts": {"mine": "mine_backend:Mine"}}, mine_backend=MINE)
    install("something-else", {})
    (tmp_path / "something_else-1.0.dist-info" / "entry_points.txt").write_bytes(damage)
    assert type(create_context("mine")).__name__ == "Mine"
    (record,) = caplog.records
    assert "'something-else'" in record.message
    assert str(tmp_path) in record.message


def test_two_claimants_of_one_name_are_both_named(install: Install) -> None:
    for owner in ("fray-one", "fray-two"):
        install(owner, {"fray.contexts": {"same": "one_backend:Mine"}}, one_backend=MINE)
    with pytest.raises(PluginConflictError, match=r"'fray-one' and 'fray-two'|'fray-two' and 'fray-one'"):
        create_context("same")


def test_listing_imports_nothing(install: Install, tmp_path: object) -> None:
    install("fray-loud", {"fray.contexts": {"loud": "loud_backend:X"}}, loud_backend="raise SystemError")
    assert installed("fray.contexts")["loud"][0].distribution == "fray-loud"


def test_the_doors_hand_on_names_of_installed_wheels(install: Install) -> None:
    import fray.job

    names = {"job.MineContext": "mine_backend:Mine", "MineThing": "mine_backend:Mine"}
    install("fray-mine", {"fray.names": names}, mine_backend=MINE)
    assert fray.job.MineContext is fray.MineThing


def test_a_name_whose_wheel_is_missing_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall_all(monkeypatch)
    with pytest.raises(ImportError, match=r"fray\.cluster\.RayCluster .*pip install fray-ray"):
        from fray.cluster import RayCluster  # noqa: F401
    with pytest.raises(ImportError, match="pip install fray-local"):
        from fray import LocalClusterContext  # noqa: F401


@pytest.mark.parametrize("door", ["fray", "fray.job", "fray.cluster", "fray.queue"])
def test_a_name_that_nobody_knows_is_an_attribute_error(door: str) -> None:
    module = __import__(door, fromlist=["x"])
    assert not hasattr(module, "NoSuchThing")
    assert not hasattr(module, "_private")
    assert set(module.__all__) <= set(dir(module))
    assert module.__all__ == sorted(module.__all__)
