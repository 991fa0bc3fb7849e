"""Whatever a user, a variable or a command line says: it is taken, or refused with one clear error."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fray
from fray.backend import Spec
from fray.cluster import (
    Entrypoint,
    EnvironmentConfig,
    GpuConfig,
    JobRequest,
    ResourceConfig,
    TpuConfig,
    create_cluster,
    current_cluster,
)
from fray.queue import open_queue
from fray.testing.command_line import main
from fray_resources import parse_size, tpu_types

if TYPE_CHECKING:
    from tests.core.conftest import Install
else:
    Install = object

DRAWN = settings(
    max_examples=300,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_PLAIN = ["../", "..", "%00", "%", "__class__", "{0}", "%s", "-1", "1e999", "nan", "inf", "0x10"]
_ODD = [
    "",
    " ",
    "\x00",
    "\N{PILE OF POO}",
    "a" * 4096,
    "\ud800",
    "9" * 5000,
    "\N{ARABIC-INDIC DIGIT THREE}",
    "\u00b2",
]
STRANGE = st.sampled_from([*_PLAIN, *_ODD])
TEXT = (
    st.text(max_size=30)
    | STRANGE
    | st.builds(lambda *parts: "".join(parts), STRANGE, st.text(max_size=5), STRANGE)
)
PIECES = st.lists(
    st.sampled_from(["made", "?", "&", "=", "%", ":", "/", "n", "1", "x", "size", "\x00", ","]), max_size=12
)
SPECS = TEXT | PIECES.map("".join) | st.builds(lambda tail: f"made?{tail}", TEXT)
VALUES = (
    TEXT
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.lists(TEXT, max_size=2)
    | st.just(10**400)
)
MADE = """
started = []
class Made:
    def __init__(self, *, n: int = 1, size: float | None = None, flag: bool = False):
        started.append((n, size, flag))
    @classmethod
    def from_url(cls, url, *, n: int = 1):
        return cls(n=n)
"""


@pytest.fixture
def started(install: Install) -> Iterator[list[Any]]:
    """What the one installed backend was started with: values of its types, or nothing."""
    install(
        "fray-made",
        {f"fray.{kind}": {"made": "made_backend:Made"} for kind in ("contexts", "clusters", "queues")},
        made_backend=MADE,
    )
    from importlib import import_module

    started: list[Any] = import_module("made_backend").started
    yield started
    for n, size, flag in started:
        assert type(n) is int
        assert size is None or type(size) is float
        assert type(flag) is bool


def taken_or_refused(call: Callable[..., Any], *args: Any) -> bool:
    """Tell whether a call was taken; an error has to be a documented one, in one clear message."""
    try:
        call(*args)
    except ValueError as error:
        refusal = error
    else:
        return True
    assert str(refusal)
    assert "Traceback" not in str(refusal)
    assert not isinstance(refusal, UnicodeError), refusal
    return False


def test_specs_and_urls(started: list[Any]) -> None:
    @DRAWN
    @given(SPECS)
    def attack(text: str) -> None:
        for make in (fray.create_context, create_cluster, open_queue):
            before = len(started)
            assert taken_or_refused(make, text) == (len(started) > before)
        if taken_or_refused(Spec.parse, text):
            assert Spec.parse(str(Spec.parse(text))) == Spec.parse(text)

    attack()


@pytest.mark.parametrize("variable", ["FRAY_CONTEXT_SPEC", "FRAY_CLUSTER_SPEC"])
def test_specs_in_the_environment(started: list[Any], monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    current = {"FRAY_CONTEXT_SPEC": fray.get_job_context, "FRAY_CLUSTER_SPEC": current_cluster}[variable]

    @DRAWN
    @given(SPECS.filter(in_environment).filter(bool))
    def attack(text: str) -> None:
        monkeypatch.setenv(variable, text)
        before = len(started)
        if not taken_or_refused(current):
            assert len(started) == before

    attack()


def in_environment(text: str) -> bool:
    """Whether the system can hold a text as a variable's value or as an argument."""
    return "\x00" not in text and not any(0xD800 <= ord(character) < 0xDC80 for character in text)


@DRAWN
@given(VALUES)
def test_sizes_types_and_numbers(value: Any) -> None:
    for field in ("cpu", "ram", "disk", "replicas", "preemptible", "regions", "device"):
        taken_or_refused(lambda field=field: ResourceConfig(**{field: value}))
    for make in (parse_size, GpuConfig, TpuConfig, ResourceConfig.from_dict, tpu_types):
        taken_or_refused(make, value)
    taken_or_refused(lambda: GpuConfig("H100", value))
    taken_or_refused(lambda: TpuConfig("v4-8", topology=value))


@DRAWN
@given(
    st.from_regex(
        r"(v[0-9]{1,2}|v5litepod|v6e|tpu|V5P)[-x ]?[0-9]{0,12}([x-][0-9]{0,3}){0,2}", fullmatch=True
    )
)
def test_names_that_look_like_a_tpu(name: str) -> None:
    if taken_or_refused(TpuConfig, name):
        assert TpuConfig(name).hosts >= 1


@DRAWN
@given(VALUES, VALUES)
def test_requests(first: Any, second: Any) -> None:
    taken_or_refused(Entrypoint.from_binary, first, [second])
    taken_or_refused(Entrypoint.from_binary, "true", second)
    entrypoint, resources = Entrypoint.from_binary("true"), ResourceConfig()
    fields = {"name": "x", "entrypoint": entrypoint, "resources": resources}
    for field in (
        "name",
        "timeout",
        "max_retries_failure",
        "max_retries_preemption",
        "environment",
        "resources",
    ):
        taken_or_refused(lambda field=field: JobRequest(**(fields | {field: first})))
    for field in ("workspace", "pip_packages", "extras", "env_vars"):
        taken_or_refused(lambda field=field: EnvironmentConfig(**{field: first}))
    taken_or_refused(lambda: EnvironmentConfig(env_vars={first: second} if isinstance(first, str) else first))


_VERBS = ["run", "list", "status", "logs", "wait", "stop", "retry", "restart", "rm", "config", "show", "--"]
_VERBS += ["plugins", "queue"]
_OPTIONS = (
    *(
        "cluster",
        "json",
        "help",
        "name",
        "replicas",
        "cpu",
        "ram",
        "disk",
        "gpu",
        "tpu",
        "timeout",
        "retries",
    ),
    *("env-file", "workdir", "package", "extra", "tail", "replica", "grace", "status"),
    *("sweep", "zip", "max-parallel", "arg", "on-exit", "port", "label", "log-limit", "backend", "since"),
    *("region", "topology", "context", "python", "sort", "parent", "limit", "older-than"),
)
_WORDS = [
    "H100:8",
    "v4-8",
    "a=1..3",
    "a={a}",
    "{a}",
    "a=[",
    "2h",
    "train.py",
    "json",
    "no.such:function",
    "json:dumps",
]
WORDS = st.sampled_from([*_VERBS, *(f"--{option}" for option in _OPTIONS), "-e", "-m", "made", *_WORDS])


def test_command_lines(
    started: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "nowhere")

    @DRAWN
    @given(st.lists(WORDS | TEXT.filter(in_environment), max_size=6), st.booleans())
    def attack(words: list[str], dry: bool) -> None:
        line = ["run", "--dry-run", *words] if dry else [word for word in words if word != "made"]
        code = main(line)
        shown = capsys.readouterr()
        assert code in (0, 1, 2), line
        assert "Traceback" not in shown.err
        assert code == 0 or shown.err, line
        assert not started, "a dry run, or one without a cluster, starts nothing"

    attack()
