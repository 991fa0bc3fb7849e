"""One session per question. `python noxfile.py` asks them all and needs nothing but Python and pip.

python noxfile.py                 every check, as CI runs it
python noxfile.py -s census       the main example on real input
python noxfile.py -s local -- -k nest -x
python noxfile.py -l              what there is
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent
NOX_DIR = ROOT / ".nox"
WHEELS = NOX_DIR / "wheels"
REPORTS = NOX_DIR / "reports"
REQUIREMENTS = ["nox[uv]==2026.10.20", "uv==0.13.8"]
TOOLS = NOX_DIR / "-".join(["tools", *(requirement.partition("==")[2] for requirement in REQUIREMENTS)])
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir())
# What each wheel needs of the others; a session installs just these.
NEEDS = {
    "fray-resources": [],
    "fray-core": ["fray-resources"],
    "fray-local": ["fray-resources", "fray-core"],
    "fray-queue": ["fray-resources", "fray-core"],
    "fray-ray": ["fray-resources", "fray-core"],
    "fray-slurm": ["fray-resources", "fray-core"],
    "fray-iris": ["fray-resources", "fray-core"],
}


def bootstrap() -> None:
    """Run nox as a program: install it below .nox first, where no other environment sees it."""
    if not (TOOLS / "nox").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(TOOLS), *REQUIREMENTS], check=True)
    environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    environment["PYTHONPATH"] = str(TOOLS)
    environment["PATH"] = f"{TOOLS / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    if sys.argv[1:3] != ["-s", "matrix"]:  # which reads what the runs before it left
        for report in REPORTS.glob("*.xml"):
            report.unlink()
    nox = [sys.executable, "-m", "nox", "--noxfile", __file__, *sys.argv[1:]]
    code = subprocess.run(nox, env=environment, check=False, cwd=ROOT).returncode
    print_total()
    sys.exit(code)


def print_total() -> None:
    """Say again which tests failed, and add up what the test runners of all sessions reported."""
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for report in sorted(REPORTS.glob("*.xml")):
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            for count in counts:
                counts[count] += int(suite.get(count, 0))
            for case in suite.iter("testcase"):
                for failure in (*case.findall("failure"), *case.findall("error")):
                    print_failure(report.stem, case, failure)
    if counts["tests"]:
        failed = counts["failures"] + counts["errors"]
        passed = counts["tests"] - failed - counts["skipped"]
        print(f"total: {passed} passed, {failed} failed, {counts['skipped']} skipped", flush=True)


def print_failure(session: str, case: ElementTree.Element, failure: ElementTree.Element) -> None:
    """Print where a test failed and how its report ends: of a long log often only the end is kept."""
    print(f"{failure.tag}: {session}: {case.get('classname')}::{case.get('name')}")
    print((failure.text or failure.get("message", ""))[-2_000:], flush=True)


if __name__ == "__main__":
    bootstrap()

import nox  # noqa: E402

nox.options.default_venv_backend = "uv"
nox.options.stop_on_first_error = False
nox.options.sessions = [
    "lint",
    "types",
    *(name.removeprefix("fray-") for name in PACKAGES),
    "later-pythons",
    "dask",
    "ui",
    "workspace",
    "examples",
    "callers",
    "docs",
    "dist",
    "guard",
]

# Everything a package can do, where its tests use it.
EXTRAS = {"fray-core": "[otel,ui]", "fray-queue": "[gcs,s3,azure,server,redis,postgres]"}
QUEUE_TESTS = ("boto3", "moto[server]", "prometheus-client", "psutil")
TYPES_ALONE = ("selenium", "jax", "joblib")
RAY = "ray[default]==2.60.*"  # what the recipes in fray-ray were found out on
IRIS_NOTE = (
    "The column `iris` comes from a session with a local Iris of one process: "
    "`python noxfile.py -s iris -- --iris-source FOLDER`. Of the contract of contexts it ran the tests of "
    "actors; tasks run as on `process`."
)
ENGINE_NOTE = (
    "The column `memory-engine` is no backend to install: it is the smallest `EngineContext` of the tests, "
    "over an engine in memory ([adding a backend](adding-a-backend.md#an-engine))."
)
DASK = "distributed==2026.8.*"  # what examples/fray-dask was written for
PYRIGHT = (
    "basedpyright==1.40.2"  # pyright 1.1.414 with its own Node.js; pyright's wheel fetches one when it runs
)
# Programs that tests of queues start, and the Debian packages that they come in.
PROGRAMS = {
    "npm": "npm",
    "openssl": "openssl",
    "redis-server": "redis-server",
    "pg_ctlcluster": "postgresql",  # its other programs are not in the path
}
BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}
# A Slurm of three nodes on one machine: Debian's build of slurmd allows it.
SLURM_PROGRAMS = {
    "slurmctld": "slurm-wlm",
    "munged": "munge",
    "slurmdbd": "slurmdbd",  # this and the next for sacct
    "mariadbd": "mariadb-server",
}
# Programs that benchmarks measure against.
BENCH_PROGRAMS = {"beanstalkd": "beanstalkd", "redis-server": "redis-server", "pg_ctlcluster": "postgresql"}
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")


def group(name: str) -> list[str]:
    """Return the requirements of a dependency group of the workspace."""
    return nox.project.dependency_groups(PROJECT, name)


@cache
def wheel(package: str) -> str:
    """Build a package and return the path of its wheel."""
    return built_wheel(package, ROOT / "packages" / package)


def built_wheel(name: str, source: Path) -> str:
    """Build a distribution and return the path of its wheel."""
    folder = WHEELS / name
    for old in folder.glob("*.whl"):
        old.unlink()
    subprocess.run(["uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source)], check=True)
    (built,) = folder.glob("*.whl")
    return str(built)


def wheels(*packages: str) -> list[str]:
    """Return requirements for packages, with their extras, and for the wheels that they need."""
    wanted = dict.fromkeys(need for package in packages for need in [*NEEDS[package], package])
    pins = [RAY] if "fray-ray" in wanted else []
    return [*(f"{name}{EXTRAS.get(name, '')} @ file://{wheel(name)}" for name in wanted), *pins]


def run_tests(session: nox.Session, *paths: str, posargs: list[str] | None = None) -> None:
    """Run pytest on what is installed, never on the source tree, and keep its report for the total."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = f"--junitxml={REPORTS / session.name}.xml"
    # Compiled files are written, or every import in the tests would cost what no user pays.
    session.env.update({"PYTHONPATH": None, "PYTHONDONTWRITEBYTECODE": None})
    session.run("pytest", "-q", report, *paths, *(session.posargs if posargs is None else posargs))


