# SPDX-License-Identifier: Apache-2.0
"""What the administrator allows, as a value: ``/etc/oci-gpu-hook.conf``, then its drop-ins in the order of their names,
of which the last line wins.  Without such a file, nothing but this module is loaded.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.state import State
from oci_gpu_hook.request.words import ALL, CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = "/etc/oci-gpu-hook.conf"  # it alone may be absent
_MAX_DROP_INS = 256


class Settings(NamedTuple):
    """The settings, each with the default that a missing file means; oci-gpu-hook.conf(5) describes each."""

    device_cgroup: str = "auto"
    device_group: str = "container"
    ipc_labels: str = "gpu"
    ipc_context_mismatch: str = "refuse"
    accept_environment: str = "always"
    unaccepted_requests: str = "ignore"
    unmatched_sections: str = "strictest"
    accept_volume_mounts: bool = False
    allowed_capabilities: tuple[str, ...] = CAPABILITIES
    allowed_vendors: tuple[str, ...] = (ALL,)
    swarm_resources: tuple[str, ...] = ()
    disable_requirements: bool = False
    driver_root: str = "/"
    mps_pipe_folder: str = "/tmp/nvidia-mps"
    mps_pipe_owner: int = 0
    runtime: str = ""
    ignore_imex_channels: bool = False
    mig_monitor: str = "privileged"
    cuda_forward_compatibility: bool = True
    records: bool = True
    metrics: str = ""
    gpu_metrics: str = ""
    features: str = ""
    validation_folder: str = ""
    gpu_holders: int = 0
    count_watchers: bool = True
    unhealthy: str = "give"
    docker_count: str = "first"
    gpu_memory: str = "off"
    gpu_memory_by: str = "dmem"
    # no setting: of "image" and "namespace", what the settings have sections for and the engine does not say
    unmatched: tuple[str, ...] = ()


def files(path: str | None, root: str = "") -> list[str]:
    """The file at `path`, None for the default one below `root`, and its drop-ins, in the order of reading."""
    name = f"{root.rstrip('/')}{SETTINGS}" if path is None else path
    found = []
    try:
        posix.stat(name)
        found.append(name)
    except OSError as err:
        # A link that leads nowhere was meant to say something.
        is_there = posix.access(name, posix.F_OK, follow_symlinks=False)
        if path is not None or is_there or not isinstance(err, FileNotFoundError):
            raise ConfigError(f"cannot open {name}: {err.strerror}") from err
    try:
        names = posix.listdir(f"{name}.d")
    except FileNotFoundError:
        return found
    except OSError as err:
        raise ConfigError(f"cannot open {name}.d: {err.strerror}") from err
    drop_ins = sorted([item for item in names if item.endswith(".conf") and item[0] != "."])
    if len(drop_ins) > _MAX_DROP_INS:
        raise ConfigError(f"{name}.d has more than {_MAX_DROP_INS} drop-ins")
    return found + [f"{name}.d/{item}" for item in drop_ins]


def read_settings(path: str | None, state: State | None, root: str = "", image: Callable[[], str] = str) -> Settings:
    """The settings for a container, None for what stands in no section; ConfigError, RequestError.  root: `files`;
    image: gives the container's image by its engine's record, if that is needed.
    """
    names, defaults = files(path, root), Settings()
    if not names:
        return defaults
    from oci_gpu_hook.request import settingsfile

    lines = settingsfile.read_files(names)
    found = settingsfile.fields(lines, state, defaults._asdict())
    if state and "image" in found["unmatched"]:
        found = settingsfile.fields(lines, state._replace(image=image()), defaults._asdict())
    return Settings(**found)
