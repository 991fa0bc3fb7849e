"""The scheduler's own connection to the dashboard."""

from collections.abc import Callable

from fray_ray._jobs_client import JobsClient


class Dashboard:
    """Safe to use from several threads.

    Args:
        connect: Looks for the dashboard, and returns what talks to it.
    """

    def __init__(self, connect: Callable[[], JobsClient]) -> None:
        self._connect = connect
        self._client: JobsClient | None = None

    def client(self) -> JobsClient:
        """Return what talks to the dashboard, which is looked for when that is needed.

        Raises:
            ClusterUnavailableError: None answers.
        """
        client = self._client
        if client is None:
            client = self._client = self._connect()
        return client

    def forget(self) -> None:
        """Look for it again: it may be at another address when the head was started again."""
        self._client = None
