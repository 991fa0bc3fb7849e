"""Requests, entry points, environments and states: checked when they are made, the same after any journey."""

import copy
import dataclasses
import enum
import functools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import fray
import fray.cluster
from fray.backend import defer_tasks
from fray.cluster import (
    Entrypoint,
    EnvironmentConfig,
    ExitReason,
    JobId,
    JobInfo,
    JobRequest,
    JobStatus,
    LastSeen,
    ResourceConfig,
    TaskStatus,
    create_environment,
)


def test_the_door_has_what_it_says() -> None:
    assert fray.cluster.__all__ == sorted(fray.cluster.__all__)
    assert [name for name in fray.cluster.__all__ if not hasattr(fray.cluster, name)] == []
    assert fray.JobRequest is JobRequest


def train(steps: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "a\nb"}, "name must be printable text of 1 to 200 characters, got 'a"),
        ({"name": ""}, "name must be"),
        ({"name": " "}, "name must be"),
        ({"name": "x" * 201}, "name must be"),
        ({"name": 3}, "name must be .* got 3"),
        ({"entrypoint": "python train.py"}, r"'python train.py' is not a module.*from_binary"),
        ({"entrypoint": ""}, "is not a module"),
        ({"entrypoint": None}, "entrypoint must be .* got None"),
        ({"entrypoint_args": "--lr"}, "args must be a list of arguments, got '--lr'"),
        ({"entrypoint_args": [1]}, "each word of a command must be text without NUL .*, got 1"),
        ({"entrypoint": Entrypoint.from_binary("ls"), "entrypoint_args": ["-l"]}, r"got \('-l',\)"),
        ({"resources": {"cpu": 1}}, "resources must be a ResourceConfig"),
        ({"environment": {"A": "1"}}, "environment must be"),
        ({"max_retries_failure": -1}, "max_retries_failure must be .* got -1"),
        ({"max_retries_preemption": True}, "max_retries_preemption must be .* got True"),
        ({"timeout": 0}, "timeout must be .* got 0"),
        ({"timeout": float("nan")}, "timeout must be .* got nan"),
        ({"timeout": "5"}, "timeout must be .* got '5'"),
        ({"gang": 1}, "gang must be True, False or None, got 1"),
        ({"after": "job-1"}, "after must be a list of job ids, got 'job-1'"),
        ({"after": [None]}, "each of after must be .* got None"),
        ({"labels": ["team"]}, "labels must be a mapping"),
        ({"labels": {"team": 3}}, "each key and value of labels must be .* got 3"),
        ({"ports": "http"}, "ports must be a list of names, got 'http'"),
        ({"ports": ["80"]}, "each of ports must be .* got '80'"),
        ({"ports": ["a-b", "a_b"]}, "ports must be names of which no two"),
        ({"snapshot": "yes"}, "snapshot must be True or False, got 'yes'"),
        ({"log_limit": 100}, "log_limit must be a size of 64 KiB or more, got 100"),
        ({"log_limit": "much"}, "log_limit must be a size"),
        ({"backend": {"slurm": "--qos=x"}}, "backend must be options by the name of a cluster"),
    ],
)
def test_a_wrong_field_of_a_request_is_named_with_its_value(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        JobRequest(**{"name": "job", "entrypoint": "train"} | fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "none of them"),
        ({"binary": "ls", "module": "x"}, "got binary and module"),
        ({"callable": 3}, "callable must be"),
        ({"binary": ""}, "binary must be"),
        ({"binary": "a\0b"}, "without NUL"),
        ({"binary": "echo", "args": ["\ud800"]}, r"half of a character, got '\\ud800'"),
        ({"binary": "ls", "function_args": {"a": 1}}, r"function_args go with callable=, got \['a'\]"),
    ],
)
def test_a_wrong_entry_point_is_explained(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Entrypoint(**fields)


def test_a_coroutine_function_is_refused() -> None:
    async def later() -> None: ...

    with pytest.raises(ValueError, match="later is a coroutine function"):
        Entrypoint.from_callable(later)


@pytest.mark.parametrize(
    ("given", "args", "expected"),
    [
        ("pkg.train", ["--lr", "1"], Entrypoint(module="pkg.train", args=("--lr", "1"))),
        (train, [5], Entrypoint(callable=train, args=(5,))),
        (
            Entrypoint(callable=train, function_args={"steps": 2}),
            [],
            Entrypoint.from_callable(train, kwargs={"steps": 2}),
        ),
    ],
)
def test_whatever_was_given_a_request_has_an_entry_point_and_survives_replace(
    given: Any, args: list[Any], expected: Entrypoint
) -> None:
    request = JobRequest("job", given, args)
    assert request.entrypoint == expected
    assert request.entrypoint_args == ()
    assert dataclasses.replace(request, name="other").entrypoint == expected
    assert pickle.loads(pickle.dumps(request)) == request
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.name = "x"  # type: ignore[misc]


def test_an_entry_point_reads_as_what_it_runs() -> None:
    assert (
        str(Entrypoint.from_binary("python", ["train.py", "--name", "a b"])) == "python train.py --name 'a b'"
    )
    assert str(Entrypoint(module="pkg.train")) == "python -m pkg.train"
    assert str(Entrypoint.from_callable(train, ["secret"])) == "train()"
    assert str(Entrypoint.from_callable(functools.partial(train, 3))) == "train()"


class _Mode(enum.StrEnum):
    FAST = "fast"


def test_members_of_an_enum_are_plain_text() -> None:
    """A cluster that reads the request cannot import the enum's class."""
    environment = create_environment(env_vars={_Mode.FAST: _Mode.FAST})
    binary = Entrypoint.from_binary(_Mode.FAST, [_Mode.FAST])
    texts = [*environment.env_vars, *environment.env_vars.values(), binary.binary, *binary.args]
    texts.append(Entrypoint.from_module(_Mode.FAST).module)
    assert [(type(text), text) for text in texts] == [(str, "fast")] * 5


def test_an_environment_shows_the_names_of_its_variables_only(tmp_path: Path) -> None:
    environment = create_environment(
        workspace=tmp_path / "x" / "..", pip_packages=["a"], env_vars={"TOKEN": "s3cret"}, extras=["one"],
        extra_dependency_groups=["tpu", "one"],
    )  # fmt: skip
    assert environment.extras == ("one", "tpu")
    assert EnvironmentConfig.create(extras=["a"]) == create_environment(extra_dependency_groups=["a"])
    shown = JobRequest("job", "train", environment=environment).to_dict()
    assert shown["environment"]["env_vars"] == ["TOKEN"]
    for text in (repr(environment), str(shown), repr(JobRequest("job", "train", environment=environment))):
        assert "s3cret" not in text
    assert pickle.loads(pickle.dumps(environment)).env_vars == {"TOKEN": "s3cret"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pip_packages": "numpy"}, "pip_packages must be a list of names, got 'numpy'"),
        ({"extras": [""]}, "each of extras must be a name, got ''"),
        ({"extra_dependency_groups": "tpu"}, "extra_dependency_groups must be"),
        ({"env_vars": {"A": 5}}, r"env_vars\['A'\] must be text"),
        ({"env_vars": {"A=B": "x"}}, "'A=B' cannot be the name"),
        ({"workspace": 3}, "workspace must be a path, got 3"),
        ({"docker_image": ""}, "docker_image must be"),
        ({"dependency_groups": "dev"}, "dependency_groups must be a list of names, got 'dev'"),
        ({"python": "3"}, "python must be a version such as .* got '3'"),
        ({"python": 3.12}, "python must be a version such as .* got 3.12"),
    ],
)
def test_a_wrong_field_of_an_environment_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        create_environment(**fields)


