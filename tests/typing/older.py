"""What users of older spellings get, as the type checkers see it; read by mypy and pyright, never run."""

from collections.abc import Iterator
from typing import assert_type

import fray
from fray import JobContext, JobInfo, JobStatus, ObjectRef, ObjectStream, ResourceConfig
from fray.cluster.base import JobId, JobRequest
from fray.cluster.device_flops import device_flops_for_jax_device
from fray.job import create_job_ctx, get_default_job_ctx
from fray.job.context import ActorOptions
from fray.queue.base import Queue


def double(number: int) -> int:
    return 2 * number


def count(to: int) -> Iterator[int]:
    yield from range(to)


def older_names(cluster: fray.Cluster, queue: Queue[str], job_id: JobId) -> None:
    assert_type(create_job_ctx("auto", num_cpus=1), JobContext)
    assert_type(create_job_ctx(context_type="sync"), JobContext)
    assert_type(get_default_job_ctx(), JobContext)
    assert_type(fray.fray_job_ctx(), JobContext)
    assert_type(ActorOptions(name="n"), fray.ActorOptions)
    assert_type(job_id.leaf, str)
    assert_type(queue.peek(), str | None)
    assert_type(device_flops_for_jax_device("TPU v4"), float | None)
    assert_type(cluster.launch(JobRequest(name="a", entrypoint="module")), fray.JobId)
    assert_type(cluster.wait(job_id), JobInfo)


def older_calls(context: JobContext, status: JobStatus) -> None:
    assert_type(context.run(double, 4, name="stage"), ObjectRef[int])
    assert_type(context.run(count, 4, name="stage"), ObjectStream[int])
    assert_type(context.create_task(double, args=(4,)), ObjectRef[int])
    assert_type(JobStatus.finished(status), bool)
    assert_type(status.finished, bool)
    assert_type(ResourceConfig.with_tpu(tpu_type="v4-8", slice_count=4), ResourceConfig)
    assert_type(ResourceConfig.with_gpu(gpu_type="H100"), ResourceConfig)
    context.run(double, "4")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
