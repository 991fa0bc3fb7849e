"""Iris's controller, called by a replica in the JSON form of its own protocol."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
import uuid

from fray_iris._in_task.words import SAID, STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SERVICE = "/iris.cluster.ControllerService/"
_PATIENCE, _LOOKS_FOR = 30.0, 5.0  # seconds that a request, and a look at this task, may take
_AWAY = (408, 429)  # of the codes by which a server refuses: too late, and too often
_OVER = ("TASK_STATE_SUCCEEDED", "TASK_STATE_FAILED", "TASK_STATE_KILLED", "TASK_STATE_WORKER_FAILED",
         "TASK_STATE_UNSCHEDULABLE", "TASK_STATE_PREEMPTED", "TASK_STATE_COSCHED_FAILED")  # fmt: skip


class CouldNotStart(Exception):  # noqa: N818 - how an attempt ends
    """What a replica was to have is not there."""


class Refused(CouldNotStart):
    """The controller answered, and will answer no better."""


class Controller:
    """The requests and reports of one attempt at one task to the controller.

    Args:
        address: Where it is.
        task: What Iris calls the task.
        attempt: From 0.
        note: Takes a line of the log.
    """

    def __init__(self, address: str, task: str, attempt: int, note: "Callable[[str], None]") -> None:
        self.address, self.task, self.attempt = address, task, attempt
        self.ports: dict[str, int] = {}
        self._note = note
        self._endpoint = ""  # by which it says what it has no text of the task's status for
        self._token = os.environ.get("IRIS_TOKEN")  # of the request, for a controller that authenticates

    def call(self, method: str, **request: "Any") -> "dict[str, Any]":
        """Send a request to the controller.

        Raises:
            CouldNotStart: It did not answer; `Refused` where it answered that it does not do this.
        """
        for pause in (0.2, 1.0, 3.0, None):
            try:
                return self._ask(method, request, _PATIENCE)
            except CouldNotStart as error:
                if pause is None or isinstance(error, Refused):
                    raise
                time.sleep(pause)
        raise AssertionError  # the loop returns or raises

    def _ask(self, method: str, request: "dict[str, Any]", patience: float) -> "dict[str, Any]":
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        asked = urllib.request.Request(
            self.address.rstrip("/") + _SERVICE + method, json.dumps(request).encode(), headers
        )
        try:
            with urllib.request.urlopen(asked, timeout=patience) as answer:
                found = json.load(answer)
        except (OSError, ValueError, http.client.HTTPException) as error:
            code = error.code if isinstance(error, urllib.error.HTTPError) else 0
            kind = Refused if 400 <= code < 500 and code not in _AWAY else CouldNotStart
            raise kind(f"Iris's controller did not answer {method}: {error}") from error
        return found if isinstance(found, dict) else {}

    def tell(self, **state: "Any") -> None:
        """Set the summary of the task's status, or, where a controller has no such text, of an endpoint.

        Where neither can be, it is only not seen.
        """
        said = STATE + json.dumps({"attempt": self.attempt, "ports": self.ports, **state})
        try:
            if not (self._endpoint or self._has_said(said)):
                self._endpoint = str(uuid.uuid4())
            if self._endpoint:
                about = {"taskId": self.task, "attemptId": self.attempt, "endpointId": self._endpoint}
                metadata = {SAID: said}
                self.call(
                    "RegisterEndpoint", name=self._said_at(), address="none:0", metadata=metadata, **about
                )
        except CouldNotStart as error:
            self._note(f"[fray] {error}")

    def _has_said(self, text: str) -> bool:
        """Set the summary of the task's status; False where the controller has no such text."""
        try:
            self.call("SetTaskStatusText", taskId=self.task, statusTextSummaryMd=text)
        except Refused:
            return False
        return True

    def _said_at(self) -> str:
        return f"{self.task.rpartition('/')[0]}/{SAID}"

    def own_task(self) -> "dict[str, Any]":
        """Return what it has of this task.

        Raises:
            CouldNotStart: It did not answer.
        """
        found: dict[str, Any] = self.call("GetTaskStatus", taskId=self.task).get("task", {})
        return found

    def other_tasks(self) -> "list[dict[str, Any]]":
        """Return what it has of the other tasks of the job.

        Raises:
            CouldNotStart: It did not answer.
        """
        tasks = self.call("ListTasks", jobId=self.task.rpartition("/")[0]).get("tasks", [])
        others = [task for task in tasks if task.get("taskId") != self.task]
        if not self._endpoint:
            return others
        endpoints = self.call("ListEndpoints", prefix=self._said_at(), exact=True).get("endpoints", ())
        said = {each.get("taskId"): each.get("metadata", {}).get(SAID, "") for each in endpoints}
        return [{**task, "statusTextSummaryMd": said.get(task.get("taskId"), "")} for task in others]

    def look(self) -> "dict[str, Any]":
        """Return what it has of this task; nothing where it does not answer at once."""
        try:
            answer = self._ask("GetTaskStatus", {"taskId": self.task}, _LOOKS_FOR)
        except CouldNotStart:
            return {}
        found: dict[str, Any] = answer.get("task", {})
        return found

    def has_ended(self, task: "dict[str, Any]") -> bool:
        """Whether Iris has ended this attempt, by what it has of the task."""
        attempts = task.get("attempts", ())
        own = [each for each in attempts if int(each.get("attemptId", 0)) == self.attempt]
        return task.get("state") in _OVER or any(each.get("state") in _OVER for each in own)


def is_over(task: "dict[str, Any]") -> bool:
    """Whether a replica has ended, or failed for good and waits for the others."""
    return task.get("state") in _OVER or "ended" in said_by(task)


def said_by(task: "dict[str, Any]") -> "dict[str, Any]":
    """Return what the present attempt at a task has said; nothing where the text is an earlier one's."""
    said = last_said(task)
    return {} if said.get("attempt", 0) < int(task.get("currentAttemptId", 0)) else said


def last_said(task: "dict[str, Any]") -> "dict[str, Any]":
    """Return what an attempt at a task has said last, this one or an earlier one."""
    _, _, text = task.get("statusTextSummaryMd", "").partition(STATE)
    try:
        said, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
