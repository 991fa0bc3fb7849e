"""The names of Fray's own files in the log folders of Ray's nodes, where the dashboard reads them out."""


def usage_name(submission: str) -> str:
    """Return the name of the file with what a run of a job uses over time, on the node of its driver."""
    return f"fray-usage-{submission}.txt"
