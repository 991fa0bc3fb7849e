"""The examples on clusters in the documents that this project grew from run as they are written.

Each is a script, run in a directory that has what the example names. The packages that they install
are empty wheels of the same name.
"""

from collections.abc import Callable
from pathlib import Path

RunScript = Callable[..., str]
MakeWheel = Callable[..., Path]


SEED_000 = """
    from fray.cluster import (
        LocalCluster,
        JobRequest,
        ResourceConfig,
        TpuConfig,
        create_environment,
    )

    # Launch a job on LocalCluster
    cluster = LocalCluster()
    request = JobRequest(
        name="my-job",
        entrypoint="my_module.main",
        entrypoint_args=["--config", "path/to/config.yaml"],
        environment=create_environment(),
    )
    job_id = cluster.launch(request)

    # Monitor job logs
    for line in cluster.monitor(job_id):
        print(line)

    # Check job status
    info = cluster.poll(job_id)
    print(f"Status: {info.status}")
"""

SEED_000_TPU = """
    tpu_request = JobRequest(
        name="tpu-training",
        entrypoint="train",
        resources=ResourceConfig(
            cpu=96,
            ram="512g",
            device=TpuConfig(type="v5e-16", count=8),
        ),
        environment=create_environment(
            extra_dependency_groups=["tpu"],
            env_vars={"WANDB_API_KEY": "your-key"},
        ),
    )
"""


def test_seed_000_launches_a_module_and_follows_it(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "work" / "my_module").mkdir()
    (tmp_path / "work" / "my_module" / "main.py").write_text("import sys; print('main', sys.argv[1:])")
    out = run_script(SEED_000)
    assert out.splitlines() == ["main ['--config', 'path/to/config.yaml']", "Status: succeeded"]


SEED_004 = """
    from fray import JobRequest

    # foo just uses packages as needed
    def foo():
        import package_x
        import package_y

    def foo_caller():
        request = JobRequest(
            name="foo",
            entrypoint=Entrypoint(callable=foo),
            resources=ResourceConfig(replicas=1),
            environment=create_environment(pip_packages=["package_x", "package_y"]),
        )
        ctx = current_cluster()
        job_id = ctx.launch(request)
        ctx.wait(job_id)
"""

SEED_004_TPU = """
    resource_config = ResourceConfig(
        cpu=1,
        ram="16",
        disk="10g",
        device=TpuConfig(type="v5litepod-4"),
        replicas=1,
        regions=["eu-west4"],
    )

    job_request = JobRequest(
        name="vllm-inference-pool",
        entrypoint=Entrypoint(
            callable=vllm_server_worker,
            function_args={
                "model": self.config.model_config,
                "request_queue": self.request_queue,
                "response_queue": self.response_queue,
            },
        ),
        resources=resource_config,
        environment=create_environment(),
    )
"""


def test_seed_004_installs_what_a_function_needs(run_script: RunScript, make_wheel: MakeWheel) -> None:
    for package in ("package_x", "package_y"):
        make_wheel(package, code="")
    given = "from fray import Entrypoint, ResourceConfig, create_environment, current_cluster"
    look = """
        foo_caller()
        print(*(info.status for info in current_cluster().list_jobs()))
    """
    assert run_script(given, SEED_004, look) == "succeeded\n"


def test_the_tpu_requests_of_000_and_004_are_refused_here_with_a_way_out(run_script: RunScript) -> None:
    given = """
        from types import SimpleNamespace
        from fray import Entrypoint, JobRequest, ResourceConfig, TpuConfig, UnsupportedError
        from fray import create_environment, current_cluster
        config = SimpleNamespace(model_config={})
        self = SimpleNamespace(config=config, request_queue="in", response_queue="out")
        def vllm_server_worker(model, request_queue, response_queue): ...
    """
    look = """
        for request in (tpu_request, job_request):
            try:
                current_cluster().launch(request)
            except UnsupportedError as error:
                print(error)
    """
    out = run_script(given, SEED_000_TPU, SEED_004_TPU, look).splitlines()
    assert len(out) == 2
    assert all("simulate=tpu" in line for line in out)
