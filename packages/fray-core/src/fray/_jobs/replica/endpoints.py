"""Register a server under a name, from the replica that it runs in."""

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from fray._discovery.current import current_cluster
from fray._jobs.plans.planning import FAMILY
from fray._jobs.plans.port_variables import HOST_ADDRESS, PORT_VARIABLE, port_variable
from fray._jobs.process_tree import JOB_VARIABLE
from fray._jobs.records.endpoint_files import write_endpoint
from fray._jobs.records.predecessors import folder_of_records
from fray._values.endpoints import Endpoint, check_endpoint_name
from fray._values.errors import FrayError
from fray._values.job_states import JobId

_NOTHING: Mapping[str, Any] = {}


def register_endpoint(
    name: str, address: str | None = None, metadata: Mapping[str, Any] = _NOTHING
) -> Endpoint:
    """Let `cluster.endpoints(prefix)` find a server of this replica by name.

    The endpoint ends with this attempt of the replica: a replica that is started again registers again. A
    second call with the same name replaces the first. Several replicas may have one name.

    Args:
        address: Where it listens; None for the port of that name that the job requested (`ports=`), or else
            its only one.
        metadata: Whatever its clients should know, fit for JSON.

    Raises:
        FrayError: This process is not a replica of a job.
        TypeError: The metadata is not fit for JSON.
        ValueError: There is no such port, or the name or the address is invalid.
        UnsupportedError: The cluster has no endpoints.
    """
    check_endpoint_name(name)
    job_id = os.environ.get("FRAY_JOB_ID")
    if not job_id:
        raise FrayError(f"endpoint {name!r} cannot be registered: this process is not a replica of a job")
    endpoint = Endpoint(
        name=name,
        address=_address_of(name) if address is None else address,
        metadata=metadata,
        job_id=JobId(job_id),
        replica=int(os.environ.get("FRAY_REPLICA_ID", "0")),
        attempt=int(os.environ.get("FRAY_ATTEMPT", "1")),
        registered_at=time.time(),
    )
    json.dumps(dict(metadata))  # where it is not fit for JSON, this says so
    record = os.environ.get(JOB_VARIABLE)
    if record and os.path.isdir(record):  # whatever of Fray is installed where the job runs
        family = os.environ.get(FAMILY)
        write_endpoint(folder_of_records(record, job_id), {**endpoint.to_dict(), "family": family})
    else:
        current_cluster()._register(endpoint)  # type: ignore[attr-defined]
    return endpoint


def _address_of(name: str) -> str:
    """The address of the port that was requested by this name, or of the only one."""
    given = {key: value for key, value in os.environ.items() if key.startswith(PORT_VARIABLE)}
    port = given.get(port_variable(name)) or (next(iter(given.values())) if len(given) == 1 else None)
    if port is None:
        raise ValueError(f"endpoint {name!r} needs an address: {_advice(sorted(given))}")
    return f"{os.environ.get(HOST_ADDRESS) or socket.gethostname()}:{port}"


def _advice(given: list[str]) -> str:
    if not given:
        return "the job asked for no port; launch it with ports=('http',), or give address="
    return (
        f"none of the replica's ports ({', '.join(given)}) has that name; give "
        f"address=f\"{{os.environ['{HOST_ADDRESS}']}}:{{os.environ['{given[0]}']}}\""
    )
