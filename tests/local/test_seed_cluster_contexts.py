"""`create_job` in the documents that this project grew from: the examples run as they are written.

Each is a script, run in a directory that has what the example names. The packages that they install
are empty wheels of the same name.
"""

from collections.abc import Callable
from pathlib import Path

RunScript = Callable[..., str]
MakeWheel = Callable[..., Path]


SEED_001 = """
    from fray import LocalClusterContext
    from fray.types import RuntimeEnv

    cluster = LocalClusterContext()

    def my_job(ctx):
        refs = [ctx.create_task(lambda x: x**2, i) for i in range(10)]
        results = ctx.get(refs)
        print(f"Results: {results}")

    job_id = cluster.create_job(
        my_job,
        RuntimeEnv(package_requirements=["numpy"])
    )

    # List all jobs
    jobs = cluster.list_jobs()
"""


def test_seed_001_runs_a_function_that_is_handed_the_context(
    run_script: RunScript, make_wheel: MakeWheel
) -> None:
    make_wheel("numpy", code="")
    look = """
        print([(job["id"] == job_id, job["status"]) for job in jobs])
        info = cluster.cluster.wait(job_id)
        print(info.status, info.error_message)
        print(*cluster.cluster.monitor(job_id, tail=1))
    """
    out = run_script(SEED_001, look).splitlines()
    assert out[0] in [f"[(True, '{status}')]" for status in ("PENDING", "RUNNING", "SUCCEEDED")]
    assert out[1:] == ["succeeded None", f"Results: {[x**2 for x in range(10)]}"]


SEED_003_COMMAND = """
    from fray import LocalClusterContext
    from fray.types import RuntimeEnv

    cluster = LocalClusterContext()

    cluster.create_job(
        entrypoint="python train.py --config config.yaml",
        env=RuntimeEnv(package_requirements=["torch", "jax"])
    )

    job_id = cluster.create_job(
        entrypoint="python experiments/train_llama.py --config configs/70b.yaml",
        env=RuntimeEnv(
            package_requirements=["torch", "transformers"],
            env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
        )
    )
"""


def test_seed_003_runs_shell_commands(run_script: RunScript, make_wheel: MakeWheel, tmp_path: Path) -> None:
    for package in ("torch", "jax", "transformers"):
        make_wheel(package, code="")
    (tmp_path / "work" / "experiments").mkdir()
    for name in ("train.py", "experiments/train_llama.py"):
        code = "import os, sys, torch; print(sys.argv, os.environ.get('CUDA_VISIBLE_DEVICES'))"
        (tmp_path / "work" / name).write_text(code)
    look = """
        for job in cluster.list_jobs():
            info = cluster.cluster.wait(job["id"])
            print(info.status, *cluster.cluster.monitor(job["id"], tail=1))
    """
    assert run_script(SEED_003_COMMAND, look).splitlines() == [
        "succeeded ['train.py', '--config', 'config.yaml'] None",
        "succeeded ['experiments/train_llama.py', '--config', 'configs/70b.yaml'] 0,1,2,3",
    ]


SEED_003_PATTERN = """
    # 1. Put code in script
    with open("my_job.py", "w") as f:
        f.write('''
    from fray import get_job_context

    ctx = get_job_context()
    ref = ctx.create_task(lambda: 42)
    print(ctx.get(ref))
    ''')

    # 2. Submit script
    cluster.create_job("python my_job.py", env)
"""


def test_seed_003_submits_a_script_that_uses_the_context(run_script: RunScript) -> None:
    given = """
        from fray import LocalClusterContext
        from fray.types import RuntimeEnv
        cluster, env = LocalClusterContext(), RuntimeEnv()
    """
    look = """
        (job,) = cluster.list_jobs()
        *said, answer = cluster.cluster.monitor(job["id"])
        assert all("the context of this job is 'process'" in line for line in said), said
        print(answer)
    """
    assert run_script(given, SEED_003_PATTERN, look) == "42\n"


SEED_003_TESTS = """
    import time

    def test_create_job_with_script(cluster):
        # Create a simple test script
        script_path = "./test_script.py"
        Path(script_path).write_text('''
    import sys
    print("Job executed successfully")
    sys.exit(0)
    ''')

        job_id = cluster.create_job(
            entrypoint=f"python {script_path}",
            env=RuntimeEnv()
        )

        # Wait for completion
        time.sleep(5)

        # Verify job completed
        jobs = cluster.list_jobs()
        job = next(j for j in jobs if j["id"] == job_id)
        assert "SUCCEEDED" in job["status"]

    def test_delete_job(cluster):
        # Submit long-running job
        script_path = "./long_job.py"
        Path(script_path).write_text('''
    import time
    time.sleep(100)
    ''')

        job_id = cluster.create_job(
            entrypoint=f"python {script_path}",
            env=RuntimeEnv()
        )

        time.sleep(2)  # Let it start

        # Delete should stop it
        cluster.delete_job(job_id)

        time.sleep(1)

        # Verify stopped
        jobs = cluster.list_jobs()
        job = next(j for j in jobs if j["id"] == job_id)
        assert "STOP" in job["status"]
"""


def test_seed_003_creates_and_deletes_jobs(run_script: RunScript) -> None:
    given = """
        import time
        from concurrent.futures import ThreadPoolExecutor
        from pathlib import Path
        from fray import LocalClusterContext
        from fray.types import RuntimeEnv
    """
    both = """
        cluster = LocalClusterContext()
        pause = time.sleep

        def sleep(seconds):
            # The five seconds are what one machine needs for a job: wait for its end.
            while seconds == 5 and not any("SUCCEEDED" in job["status"] for job in cluster.list_jobs()):
                pause(0.05)
            pause(0 if seconds == 5 else seconds)

        time.sleep = sleep
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda test: test(cluster), [test_create_job_with_script, test_delete_job]))
        print("both passed")
    """
    assert run_script(given, SEED_003_TESTS, both) == "both passed\n"
