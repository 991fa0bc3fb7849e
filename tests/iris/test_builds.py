"""Builds of Iris of other dates: what they have under another name, and what they lack."""

import sys
from typing import Any

import pytest
from fake_controller import Code, ConnectError, FakeController

from fray import UnsupportedError, create_cluster
from fray.cluster import Entrypoint, JobRequest, JobStatus, create_environment

# What builds from June 2026 on lack: environments are scripts there, and messages of authentication are gone.
LATER = {"pip_packages", "extras", "python_version", "GetAuthInfoRequest", "reservation", "get_auth_info"}
TRUE = Entrypoint.from_binary("true")


@pytest.fixture
def cluster(controller: FakeController) -> Any:
    return create_cluster("iris", controller="http://nowhere", user="ada", shared_files=True)


def request(**fields: Any) -> JobRequest:
    environment: dict[str, Any] = {
        "pip_packages": ["wandb"],
        "extras": ["tpu"],
        "env_vars": {"UV_OFFLINE": "1"},
    }
    environment |= fields.pop("environment", {})
    return JobRequest("train", TRUE, environment=create_environment(**environment), **fields)


def launched(cluster: Any, controller: FakeController, **fields: Any) -> Any:
    job_id = cluster.launch(request(**fields))
    return controller.requests[f"/ada/{job_id}"]


def test_a_build_has_the_environment_in_its_own_fields(cluster: Any, controller: FakeController) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert launched(cluster, controller).environment == {
        "pip_packages": ["wandb"],
        "extras": ["tpu"],
        "python_version": python,
        "env_vars": {"UV_OFFLINE": "1"},  # and no token of the launching machine
    }
    controller.lacks = LATER
    assert launched(cluster, controller, environment={"python": python}).environment == {
        "setup_scripts": ["install ['wandb'] ['tpu']"],
        "env_vars": {"UV_OFFLINE": "1"},
    }


@pytest.mark.parametrize(
    ("lacks", "fields", "what"),
    [
        ("reservation", {"backend": {"iris": {"reservation": [{"resources": {}}]}}}, "no field reservation"),
        ("ports", {"ports": ["http"]}, "no field ports in LaunchJobRequest"),
        ("python_version", {"environment": {"python": "3.9"}}, "python='3.9' is requested"),
        ("LaunchJobRequest", {}, "no message LaunchJobRequest"),
        ("launch_job", {}, "no request launch_job"),
    ],
)
def test_what_the_installed_build_lacks_is_named_and_nothing_is_launched(
    cluster: Any, controller: FakeController, lacks: str, fields: dict[str, Any], what: str
) -> None:
    controller.lacks = {lacks}
    with pytest.raises(UnsupportedError, match=rf"marin-iris .*built 2026-11-20.*{what}.*install a build"):
        cluster.launch(request(**fields))
    assert "launch_job" not in controller.asked


def test_a_field_without_a_value_is_left_out(cluster: Any, controller: FakeController) -> None:
    controller.lacks = {"ports", "constraints", "task_image", "client_revision_date"}
    made = launched(cluster, controller)
    assert not controller.lacks & set(made)
    assert made.replicas == 1


def test_a_build_without_an_environment_of_its_own_is_refused(
    cluster: Any, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gone in ("to_proto", "EnvironmentSpec"):
        types = sys.modules["iris.cluster.types"]
        monkeypatch.delattr(types.EnvironmentSpec if gone == "to_proto" else types, gone)
        with pytest.raises(UnsupportedError, match=f"marin-iris.*{gone}"):
            cluster.launch(request())
    assert "launch_job" not in controller.asked


@pytest.mark.parametrize("lacks", [set(), LATER], ids=["at first", "later"])
def test_the_user_is_found_by_each_build(controller: FakeController, lacks: set[str]) -> None:
    controller.lacks = lacks
    controller.add("/ada/job-1")
    cluster: Any = create_cluster("iris", controller="http://nowhere")
    assert [info.job_id for info in cluster.list_jobs()] == ["job-1"]


def test_a_build_that_lists_no_jobs_by_their_prefix_is_refused(
    cluster: Any, controller: FakeController
) -> None:
    controller.lacks = {"job_id_prefix"}
    with pytest.raises(UnsupportedError, match="no field job_id_prefix in JobQuery"):
        cluster.list_jobs()


def test_a_controller_of_another_date_is_named(cluster: Any, controller: FakeController) -> None:
    def unknown(method: str, request: Any) -> None:
        if method == "terminate_job":
            raise ConnectError(Code.UNIMPLEMENTED, "Not Found")

    controller.add("/ada/job-1")
    controller.before = unknown
    assert cluster.poll("job-1").status is JobStatus.RUNNING
    with pytest.raises(UnsupportedError, match=r"does not know the request terminate_job.*marin-iris"):
        cluster.terminate("job-1", grace=0.0)