def install_programs(session: nox.Session, programs: dict[str, str] | None = None) -> None:
    """Bring what a session starts and pip cannot: openssl and servers for the tests of queues."""
    packages = [package for program, package in (programs or PROGRAMS).items() if not shutil.which(program)]
    if not packages:
        return
    elevated = [] if os.getuid() == 0 else ["sudo"]
    session.run(*elevated, "apt-get", "update", "-qq", external=True)
    session.run(
        *elevated, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, external=True
    )


def install_where_it_can(session: nox.Session, programs: dict[str, str]) -> None:
    """Bring programs that are peers only: what cannot be had is not measured, and the page says so."""
    for program, package in programs.items():
        try:
            install_programs(session, {program: package})
        except nox.command.CommandFailed:
            session.warn(f"{package} cannot be installed: what needs {program} is not measured")


AZURITE = "azurite@3.37.0"  # the emulator of Azure's blob store, which npm alone brings


def install_for_queues(session: nox.Session) -> None:
    """Bring what the tests of queues start; Azurite where tests/queue/helpers/azurite.py looks for it."""
    install_programs(session)
    folder = NOX_DIR / "azurite"
    if not (folder / "node_modules" / ".bin" / "azurite-blob").exists():
        session.run(
            "npm", "install", "--silent", "--no-audit", "--prefix", str(folder), AZURITE, external=True
        )


def side_by_side(processes: int) -> tuple[str, ...]:
    """Return options of pytest by which modules run in several processes, each with servers of its own."""
    return ("-n", str(processes), "--dist", "loadfile")