def test_ids_read_well_and_know_their_parents() -> None:
    job_id = JobId.new("train-lm")
    child = JobId.new("rollout", job_id)
    assert job_id.startswith("train-lm-")
    assert len(job_id) == len("train-lm-3f9a2c")
    assert child.startswith(f"{job_id}/rollout-")
    assert (child.parent, job_id.parent) == (job_id, None)
    assert child.leaf == child.removeprefix(f"{job_id}/")
    assert len({JobId.new("x") for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("executor:tokenized/fineweb", "executor-tokenized-fineweb"),
        ("../../etc", "etc"),
        (".hidden", "hidden"),
        ("日本語", "job"),
        ("a b", "a-b"),
        ("x" * 200, "x" * 80),
    ],
)
def test_a_name_is_any_printable_text_and_the_id_has_its_slug(name: str, slug: str) -> None:
    assert JobRequest(name, "train").name == name
    assert JobId.new(name).startswith(f"{slug}-")
    assert "/" not in JobId.new(name)


def job(*tasks: TaskStatus, status: JobStatus = JobStatus.FAILED) -> JobInfo:
    return JobInfo(job_id=JobId("job-1"), name="job", status=status, tasks=tasks, submitted_at=1.5)


def failed(replica: int, reason: ExitReason, code: int | None) -> TaskStatus:
    return TaskStatus(replica=replica, status=JobStatus.FAILED, attempt=1, reason=reason, exit_code=code)


