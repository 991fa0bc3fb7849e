"""Fray on Dask: contexts `dask` and `dask?address=tcp://host:8786`, and the cluster `dask?root=FOLDER`."""

from fray.backend import require_api

require_api(1)
