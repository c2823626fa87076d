# SPDX-License-Identifier: Apache-2.0
"""What people run in containers, and what they see where /dev/shm has another container's level.

    story.py lock|dask      prints NAME=RESULT, or NAME= the error and whether a semaphore was its cause

Runs in the container, without the hook's sources.  Must not print anything else on success.
"""

from __future__ import annotations

import sys
import traceback


def lock() -> str:
    """A lock of multiprocessing: what data loaders, pools and queues are made of."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Lock():
        return "ok"


def square(number: int) -> int:
    """Runs in dask's worker."""
    return number * number


def dask() -> str:
    """A cluster of processes works out a sum."""
    import importlib
    import os

    # Worker processes import this file by its name.
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    # NVML denies a divided GPU's memory to those who may not watch MIG, and dask's own monitor ends there.
    os.environ["DASK_DISTRIBUTED__DIAGNOSTICS__NVML"] = "False"
    # By its name: the tools that check this file have no such package.
    distributed = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, local_directory="/tmp"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        return str(sum(client.gather(client.map(square, range(4)))))


def main() -> int:
    """Tell one story."""
    name = sys.argv[1]
    try:
        result = {"lock": lock, "dask": dask}[name]()
    except Exception as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        missing = "FileNotFoundError" in text
        result = "FileNotFoundError" if missing else type(error).__name__
        result += " in SemLock" if "SemLock" in text else f": {error}"
        if not missing or "SemLock" not in text:
            traceback.print_exc()
    print(f"{name}={result}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