@pytest.mark.parametrize(
    ("info", "code"),
    [
        (job(TaskStatus(replica=0), status=JobStatus.PENDING), None),
        (job(TaskStatus(replica=0), status=JobStatus.RUNNING), None),
        (job(TaskStatus(replica=0), status=JobStatus.SUCCEEDED), 0),
        (job(TaskStatus(replica=0), status=JobStatus.STOPPED), 143),
        (job(TaskStatus(replica=0, status=JobStatus.SUCCEEDED), failed(1, ExitReason.EXITED, 3)), 3),
        (job(failed(0, ExitReason.SIGNALLED, -9)), 137),
        (job(failed(0, ExitReason.TIMED_OUT, -15)), 124),
        (job(failed(0, ExitReason.COULD_NOT_START, None)), 127),
        (job(failed(0, ExitReason.LOST, None)), 1),
        (job(), 1),
    ],
)
def test_the_exit_code_of_a_job_is_what_a_shell_would_say(info: JobInfo, code: int | None) -> None:
    assert info.exit_code == code


def test_a_state_survives_json_and_pickle_and_keys_of_later_versions() -> None:
    earlier = failed(0, ExitReason.OUT_OF_MEMORY, -9)
    info = job(TaskStatus(replica=0, status="running", attempt=2, previous=[earlier]))  # type: ignore[arg-type]
    data = info.to_dict()
    assert type(data["status"]) is str
    assert type(data["tasks"][0]["previous"][0]["reason"]) is str
    assert JobInfo.from_dict({**data, "colour": "blue"}) == info
    full = dataclasses.replace(
        info,
        resources=ResourceConfig(cpu=2),
        labels={"team": "a"},
        children=["job-1/b-2"],  # type: ignore[arg-type]
        last_seen=LastSeen(host="h", time=2.5),
        dirty=True,
    )
    assert JobInfo.from_dict(json.loads(json.dumps(full.to_dict()))) == full
    assert pickle.loads(pickle.dumps(info)) == info
    with pytest.raises(ValueError, match="sleeping"):
        TaskStatus(replica=0, status="sleeping")  # type: ignore[arg-type]
    assert JobRequest("job", "train", resources=ResourceConfig(cpu=2)).to_dict()["resources"]["cpu"] == 2


def test_replicas_that_are_deferred_are_read_once_and_only_for_who_looks_at_them() -> None:
    whole = job(failed(0, ExitReason.EXITED, 3), failed(1, ExitReason.SIGNALLED, -9))
    reads = 0

    def read() -> tuple[TaskStatus, ...]:
        nonlocal reads
        reads += 1
        return whole.tasks

    deferred = defer_tasks(dataclasses.replace(whole, tasks=()), read)
    assert (deferred.name, deferred.finished, reads) == ("job", True, 0)
    changed = dataclasses.replace(deferred, tasks=(), labels={"team": "a"})
    assert (changed.labels, changed.tasks, reads) == ({"team": "a"}, (), 0)
    assert (deferred, deferred.exit_code, repr(deferred)) == (whole, 3, repr(whole))
    assert deferred.to_dict() == whole.to_dict()
    assert reads == 1
    again = defer_tasks(deferred, read)
    assert pickle.loads(pickle.dumps(again)) == copy.deepcopy(again) == whole
    assert reads == 2
    assert not hasattr(deferred, "task")


def test_none_in_an_environment_is_not_said() -> None:
    from fray import EnvironmentConfig, create_environment

    unsaid = EnvironmentConfig.create(pip_packages=None, env_vars=None, extras=None, dependency_groups=None)
    assert unsaid == create_environment()
    assert EnvironmentConfig.create(extras=None, extra_dependency_groups=["tpu"]) == create_environment(
        extras=["tpu"]
    )
