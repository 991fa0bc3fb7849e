"""The plan of a job that may be run later, in its record: what did not succeed, and the members of sweeps.

The values of variables that are named like secrets are withheld: no file has them. The caller that runs the
plan has them in its own environment. Imports little: a job's supervisor ends with it.
"""

import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Any

from fray._jobs.plans.plan import JobPlan
from fray._jobs.records.packed_plans import unpacked_plan
from fray._jobs.records.status_file import remove_file, replace_file

AGAIN, _PLAN = "again.pickle", "plan.pickle"
# A part of the name ends like this: HF_TOKEN, OPENAI_APIKEY; not MAX_TOKENS, TOKENIZERS_PARALLELISM.
_SECRET = re.compile(
    r"(KEY|TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|DSN)(_|$)", re.IGNORECASE
)
_PARAMETER = "FRAY_PARAM_"  # of a sweep: shown in its labels


def keep_plan(record: str, plan: JobPlan) -> None:
    """Keep the plan of a job that did not succeed; where the disk is full, the job cannot be run again."""
    if os.path.exists(os.path.join(record, AGAIN)):
        return
    try:
        write_kept(record, plan)
    except OSError:
        return


def keep_unstarted(record: str) -> None:
    """Keep the plan of a job that is settled before anybody came to start it; one of 0.1.0 is not kept."""
    try:
        with open(os.path.join(record, _PLAN), "rb") as file:
            plan = unpacked_plan(file.read())
    except Exception:  # noqa: BLE001 - whatever unpickling raises: it is not a plan of this version
        return
    if isinstance(plan, JobPlan):  # a sweep keeps its own
        keep_plan(record, plan)


def write_kept(record: str, plan: JobPlan) -> None:
    """Write the plan, as it is run again."""
    plan = withheld(plan._replace(payload=None, granted=None, again=True))
    replace_file(os.path.join(record, AGAIN), pickle.dumps(plan))


def withhold(record: str, plan: JobPlan) -> None:
    """Take the values of secrets out of the plan in a record; on a full disk the plan goes.

    The rest stays: who settles the job, where its host alone ends it, keeps that to run it again.
    """
    path = os.path.join(record, _PLAN)
    try:
        replace_file(path, pickle.dumps(withheld(plan)))
    except OSError:
        remove_file(path)


def kept_plan(record: str) -> JobPlan | None:
    """Return the plan that was kept, without what was withheld; None where there is none."""
    try:
        with open(os.path.join(record, AGAIN), "rb") as file:
            plan: JobPlan = pickle.load(file)
    except FileNotFoundError:
        return None
    return plan


def drop_plan(record: str) -> None:
    """Forget it: the job has succeeded."""
    remove_file(os.path.join(record, AGAIN))


def withheld(plan: JobPlan) -> JobPlan:
    """Return a plan for a file: without the values of variables that are named like secrets."""
    if plan.withheld is not None:
        return plan
    secret = secrets_of(plan)
    return _with_environ(
        plan._replace(
            secrets=tuple(value for value in plan.secrets if value not in secret.values()),
            withheld=tuple(name for name, value in secret.items() if value in plan.secrets),
        ),
        {name: value for name, value in plan.environ.items() if name not in secret},
    )


def restored(plan: JobPlan, environ: Mapping[str, str]) -> JobPlan:
    """Return a plan with what was withheld, from the environment of the caller that runs it.

    Raises:
        ValueError: A variable that the request set is not there.
    """
    if plan.withheld is None:
        return plan
    missing = [name for name in plan.withheld if name not in environ]
    if missing:
        raise ValueError(
            f"job {plan.job_id} was launched with {', '.join(missing)} in env_vars, and no file has the "
            "values of such variables: set them in your environment, and run it again"
        )
    # Those that its launcher had in its own environment come from here too, as far as they are here.
    given = {
        name: value for name, value in environ.items() if is_secret_name(name) and name not in plan.environ
    }
    secrets = (*plan.secrets, *(environ[name] for name in plan.withheld))
    return _with_environ(plan._replace(secrets=secrets, withheld=None), {**plan.environ, **given})


def secrets_of(plan: JobPlan) -> dict[str, str]:
    """Return the variables of a plan that are named like secrets."""
    return {name: value for name, value in plan.environ.items() if is_secret_name(name)}


@lru_cache(maxsize=4096)  # a sweep asks of the same names for each of its members
def is_secret_name(name: str) -> bool:
    """Whether a variable is named like a secret: such values are in no file."""
    return _SECRET.search(name) is not None and not name.startswith(_PARAMETER)


def _with_environ(plan: JobPlan, environ: dict[str, str]) -> JobPlan:
    preparation: Any = plan.preparation
    if is_dataclass(preparation) and hasattr(preparation, "environ"):
        preparation = replace(preparation, environ=environ)  # type: ignore[type-var]
    return plan._replace(environ=environ, preparation=preparation)
