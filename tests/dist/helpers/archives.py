"""The archives of the seven wheels, and the first thing that each does."""

import os
import subprocess
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import uv
from packaging.metadata import Metadata

ROOT = Path(__file__).parents[3]
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}

# What each does first of all, with nothing else of Fray around.
SMOKE = {
    "fray-resources": """
        from fray_resources import ResourceConfig
        config = ResourceConfig.with_tpu("v5e-16", slices=2)
        assert ResourceConfig.from_dict(config.to_dict()) == config
        print(config.device.chips)
    """,
    "fray-core": """
        import fray, fray.cluster, fray.job, fray.queue, fray.types
        try:
            fray.create_context("threadpool")
        except fray.PluginNotFoundError as error:
            print(error)
    """,
    "fray-local": """
        from fray import create_context
        from fray.cluster import Entrypoint, JobRequest, create_cluster
        with create_context("threadpool?max_workers=2") as context:
            assert list(context.map(abs, [-1, -2])) == [1, 2]
        cluster = create_cluster("local?overcommit=true")
        job_id = cluster.launch(JobRequest("smoke", Entrypoint.from_callable(print, ["from a job"])))
        print(cluster.wait(job_id, timeout=60, raise_on_failure=True).status, *cluster.monitor(job_id))
    """,
    "fray-queue": """
        import tempfile
        from fray.queue import open_queue
        for url in ("memory:", f"file:{tempfile.mkdtemp()}"):
            queue = open_queue(url)
            queue.push({"a": 1})
            with queue.lease() as lease:
                print(url, lease.item)
            assert queue.size() == 0
    """,
    "fray-ray": """
        from fray.cluster import Entrypoint, JobRequest, RayCluster
        from fray_ray import RayContext
        print(RayContext.__name__, RayCluster.__name__)
    """,
    "fray-slurm": """
        from fray.cluster import Entrypoint, JobRequest, SlurmCluster
        request = JobRequest("smoke", Entrypoint.from_binary("true"))
        script = SlurmCluster(partition="gpu").batch_script(request)
        assert "#SBATCH --partition=gpu" in script
        print(script)
    """,
    "fray-iris": """
        from fray.cluster import Entrypoint, IrisCluster, JobRequest
        cluster = IrisCluster(controller="http://127.0.0.1:10000", user="ada")
        launch = cluster.launch_request(JobRequest("smoke", Entrypoint.from_binary("true")))
        assert launch.request["name"].startswith("/ada/smoke-")
        print(launch.request)
    """,
}


def uv_run(*command: str) -> str:
    """Run uv on what its cache has, or else with what it may download."""
    program = uv.find_uv_bin()
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for flags in (["--offline"], []):
        done = subprocess.run(
            [program, *flags, *command], env=environ, capture_output=True, text=True, check=False
        )
        if not done.returncode:
            return done.stdout
    raise AssertionError(f"uv {' '.join(command)}\n{done.stderr}")


@dataclass(frozen=True)
class Built:
    """The archives of one package, and what is in them."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path

    def names(self) -> set[str]:
        return names_in(self.wheel)

    def read(self, suffix: str) -> str:
        """Return the one file of the wheel's `dist-info` of that name."""
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(f".dist-info/{suffix}")]
            return archive.read(name).decode()

    def metadata(self) -> Metadata:
        return Metadata.from_email(self.read("METADATA"), validate=True)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def program_text(package: str) -> str:
    """Return the program that a package runs first of all."""
    return "\n".join(line.removeprefix(" " * 8) for line in SMOKE[package].splitlines())
