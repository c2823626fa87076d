# SPDX-License-Identifier: Apache-2.0
"""The files by which pods wait for a step: one is there while the last validation of its step has passed.

NVIDIA's GPU operator has such files, and its pods read that of the driver as lines of a shell.  Must not judge.
"""

from __future__ import annotations

import os
import shlex

from oci_gpu_hook.errors import ApplyError, ConfigError
from oci_gpu_hook.host.root import HostRoot
from oci_gpu_hook.host.source import UntrustedError
from oci_gpu_hook.kernel.filetypes import is_folder, is_open_to_others
from oci_gpu_hook.node.machine import whole

_KEY = "validation-folder"


class StatusFiles:
    """The files of a folder, by step; a step without a name has none.  ``folder`` is "" for no files at all."""

    def __init__(self, root: HostRoot, folder: str, names: tuple[str, ...]) -> None:
        self._root, self._folder, self._fd = root, folder, -1
        self._names = {step: name for step, _, name in [word.partition("=") for word in names]}

    def prepare(self) -> None:
        """Make the folder if it is missing, as /run is empty after a boot; ConfigError if it cannot be ours."""
        if not self._folder:
            return
        try:
            # From here on it is used by descriptor: nobody can put another in its place.
            with whole.folder(self._root.path.rstrip("/") + self._folder, whole.trusted) as folder:
                self._fd = os.dup(folder)
        except UntrustedError as err:
            why = f"{_KEY} {self._folder} is not root's alone: {err}"
            raise ConfigError(why, "the administrator must name another") from err
        except OSError as err:
            why = f"cannot make {_KEY} {self._folder}: {err.strerror}"
            raise ConfigError(why, "the administrator must name another") from err
        status = os.fstat(self._fd)
        if not is_folder(status) or is_open_to_others(status):
            why = f"others than root may write {_KEY} {self._folder}: its files would say nothing"
            raise ConfigError(why, f"chown root: {self._folder} && chmod go-w {self._folder}")

    def remove(self, step: str) -> None:
        """Remove the file of a step that is to run: a pod must not see the result of before."""
        name = self._name(step)
        if not name:
            return
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError as err:
            raise self._failure("remove", name, err) from err

    def make(self, step: str, text: str) -> None:
        """Make the file of a step that has passed, whole from the moment that it has its name."""
        name = self._name(step)
        if not name:
            return
        try:
            whole.place(self._fd, name, text.encode())
        except OSError as err:
            raise self._failure("make", name, err) from err

    def _name(self, step: str) -> str:
        return self._names.get(step, "") if self._folder else ""

    def _failure(self, verb: str, name: str, err: OSError) -> ApplyError:
        return ApplyError(
            f"cannot {verb} {self._folder}/{name}: {err.strerror}",
            "the administrator must make the folder writable, or set another as validation-folder",
        )


def of_driver(driver_root: str) -> str:
    """What the GPU operator's pods read in the driver's file: where its driver lies, on the host and in such a pod.

    They have the host's root as /host, and a driver container's as /driver-root.
    """
    is_hosts = driver_root == "/"
    values = {
        "IS_HOST_DRIVER": "true" if is_hosts else "false",
        "NVIDIA_DRIVER_ROOT": driver_root,
        "DRIVER_ROOT_CTR_PATH": "/host" if is_hosts else "/driver-root",
        "NVIDIA_DEV_ROOT": "/",
        "DEV_ROOT_CTR_PATH": "/host",
    }
    return "".join([f"{name}={shlex.quote(value)}\n" for name, value in values.items()])
