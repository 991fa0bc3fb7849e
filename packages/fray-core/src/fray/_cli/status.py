"""`fray status`: all that is known of a job, or of a sweep and its members."""

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fray._cli.job_arguments import job_argument
from fray._cli.shared import (
    STYLES,
    age,
    as_dict,
    cluster_option,
    duration,
    find_job,
    first_line,
    in_numbers,
    in_words,
    json_option,
    open_cluster,
    print_json,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fray._contracts.cluster import Cluster
    from fray._values.endpoints import Endpoint
    from fray._values.job_states import JobInfo, TaskStatus

_MOST_CHILDREN = 20


@click.command()
@cluster_option
@json_option
@job_argument
def status(spec: str | None, as_json: bool, job_id: str) -> None:
    """Show all that is known of a job: what it runs, every attempt and why it ended, where its logs are."""
    cluster = open_cluster(spec)
    info = cluster.poll(find_job(cluster, job_id))
    below = cluster.list_jobs(parent=info.job_id) if info.is_sweep or info.children else []
    endpoints = endpoints_of(cluster, info)
    if as_json:
        members = {"members": [as_dict(each) for each in below]} if info.is_sweep else {}
        print_json({**as_dict(info), "endpoints": [_endpoint(each) for each in endpoints], **members})
        return
    _head(info)
    if info.is_sweep and below:
        example = cluster.poll(below[0].job_id)  # one member stands for what all have in common
        info = replace(info, command=f"{example.command}  (of {example.job_id.leaf})")
    for what, text in facts_of(info, endpoints, [] if info.is_sweep else below):
        click.echo(f"  {what:11}  {text}".replace("\n", f"\n{' ' * 15}"))
    if info.is_sweep:
        print_members(below)
    else:
        _print_attempts(info)


def _head(info: "JobInfo") -> None:
    ran = f"ran {duration(info.started_at, info.finished_at)}" if info.started_at else "has not run"
    click.echo(f"{info.job_id}  {styled(info)}  {ran}")
    if info.pending_reason or info.error_message:
        click.echo(info.pending_reason or info.error_message)
    for warning in info.warnings:
        click.echo(f"warning: {warning}")
    if info.last_seen is not None:
        seen = f"{info.last_seen.host}, {age(info.last_seen.time)}"
        click.echo(f"warning: this host cannot check whether it runs; its supervisor was last seen on {seen}")


def facts_of(
    info: "JobInfo", endpoints: "Sequence[Endpoint]", children: "Sequence[JobInfo]"
) -> "Iterator[tuple[str, str]]":
    """Yield what is known of a job beside its state; nothing of what is not known."""
    yield "name", info.name
    facts = {
        "members": "" if info.progress is None else in_numbers(info.progress),
        "command": info.command or "",
        "directory": info.directory or "",
        "commit": _commit(info),
        "user": info.user or "",
        "launched": _moment(info.submitted_at),
        "started": _started(info),
        "finished": _moment(info.finished_at),
        "asked": _asked(info),
        "used": _used(info),
        "environment": _environment(info.environment),
        "labels": " ".join(f"{key}={value}" for key, value in info.labels.items()),
        "sweep": info.sweep or "",
        "after": "\n".join(info.after),
        "children": _children(children) or "\n".join(info.children if info.progress is None else ()),
        "ports": _ports(info),
        "endpoints": "\n".join(f"{each.name}  {each.address}" for each in endpoints),
        "logs": _logs(info.logs),
    }
    yield from ((what, text) for what, text in facts.items() if text)


def _commit(info: "JobInfo") -> str:
    return "" if info.commit is None else info.commit[:10] + (" with changes" if info.dirty else "")


def _moment(moment: float | None) -> str:
    if moment is None:
        return ""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}  ({age(moment)})"


def _started(info: "JobInfo") -> str:
    if info.started_at is None or info.submitted_at is None:
        return _moment(info.started_at)
    return f"{_moment(info.started_at)}, waited {duration(info.submitted_at, info.started_at)}"


def _asked(info: "JobInfo") -> str:
    resources = info.resources
    if resources is None:
        return ""
    device = "" if resources.device.kind == "cpu" else f", {resources.device}"
    replicas = len(info.tasks) or 1
    number = f" for each of {replicas} replicas" if replicas > 1 else ""
    return f"{resources.cpu:g} CPU, {in_words(resources.ram_bytes)} of memory{device}{number}"