SIDE_BY_SIDE = side_by_side(2)  # the machine's CPUs
MANY_SIDE_BY_SIDE = side_by_side(4)  # where tests wait half of the time: for leases, servers and processes
# What touches most of Ray in two minutes: its internals, call by call, and what jobs promise beyond the rest.
OLDEST_RAY = tuple(
    f"tests/ray/test_{name}.py" for name in ("ray_internals", "dashboard", "seeds", "cluster_ray")
)


def package_session(
    package: str,
    *,
    more: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    before: Callable[[nox.Session], None] | None = None,
) -> None:
    """Define the session of one package: its wheel and those that it needs, alone, and its tests."""
    name = package.removeprefix("fray-")

    def tests(session: nox.Session) -> None:
        if before:
            before(session)
        session.install(*wheels(package), *group("test"), *more)
        run_tests(session, f"tests/{name}", *options)

    tests.__doc__ = f"Prove that {package} works with nothing else installed."
    nox.session(tests, name=name)


package_session("fray-resources")
package_session("fray-core", options=SIDE_BY_SIDE)
# joblib, of which a test knows that it leaves processes behind.
package_session("fray-local", more=("joblib",), options=MANY_SIDE_BY_SIDE)
# No pip: jobs' environments are made with uv then, as on every cluster whose own was. `ray_oldest` has pip.
# Files in the order of their names: the last ones give the cluster TPU slices, which others do not expect.
package_session(
    "fray-ray",
    more=("uv", "jax"),  # jax: the wheel for CPUs
    options=(*SIDE_BY_SIDE, "--no-loadscope-reorder"),
    before=lambda session: install_programs(session, {"redis-server": "redis-server"}),
)
package_session("fray-queue", more=QUEUE_TESTS, options=MANY_SIDE_BY_SIDE, before=install_for_queues)


