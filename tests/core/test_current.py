"""Which context and which cluster are the current ones."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import fray
from fray import create_context, get_job_context, use_context
from fray.testing.installation import end_current, know_no_provider

if TYPE_CHECKING:
    from tests.core.conftest import Install
else:
    Install = object

MINE = """
class Mine:
    made = []
    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.ended = False
        Mine.made.append(self)
    def shutdown(self) -> None:
        self.ended = True
        if self.size == 666:
            raise OSError("the disk is full")
"""


@pytest.fixture(autouse=True)
def backends(install: Install, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    groups = {
        "fray.contexts": dict.fromkeys(("mine", "threadpool", "ray"), "mine_backend:Mine"),
        "fray.clusters": dict.fromkeys(("mine", "local", "ray"), "mine_backend:Mine"),
    }
    # The real ones, where they are installed, would claim the same names.
    know_no_provider(monkeypatch)
    monkeypatch.setattr("importlib.metadata.distributions", _only_here)
    install("fray-mine", groups, mine_backend=MINE)
    yield
    end_current()


def _only_here() -> Iterator[Any]:
    import sys
    from importlib.metadata import MetadataPathFinder

    return iter(MetadataPathFinder.find_distributions(_context(sys.path[:1])))


def _context(path: list[str]) -> Any:
    from importlib.metadata import DistributionFinder

    return DistributionFinder.Context(path=path)


@pytest.mark.parametrize(
    ("current", "variable", "use"),
    [
        (fray.get_job_context, "FRAY_CONTEXT_SPEC", fray.use_context),
        (fray.current_cluster, "FRAY_CLUSTER_SPEC", fray.use_cluster),
    ],
    ids=["context", "cluster"],
)
class TestOrder:
    def test_what_is_set_wins_over_the_environment(
        self, current: Any, variable: str, use: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "mine?size=5")
        mine = object()
        with use(mine) as used:
            assert used is mine
            assert current() is mine
        assert current().size == 5

    def test_the_environment_wins_over_the_default_and_is_made_once(
        self, current: Any, variable: str, use: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        default = current()
        monkeypatch.setenv(variable, "mine?size=7")
        assert current().size == 7
        assert current() is current()
        monkeypatch.delenv(variable)
        assert current() is default

    def test_inside_ray_it_is_ray(
        self, current: Any, variable: str, use: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import sys
        from types import SimpleNamespace

        default = current()
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
        assert current() is not default
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
        assert current() is default

    def test_blocks_nest_and_do_not_reach_other_threads(self, current: Any, variable: str, use: Any) -> None:
        outer, inner, seen = object(), object(), []
        with use(outer):
            with use(inner):
                assert current() is inner
            assert current() is outer
            thread = threading.Thread(target=lambda: seen.append(current()))
            thread.start()
            thread.join()
        assert seen[0] is current()
        assert seen[0] is not outer

    def test_a_spec_where_an_object_belongs_is_refused(self, current: Any, variable: str, use: Any) -> None:
        with pytest.raises(ValueError, match="'mine'"), use("mine"):
            pass

    def test_a_bad_spec_in_the_environment_is_reported(
        self, current: Any, variable: str, use: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "mine?size=big")
        with pytest.raises(ValueError, match=r"'size'.*'big'"):
            current()


def test_what_was_made_for_the_process_is_shut_down_with_it() -> None:
    made = get_job_context()
    end_current()
    assert made.ended is True  # type: ignore[attr-defined]


def test_one_that_cannot_be_shut_down_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    for size in (1, 666, 2):
        monkeypatch.setenv("FRAY_CONTEXT_SPEC", f"mine?size={size}")
        made.append(get_job_context())
    made.append(fray.current_cluster())
    with pytest.raises(OSError, match="the disk is full"):
        end_current()
    assert [each.ended for each in made] == [True] * 4


def test_auto_is_the_current_one(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("fray-sized", {"fray.contexts": {"sized": "sized_backend:Sized"}}, sized_backend=SIZED)
    monkeypatch.setenv("FRAY_CONTEXT_SPEC", "sized?size=3")
    assert create_context("auto") is create_context() is get_job_context()
    made: Any = create_context("auto", colour="red", missing=None)
    assert made is not get_job_context()
    assert (made.size, made.colour) == (3, "red")
    with use_context(made):
        assert create_context("auto", size=5) is made
    monkeypatch.setenv("FRAY_CONTEXT_SPEC", "auto")
    assert create_context("auto") is not made


SIZED = """
class Sized:
    def __init__(self, size: int = 1, colour: str | None = "blue") -> None:
        self.size, self.colour = size, colour
"""


def test_the_type_of_a_context_has_other_names_and_none_is_not_said(install: Install) -> None:
    install("fray-sized", {"fray.contexts": {"sized": "sized_backend:Sized"}}, sized_backend=SIZED)
    for made in (
        create_context(context_type="sized", size=2, colour=None),
        create_context(type="sized", size=2),
        create_context("sized", type="sized", size=2, memory=None),
    ):
        sized: Any = made
        assert (sized.size, sized.colour) == (2, "blue")
    with pytest.raises(ValueError, match="by several names: spec='sized', type='other'"):
        create_context("sized", type="other")
