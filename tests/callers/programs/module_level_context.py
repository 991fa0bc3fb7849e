"""A module that makes a context when it is imported, whether or not its functions are ever called."""

from fray.job import create_job_ctx

CONTEXT = create_job_ctx("ray", num_cpus=1, max_retries=3)


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def double_on_the_cluster(number: int) -> int:
    """Do it where the context runs its tasks."""
    return CONTEXT.get(CONTEXT.run(double, number))