def interpreter(version: str) -> str | None:
    """Return the path of a Python of a version that runs; None where the machine has none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [
        shutil.which(f"python{version}"),
        *map(str, sorted(pyenv.glob(f"versions/{version}*/bin/python"))),
    ]
    for path in filter(None, found):
        command = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


LATER_PYTHONS = ("3.12", "3.13")
# What differs between versions of Python, in a minute: all of core, and how programs end and fork.
OF_EVERY_PYTHON = (
    "tests/core",
    "tests/local/test_program_end.py",
    "tests/local/test_forks.py",
    "tests/queue/test_program_end.py",
    "tests/queue/test_eager_tasks.py",
)


@nox.session(name="later-pythons", venv_backend="none")
def later_pythons(session: nox.Session) -> None:
    """Does what differs between versions of Python work on each later one that the machine has?"""
    found = {version: path for version in LATER_PYTHONS if (path := interpreter(version))}
    for version, path in found.items():
        server = f"fray-queue[server] @ file://{wheel('fray-queue')}"  # its tests need no other extra
        needs = [*wheels("fray-local"), server, *group("test")]
        run_tests_on(session, version, path, needs, {"every-python": OF_EVERY_PYTHON})
    for version in LATER_PYTHONS:
        session.warn(f"run on Python {version}" if version in found else not_found(version))


@nox.session(default=False, venv_backend="none")
@nox.parametrize("version", LATER_PYTHONS)
def pythons(session: nox.Session, version: str) -> None:
    """Do core, local and queue, all of them, work on a later Python, where the machine has one?"""
    path = interpreter(version)
    if path is None:
        session.warn(not_found(version))
        return
    install_for_queues(session)
    needs = [*wheels("fray-local", "fray-queue"), *group("test"), *QUEUE_TESTS, "joblib"]
    suites = {name: (f"tests/{name}",) for name in ("core", "local", "queue")}
    run_tests_on(session, version, path, needs, suites)


def not_found(version: str) -> str:
    """Report that nothing was run on a Python: the machine has none, and none is fetched."""
    return f"NOT RUN on Python {version}: neither the path nor pyenv has one"


def run_tests_on(
    session: nox.Session, version: str, path: str, needs: list[str], suites: dict[str, tuple[str, ...]]
) -> None:
    """Run tests on another Python, in an environment of its own, a report for each suite."""
    folder = NOX_DIR / f"python-{version}"
    python = str(folder / "bin" / "python")
    session.run("uv", "venv", "--quiet", "--clear", "--python", path, str(folder), external=True)
    session.run("uv", "pip", "install", "--quiet", "--python", python, *needs, external=True)
    session.env.update({"PYTHONPATH": None, "PYTHONDONTWRITEBYTECODE": None})
    session.env["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    REPORTS.mkdir(parents=True, exist_ok=True)
    for name, paths in suites.items():
        report = f"--junitxml={REPORTS / f'{name}-{version}'}.xml"
        command = [python, "-m", "pytest", "-q", report, *paths, *SIDE_BY_SIDE, *session.posargs]
        session.run(*command, external=True)


@nox.session
def ui(session: nox.Session) -> None:
    """Does the page show what is there, in a real browser, and refuse what no page of ours requests?"""
    install_programs(session, BROWSER)
    session.install(*wheels("fray-local", "fray-queue"), *group("test"), "selenium")
    run_tests(session, "tests/ui", *SIDE_BY_SIDE)


@nox.session
def slurm(session: nox.Session) -> None:
    """Do jobs run on a real Slurm, and Ray and the examples across its nodes?"""
    install_programs(session, SLURM_PROGRAMS)
    session.install(*wheels("fray-slurm", "fray-local", "fray-ray"), *group("test"), "uv")
    # Six processes, because tests wait for timers of Slurm. conftest.py has the order of their files.
    run_tests(session, "tests/slurm", *side_by_side(6), "--no-loadscope-reorder")


@nox.session
def iris(session: nox.Session) -> None:
    """Does fray-iris keep every promise on a real Iris: `-s iris -- --iris-source FOLDER`?

    FOLDER has Iris's lib/iris, lib/rigging and lib/finelog; `--iris REQUIREMENT` names a distribution
    instead. Where neither is given the tests that need no Iris run, and the session says what has not run:
    the builds of Iris that an index may have are older than its own controller accepts.
    """
    options = list(session.posargs)
    source, requirement = taken(options, "--iris-source"), taken(options, "--iris")
    session.install(*wheels("fray-iris", "fray-local"), *group("test"))
    if source is None and requirement is None:
        pure = sorted(str(path) for path in Path("tests/iris").glob("test_*.py"))
        run_tests(session, *pure, posargs=[*SIDE_BY_SIDE, *options])
        session.warn(
            "NOT RUN: the contract on a real Iris, because there is none: "
            "python noxfile.py -s iris -- --iris-source FOLDER"
        )
        return
    session.install(
        *(iris_source(Path(session.create_tmp()), Path(source)) if source else [str(requirement)])
    )
    run_tests(session, "tests/iris", posargs=options)


def taken(options: list[str], name: str) -> str | None:
    """Take an option and its value out of a session's arguments; None where it is not there."""
    if name not in options:
        return None
    at = options.index(name)
    _, value = options[at : at + 2]
    del options[at : at + 2]
    return value


def iris_source(folder: Path, source: Path) -> list[str]:
    """Return copies of Iris's folders, built today, as far as they know: Iris's own wheels have such a date.

    A controller refuses clients that were built too long ago.
    """
    copies = []
    for name in ("rigging", "finelog", "iris"):
        copy = folder / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source / "lib" / name, copy, ignore=shutil.ignore_patterns("node_modules", "tests"))
        copies.append(str(copy))
    stamp = f'BUILD_DATE = "{datetime.now(UTC).date().isoformat()}"\n'
    (folder / "iris" / "src" / "iris" / "_build_info.py").write_text(stamp)
    return copies


@nox.session(name="ray-oldest", default=False)
def ray_oldest(session: nox.Session) -> None:
    """Do tasks, jobs and what is not Ray's public API work on the oldest Ray that the wheel allows?"""
    needs = [need for need in wheels("fray-ray") if need != RAY]
    session.install(*needs, f"ray[default]=={oldest_ray()}", *group("test"), "pip", "uv")
    run_tests(session, *OLDEST_RAY)


def oldest_ray() -> str:
    """Return the lower bound of what fray-ray asks of Ray."""
    project = nox.project.load_toml(ROOT / "packages" / "fray-ray" / "pyproject.toml")["project"]
    (need,) = (each for each in project["dependencies"] if each.startswith("ray["))
    return str(need.partition(">=")[2].partition(",")[0])


