"""`fray doctor`: what is wrong with this installation, and what to do about it."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from fray._cli.output import print_table
from fray._cli.settings import CLUSTER_VARIABLE, SettingsError, settings
from fray._cli.shared import json_option, print_json
from fray._cli.values import DURATION
from fray._values.findings import Finding, Health

if TYPE_CHECKING:
    from fray._contracts.cluster import Cluster

_STYLES = {"ok": "green", "warning": "yellow", "error": "red"}
_FEW_FILES, _FEW_PROCESSES = 1024, 1024
_FIRST_DAY = 1_700_000_000  # of a clock that was set: November 2023


@click.command()
@click.option(
    "--cluster",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="Check only these, instead of all configured ones.",
)
@click.option(
    "--timeout", type=DURATION, default=10.0, show_default=True, metavar="TIME",
    help="Seconds that a cluster may take to answer.",
)  # fmt: skip
@json_option
def doctor(specs: tuple[str, ...], timeout: float, as_json: bool) -> int:
    """Check this installation: what is wrong, and what to do; the exit code is 1 if there is an error."""
    found = [("", finding) for finding in (*_versions(), *_plugins(), *_configuration(), *_machine())]
    for spec in specs or _configured():
        found += [(spec, finding) for finding in _cluster(spec, timeout)]
    errors = sum(finding.health is Health.ERROR for _, finding in found)
    if as_json:
        rows = [{"cluster": spec or None, **finding.to_dict()} for spec, finding in found]
        print_json({"healthy": not errors, "findings": rows})
    else:
        _print(found)
    return 1 if errors else 0


def _print(found: list[tuple[str, Finding]]) -> None:
    rows = [
        [str(finding.health), f"{spec}: {finding.check}" if spec else finding.check, finding.found]
        for spec, finding in found
    ]
    print_table(["", "check", "found"], rows, _STYLES, key=1)
    advised = [(spec, finding) for spec, finding in found if finding.advice]
    for spec, finding in advised:
        where = f"{spec}: {finding.check}" if spec else finding.check
        click.echo(f"\n{where}\n  {finding.advice}")
    if not advised:
        click.echo("\nnothing is wrong")


def _versions() -> Iterator[Finding]:
    from importlib.metadata import distributions

    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding(check="python", health=Health.OK, found=f"{python}, {sys.executable}")
    found: dict[str, str] = {}
    for distribution in distributions():
        name = str(distribution.metadata["Name"])
        if name.startswith("fray-"):
            found.setdefault(name, distribution.version)
    ours = {name: version for name, version in found.items() if name in _OURS}
    listed = ", ".join(f"{name} {version}" for name, version in sorted(ours.items()))
    agree = len(set(ours.values())) < 2
    yield Finding(
        check="versions",
        health=Health.OK if agree else Health.ERROR,
        found=listed,
        advice="" if agree else "the wheels of Fray go together: install the same version of each",
    )


_OURS = {
    "fray-resources", "fray-core", "fray-local", "fray-queue", "fray-ray", "fray-slurm", "fray-iris",
}  # fmt: skip


def _plugins() -> Iterator[Finding]:
    from fray._discovery.plugins import KINDS, find, plugins
    from fray._values.errors import PluginError

    count, without = 0, list[str]()
    for group in KINDS:
        for name in plugins(group):
            try:
                find(group, name).load()
                count += 1
            except PluginError as error:
                if isinstance(error.__cause__, ImportError) and "pip install" in str(error.__cause__):
                    without.append(name)
                    continue
                advice = "install what it needs, or uninstall its distribution"
                yield Finding(check="plugin", health=Health.ERROR, found=str(error), advice=advice)
    extras = f"; {', '.join(without)} would need an extra of its wheel" if without else ""
    yield Finding(check="plugins", health=Health.OK, found=f"{count} can be loaded{extras}")


def _configuration() -> Iterator[Finding]:
    from fray._cli.run import run
    from fray._cli.settings import run_defaults

    try:
        run_defaults(run)
        files = ", ".join(settings().files) or "no file"
    except SettingsError as error:
        yield Finding(
            check="configuration", health=Health.ERROR, found=error.message, advice="correct the file"
        )
    else:
        yield Finding(check="configuration", health=Health.OK, found=files)


def _machine() -> Iterator[Finding]:
    yield _clock()
    import resource

    limits = [
        ("open files", resource.RLIMIT_NOFILE, _FEW_FILES, "ulimit -n 65536"),
        ("processes", resource.RLIMIT_NPROC, _FEW_PROCESSES, "ulimit -u 65536"),
    ]
    for what, limit, least, command in limits:
        soft = resource.getrlimit(limit)[0]
        enough = soft == resource.RLIM_INFINITY or soft >= least
        yield Finding(
            check=what,
            health=Health.OK if enough else Health.WARNING,
            found="no limit" if soft == resource.RLIM_INFINITY else f"at most {soft}",
            advice="" if enough else f"many workers or jobs at a time need more: {command}",
        )
    import shutil
    from importlib.util import find_spec

    uv = shutil.which("uv") or ("the package" if find_spec("uv") else None)
    yield Finding(
        check="uv",
        health=Health.OK if uv else Health.WARNING,
        found=uv or "not on the PATH",
        advice="" if uv else "jobs with --pip, --extra, --group or --python need it: pip install uv",
    )


def _clock() -> Finding:
    now = time.time()
    if now < _FIRST_DAY:
        advice = "set it: ages of jobs, leases and certificates depend on it"
        return Finding(check="clock", health=Health.ERROR, found=time.ctime(now), advice=advice)
    return Finding(
        check="clock", health=Health.OK, found=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    )


def _configured() -> list[str]:
    """Return the clusters that are configured anywhere: the current one, and those with a name."""
    try:
        said = settings()
    except SettingsError:
        said = None
    current = os.environ.get(CLUSTER_VARIABLE) or (said and said.text("cluster")) or "local"
    named = [] if said is None else list(said.below("clusters"))
    return list(dict.fromkeys([current, *named]))


def _cluster(spec: str, timeout: float) -> list[Finding]:
    """Request the jobs of a cluster; give up when it does not answer in time."""

    def ask() -> list[Finding]:
        from fray._cli.shared import open_cluster

        cluster = open_cluster(spec)
        return [*_diagnosed(cluster), _reached(cluster)]

    try:
        found = _within(timeout, ask)
    except Exception as error:  # noqa: BLE001 - any error of a cluster is a finding
        text = getattr(error, "message", None) or str(error) or type(error).__name__
        advice = (
            f"see that it runs and that the spec {spec!r} is right; `fray plugins` lists what is installed"
        )
        return [Finding(check="reachable", health=Health.ERROR, found=str(text), advice=advice)]
    if found is None:
        advice = "see that it runs, and that this machine may reach it; --timeout waits longer"
        return [
            Finding(
                check="reachable", health=Health.ERROR, found=f"no answer within {timeout:g} s", advice=advice
            )
        ]
    return found


def _diagnosed(cluster: "Cluster") -> Iterable[Finding]:
    diagnose = getattr(cluster, "diagnose", None)
    return diagnose() if diagnose is not None else ()


def _reached(cluster: "Cluster") -> Finding:
    started = time.monotonic()
    count = len(cluster.list_jobs())
    passed = time.monotonic() - started
    return Finding(check="reachable", health=Health.OK, found=f"{count} jobs, listed in {passed:.2f} s")


def _within(seconds: float, ask: Callable[[], list[Finding]]) -> list[Finding] | None:
    """Return what a call returns, or None when it takes longer; it is left alone then."""
    answer: list[list[Finding]] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(ask())
        except BaseException as error:  # noqa: BLE001 - raised again below
            failure.append(error)

    thread = threading.Thread(target=run, name="fray-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    return answer[0] if answer else None
