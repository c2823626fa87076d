# SPDX-License-Identifier: Apache-2.0
"""What people run in containers, and what they see where /dev/shm has another container's level: dask on processes.

Prints dask=RESULT, or dask= the error and whether a semaphore was its cause.
Runs in the container, without the hook's sources.  Must not print anything else on success.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback


def square(number: int) -> int:
    """Runs in dask's worker."""
    return number * number


def dask() -> str:
    """A cluster of processes works out a sum."""
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
    """Tell the story."""
    try:
        result = dask()
    except Exception as error:
        text = traceback.format_exc()
        result = f"{type(error).__name__}: {error}"
        if "FileNotFoundError" in text and "SemLock" in text:
            result = "FileNotFoundError in SemLock"
        else:
            print(text, file=sys.stderr)
    print(f"dask={result}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
