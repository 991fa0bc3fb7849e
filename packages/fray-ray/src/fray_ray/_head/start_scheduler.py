"""Start a cluster's scheduler, where it has none: `python -m fray_ray._head.start_scheduler`, on the head."""

import logging
import signal
import sys
from typing import Any

import ray

from fray_ray._head.outliving import NAMESPACE
from fray_ray._head.scheduler import SchedulerActor
from fray_ray._options import A_LITTLE, RAY_HEAD
from fray_ray._scheduler import NAME

_UP_WITHIN = 120.0  # seconds
_ENDS_WITHIN = 300  # seconds: this process, whatever happens
_CALLS = 4  # at a time: processes of several jobs may start it at once


def main() -> int:
    """Return when there is one."""
    signal.alarm(_ENDS_WITHIN)  # ends it: Ray waits for ever for a head that goes while it connects
    ray.init(namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)
    options: dict[str, Any] = {
        "name": NAME,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_concurrency": _CALLS,
        "num_cpus": 0,
        "resources": {RAY_HEAD: A_LITTLE},
    }
    actor: Any = ray.remote(SchedulerActor).options(**options).remote()
    ray.get(actor.ready.remote(), timeout=_UP_WITHIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
