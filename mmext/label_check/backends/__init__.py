"""Where files are read: here, in local processes, or on a cluster.

Each backend is a function ``run(batches, ...)`` that gives lists of
:class:`~mmext.label_check.work.Result` as they become ready.
"""

from . import dask_backend, joblib_backend, ray_backend, serial

__all__ = ['dask_backend', 'joblib_backend', 'ray_backend', 'serial']
