"""Whatever a command line of `fray queue` says: it is done, or refused without a traceback."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fray import SpecError
from fray.queue import open_queue
from fray.testing.command_line import main
from fray_queue import HttpQueueServer

DRAWN = settings(
    max_examples=200,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_ODD = [
    "",
    " ",
    "..",
    "../../x",
    "\N{PILE OF POO}",
    "a" * 4096,
    "9" * 5000,
    "%00",
    "-1",
    "1e999",
    "nan",
    "{0}",
    "?",
]
# What the system can hold as an argument: no NUL, no lone surrogates.
TEXT = st.sampled_from(_ODD) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
WORDS = TEXT | st.sampled_from(
    ["-n", "--json", "--create", "--dead", "--yes", "--token-file", "{}", "[1, 2]", "null"]
)
OPTIONS = st.sampled_from(
    ["", "?fsync=0", "?fsync=maybe", "?max_attempts=0", "?token=x", "?x=1", "?timeout=0"]
)


@pytest.fixture
def server() -> Iterator[HttpQueueServer]:
    with HttpQueueServer() as server:
        server.new_queue("tasks")
        yield server


def test_verbs_on_urls(server: HttpQueueServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "a" / "b" / "c"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    prefixes = st.sampled_from(
        ["", "file:", f"file:{here}/", "memory:", "memory://", f"{server.url}/", f"{server.url}/tasks"]
    )
    urls = st.builds("".join, st.tuples(prefixes, TEXT, OPTIONS))
    verbs = st.sampled_from(["list", "push", "pop", "stats", "dead", "requeue", "purge", "nonsense"])

    @DRAWN
    @given(verbs, urls, st.lists(WORDS, max_size=3))
    def attack(verb: str, url: str, words: list[str]) -> None:
        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["queue", verb, url, *words])
        assert code in (0, 1, 2, 130)
        assert bool(err.getvalue()) == (code != 0)
        assert "Traceback" not in err.getvalue()

    attack()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--host", "0.0.0.0"], "without a token"),
        (["--port", "99999"], "65535"),
        (["--queue", "a/b"], "'a/b' is not a name for a queue"),
        (["--queue", "a", "--max-attempts", "0"], "max_attempts"),
        (["--store", "/dev/null/x"], "Not a directory"),
        (["--certificate", "/dev/null", "/dev/null"], "SSL"),
    ],
)
def test_a_server_that_cannot_serve_says_why(
    arguments: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FRAY_QUEUE_TOKEN")
    assert main(["queue", "serve", *arguments]) in (1, 2)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:hunter2pw@h:1/0?queue=q&bad",
        "redis://u:hunter2pw@h:1/0?queue=q&queue=r",
        "redis://u:hunter2pw@h:1/0?queue=q&token=x",
        "redis://u:hunter2pw@h:port/zero?queue=q",
        "http://h:1/q?token=hunter2pw&bad",
        "http://u:hunter2pw@/q",
        "//u:hunter2pw@h/q?token=hunter2pw",
        "//u:so?hunter2pw@h/q",
        *(
            f"abfs://container/q?account_name=a&{option}=hunter2pw"
            for option in ("account_key", "sas_token", "connection_string", "client_secret", "credential")
        ),
        "s3://bucket/q?key=AKIA&secret=hunter2pw",
    ],
)
def test_no_secret_of_a_url_is_printed_whatever_else_is_wrong_with_it(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "stats", url]) in (1, 2)
    printed = capsys.readouterr()
    assert printed.err
    assert "hunter2pw" not in printed.err + printed.out


@pytest.mark.parametrize(
    "option",
    [*("token", "secret", "password"), *("account_key", "sas_token", "connection_string", "client_secret")],
)
def test_a_secret_of_an_object_store_is_taken_from_no_url(option: str) -> None:
    with pytest.raises(SpecError, match=f"pass '{option}' as a keyword or by the environment") as refusal:
        open_queue(f"abfs://container/q?account_name=a&{option}=hunter2pw")
    assert "hunter2pw" not in str(refusal.value)
