"""Named actors from their callers' side: each is a job of Iris, asked through its actor server."""

import json
import time
from collections.abc import Mapping
from typing import Any

from fray import get_job_context
from fray.backend import dispatch, poll_delays, ref_of_future
from fray.job import ActorEndpoint
from fray_iris._actor_host import ENDPOINT
from fray_iris._actor_line import ActorLine, line_of
from fray_iris._actor_streams import stream_of
from fray_iris._connection import Iris
from fray_iris._inside import caller_here
from fray_iris._states import ENDED_JOBS


class IrisActor(ActorEndpoint):
    """A named actor, as its handles have it; it pickles, and finds the actor wherever it arrives."""

    def __init__(self, iris: Iris, job: str, label: str, methods: Mapping[str, bool]) -> None:
        self.iris, self.job, self._label, self._methods = iris, job, label, dict(methods)

    @property
    def methods(self) -> Mapping[str, Any]:
        """See `ActorEndpoint.methods`; the values say what streams."""
        return self._methods

    @property
    def label(self) -> str:
        """See `ActorEndpoint.label`."""
        return self._label

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `ActorEndpoint.call`."""
        future = self.line.call(method, args, kwargs, get_job_context(), caller_here())
        if self._methods.get(method):
            return stream_of(future, line_of(self.iris, self.job, self._label, streams=True))
        return ref_of_future(future, dispatch)

    @property
    def line(self) -> ActorLine:
        """What this process has under way at the actor."""
        return line_of(self.iris, self.job, self._label)

    def __reduce__(self) -> tuple[Any, ...]:
        return IrisActor, (self.iris, self.job, self._label, self._methods)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IrisActor) and self.job == other.job

    def __hash__(self) -> int:
        return hash(self.job)


def found_actor(iris: Iris, job: str) -> IrisActor | None:
    """Return the actor of a job, when it has said what it is; None where the job has ended."""
    for pause in poll_delays(shortest=0.05, longest=0.5):
        for endpoint in iris.endpoints(f"{job}/{ENDPOINT}", exact=True):
            metadata = endpoint.get("metadata", {})
            return IrisActor(iris, job, metadata.get("label", job), json.loads(metadata.get("methods", "{}")))
        answer = iris.status(job)
        if answer is None or answer[0].get("state") in ENDED_JOBS:
            return None
        time.sleep(pause)
    raise AssertionError  # the delays never end
