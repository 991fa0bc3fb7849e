"""What writers and readers of logs agree on: files among the logs of a node, and lines in them."""

MARK = "[fray] mark "
"""The beginning of a line by which a reader of a log's end knows how it joins what was read before."""


def usage_name(submission: str) -> str:
    """Return the name of the file with what a run of a job uses over time, on the node of its process."""
    return f"fray-usage-{submission}.txt"


def attempts_name(submission: str) -> str:
    """Return the name of the file with the earlier attempts of a run, on the node of its process."""
    return f"fray-attempts-{submission}.txt"


def replica_log_name(submission: str, replica: str, attempt: str) -> str:
    """Return the name of the file with what an attempt of a replica wrote, on the node that it ran on."""
    return f"fray-{submission}-replica-{replica}-attempt-{attempt}.log"
