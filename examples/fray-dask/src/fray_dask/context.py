"""The context `dask`."""

from fray.backend import EngineContext
from fray_dask.engine import DaskEngine


class DaskContext(EngineContext):
    """Tasks and actors on a Dask cluster; spec `dask?address=tcp://host:8786`, and the options of all.

    Args:
        address: The scheduler's; without one, workers of this machine that live as long as the program.
    """

    engine_type = DaskEngine

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        address: str | None = None,
        num_cpus: float | None = None,
        memory: int | str | None = None,
        max_retries: int | None = None,
        namespace: str | None = None,
    ) -> None:
        engine = DaskEngine(address)
        super().__init__(engine, max_workers, max_retries=max_retries, namespace=namespace)