@nox.session
def dask(session: nox.Session) -> None:
    """Does the backend in examples/fray-dask keep every promise, on a real Dask whose workers are killed?

    It is not one of our wheels, so its column is on a page of its own, .nox/dask.md, as that of any other
    author's backend is.
    """
    session.install(
        *wheels("fray-local"), built_wheel("fray-dask", ROOT / "examples" / "fray-dask"), DASK, *group("test")
    )
    run_tests(session, "tests/dask", *MANY_SIDE_BY_SIDE)
    page = ["--write", str(NOX_DIR / "dask.md"), str(REPORTS / "dask.xml")]
    session.run("python", "-m", "fray.testing.matrix", *page)


@nox.session
def lint(session: nox.Session) -> None:
    """Is the code formatted and free of known mistakes?"""
    session.install(*group("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Do the types hold, in packages, tests and examples, and do users get what they should?"""
    session.install(
        *wheels(*PACKAGES), *group("test"), *group("types"), *QUEUE_TESTS, "selenium", "jax", "joblib", DASK
    )
    session.run("mypy", *(f"packages/{name}/src" for name in PACKAGES), "tests", "examples")


@nox.session
def workspace(session: nox.Session) -> None:
    """Do imports point one way, and is the whole what its files say?"""
    session.install(*wheels(*PACKAGES), *group("test"))
    run_tests(session, "tests/workspace", *SIDE_BY_SIDE)


@nox.session
def callers(session: nox.Session) -> None:
    """Do programs run as they were written for the first generation, and do their types hold?"""
    session.install(*wheels(*PACKAGES), *group("test"), *group("types"), PYRIGHT)
    session.run("mypy", "tests/callers")
    python = str(Path(session.virtualenv.bin) / "python")
    session.run("basedpyright", "--pythonpath", python, "-p", "tests/callers/pyrightconfig.json")
    run_tests(session, "tests/callers")


@nox.session
def examples(session: nox.Session) -> None:
    """Do the programs in examples/ keep what their pages say, whatever is killed? And a tenth of the soak."""
    session.install(
        *wheels(*PACKAGES), *group("test"), "psutil", RAY.replace("default", "data,default,train")
    )
    run_tests(session, "tests/examples", "tests/soak")


@nox.session
def docs(session: nox.Session) -> None:
    """Do the docs make a site without a warning, in .nox/site, and does every Python block of them run?"""
    install_programs(session, {"tsp": "task-spooler"})  # runs the jobs of one story in the docs
    session.install(*wheels(*PACKAGES), *group("test"), *group("docs"))
    session.env["SITE"] = str(NOX_DIR / "site")  # where the tests build it
    run_tests(session, "tests/docs", *SIDE_BY_SIDE)


@nox.session
def dist(session: nox.Session) -> None:
    """Could the seven be published: built whole, described, and able to run in an empty environment?"""
    session.install(*group("test"), "uv")
    run_tests(session, "tests/dist")


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """Write docs/capabilities.md from the reports: `python noxfile.py -s local ray queue slurm matrix`.

    `-s matrix -- REPORT` reads those reports that are there already, and one more: of Iris, say, which
    `-s iris -- --iris-source FOLDER` leaves, and which is to be kept elsewhere meanwhile.
    """
    session.install(*wheels("fray-core"), *group("test"))
    reports = [str(REPORTS / f"{name}.xml") for name in ("local", "ray", "queue", "slurm")]
    page = ["--write", "docs/capabilities.md", "--note", ENGINE_NOTE]
    if any('value="iris"' in Path(report).read_text(encoding="utf-8") for report in session.posargs):
        page += ["--note", IRIS_NOTE]
    session.run("python", "-m", "fray.testing.matrix", *page, *session.posargs, *reports)


@nox.session(default=False)
def census(session: nox.Session) -> None:
    """Run the main example on real input, Python's own standard library, as a job of two replicas."""
    session.install(*wheels("fray-local"))
    parts = session.create_tmp()
    program = ["python", "examples/census.py", "--save", parts, *session.posargs]
    session.run("fray", "run", "--name", "census", "--replicas", "2", "--", *program)
    session.run("python", "examples/census.py", "--merge", parts)


@nox.session(default=False)
def torture(session: nox.Session) -> None:
    """Kill, stop and lie to queues and workers for longer than the suite does, and ask what it does not ask.

    TORTURE=10 is ten times as long. Properties are tried with other examples at each run.
    """
    session.install(*wheels("fray-queue", "fray-local"), *group("test"), *QUEUE_TESTS)
    session.env["TORTURE"] = os.environ.get("TORTURE", "10")
    paths = (
        "tests/queue/test_torture.py",
        "tests/queue/test_simulation.py",
        "tests/local/test_process_torture.py",
    )
    properties = (
        "tests/core/test_supervision.py",
        "tests/core/test_hostile_text.py",
        "tests/queue/test_hostile.py",
    )
    run_tests(session, "--timeout", "3600", "-s", *paths, *properties)


# Each parser and protocol, and where its questions are drawn.
PARSERS = {
    "specs, sizes, requests, command lines, TPU names": "tests/core/test_hostile_text.py",
    "JSON of ours": "tests/core/test_light_values.py",
    "spec strings": "tests/core/test_specs.py",
    "sizes": "tests/resources/test_sizes.py",
    "resources as JSON": "tests/resources/test_config.py",
    "supervision": "tests/core/test_supervision.py",
    "settings, projects, versions of Python, ignore rules": "tests/core/test_hostile_files.py",
    "records, logs, usage and endpoints of jobs": "tests/local/test_hostile_records.py",
    "messages between processes, by random programs": "tests/local/test_contexts.py",
    "messages to supervisors and to shared actors, records of these": "tests/local/test_hostile_messages.py",
    "requests to the page of jobs": "tests/ui/test_hostile_requests.py",
    "the queue server's requests and records": "tests/queue/test_hostile.py",
    "answers to its clients": "tests/queue/test_hostile_answers.py",
    "files of a FileQueue": "tests/queue/test_hostile_files.py",
    "command lines of queues": "tests/queue/test_hostile_command_lines.py",
    "errors and broken replies of Redis": "tests/queue/test_hostile_replies.py",
    "what stands in Ray's job table": "tests/ray/test_hostile_answers.py",
    "what Slurm's commands print": "tests/slurm/test_hostile_answers.py",
    "what Iris says of tasks": "tests/iris/test_hostile_answers.py",
}


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Give every parser and protocol new random input; TORTURE=10 is ten times as much.

    Hypothesis draws other examples at each run. The session ends with the number of examples by test.
    """
    install_programs(session)
    session.install(*wheels(*PACKAGES), *group("test"), *QUEUE_TESTS, "selenium")  # of the tests of the page
    session.env.update({"TORTURE": os.environ.get("TORTURE", "4"), "COUNT_EXAMPLES": "1"})
    run_tests(session, "--timeout", "3600", *PARSERS.values())


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Live long, and hold afterwards what was held before; SOAK=10 is ten times as long."""
    session.install(*wheels(*PACKAGES), *group("test"))
    session.env["SOAK"] = os.environ.get("SOAK", "1")
    run_tests(session, "--timeout", "3600", "-s", "tests/soak")


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure everything beside its peers, and write docs/performance.md.

    python noxfile.py -s bench                       all, half an hour; leave the machine alone
    python noxfile.py -s bench -- contexts queues    these; the page keeps the last results of the others
    python noxfile.py -s bench -- --quick            all in five minutes, small: whether they run
    """
    install_where_it_can(session, BENCH_PROGRAMS | SLURM_PROGRAMS)
    session.install(*wheels(*PACKAGES), "psutil")
    peers = group("bench")
    session.install(*peers, success_codes=range(256), silent=True)
    for peer in peers:  # those that are there already cost nothing; one that cannot be had stops no other
        session.install(peer, success_codes=range(256), silent=True)
    session.run("python", "benchmarks/suite.py", *session.posargs)


@nox.session
def guard(session: nox.Session) -> None:
    """Has something become half as fast? Ratios to peers, with bounds twice as wide as what was measured."""
    session.install(*wheels("fray-local", "fray-queue"), "psutil")
    session.run("python", "benchmarks/guard.py", *session.posargs)