def _used(info: "JobInfo") -> str:
    """What the attempts used, as far as it was measured."""
    attempts = [task for replica in info.tasks for task in (*replica.previous, replica)]
    memory = [task.peak_memory for task in attempts if task.peak_memory is not None]
    cpu = [task.cpu_time for task in attempts if task.cpu_time is not None]
    parts = [f"{in_words(max(memory))} of memory at the most"] if memory else []
    parts += [f"{sum(cpu):.1f} s of CPU time"] if cpu else []
    return ", ".join(parts)


def _environment(environment: "Any") -> str:
    """The requested environment; of variables the names."""
    said = [
        ("Python", [environment.get("python")]),
        ("image", [environment.get("docker_image")]),
        ("packages", environment.get("pip_packages", ())),
        ("extras", environment.get("extras", ())),
        ("groups", environment.get("dependency_groups", ())),
        ("variables", environment.get("env_vars", ())),
    ]
    return "; ".join(
        f"{what} {', '.join(map(str, found))}"
        for what, given in said
        if (found := [each for each in given if each is not None])
    )


def _children(children: "Sequence[JobInfo]") -> str:
    shown = [f"{each.job_id}  {each.status}" for each in children[-_MOST_CHILDREN:]]
    more = len(children) - len(shown)
    return "\n".join([*([f"{more} older ones"] if more else []), *shown])


def _ports(info: "JobInfo") -> str:
    return "\n".join(
        f"replica {task.replica}: " + " ".join(f"{name}={port}" for name, port in task.ports.items())
        for task in info.tasks
        if task.ports
    )


def _logs(logs: "Sequence[str]") -> str:
    """Write where the logs are: a few by name, of many the folder."""
    folder = os.path.commonpath([os.path.dirname(each) for each in logs]) if logs else ""  # noqa: PTH120
    if len(logs) <= 4:
        return "\n".join(logs)
    return f"{folder}\n{len(logs)} files"


def endpoints_of(cluster: "Cluster", info: "JobInfo") -> "list[Endpoint]":
    """Return the servers of a job; of a cluster that has none, nothing."""
    if not getattr(getattr(cluster, "capabilities", None), "endpoints", False):
        return []
    return [each for each in cluster.endpoints(everywhere=True) if each.job_id == info.job_id]


def _endpoint(endpoint: "Endpoint") -> dict[str, Any]:
    return {
        "name": endpoint.name,
        "address": endpoint.address,
        "metadata": dict(endpoint.metadata),
        "replica": endpoint.replica,
        "attempt": endpoint.attempt,
    }


def _print_attempts(info: "JobInfo") -> None:
    """Print the timeline: every attempt of every replica, when it started, and why it ended."""
    from fray._cli.output import print_rows

    columns = ["replica", "attempt", "status", "exit code", "reason", "started", "ran", "cpu", "memory"]
    rows = [_attempt(task) for replica in info.tasks for task in (*replica.previous, replica)]
    print_rows(columns, rows, STYLES, shrink=())


def _attempt(task: "TaskStatus") -> list[str]:
    started = task.started_at
    return [
        str(task.replica),
        str(task.attempt),
        str(task.status),
        "-" if task.exit_code is None else str(task.exit_code),
        str(task.reason or "-"),
        "-" if started is None else time.strftime("%H:%M:%S", time.localtime(started)),
        duration(started, task.finished_at),
        "-" if task.cpu_time is None else f"{task.cpu_time:.1f}s",
        "-" if task.peak_memory is None else in_words(task.peak_memory),
    ]


def print_members(members: "Sequence[JobInfo]") -> None:
    """Print the members of a sweep, with the labels that tell them apart."""
    from fray._cli.output import print_rows

    keys = parameters(members)
    rows = [
        [
            each.job_id.leaf,
            str(each.status),
            *(each.labels.get(key, "") for key in keys),
            duration(each.started_at, each.finished_at),
            first_line(each.error_message or each.pending_reason),
        ]
        for each in members
    ]
    columns = ["member", "status", *keys, "ran", "message"]
    print_rows(columns, rows, STYLES, shrink=[("message", 24), *((key, 8) for key in keys), ("message", 10)])


def parameters(members: "Sequence[JobInfo]") -> list[str]:
    """Return the labels that the members of a sweep do not have all alike."""
    keys = dict.fromkeys(key for each in members for key in each.labels)
    return [key for key in keys if len({each.labels.get(key) for each in members}) > 1]
