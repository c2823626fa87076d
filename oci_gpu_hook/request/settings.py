# SPDX-License-Identifier: Apache-2.0
"""What the administrator allows, as a value: oci-gpu-hook.conf(5) and its drop-ins.

``/etc/oci-gpu-hook.conf`` is read first, then ``/etc/oci-gpu-hook.conf.d/*.conf`` in the order of their names; what is
read later holds.  Where there is no such file, nothing but this module is loaded.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ConfigError
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request.words import ALL, CAPABILITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.request.state import Who

# The default file: it alone may be absent.
SETTINGS = "/etc/oci-gpu-hook.conf"

_MOST_DROP_INS = 256


class Settings(NamedTuple):
    """The settings, each with the default that a missing file means."""

    # "auto": opened where there is one and the hook may open it; "on": a container without one is refused;
    # "off": never touched
    device_cgroup: str = "auto"
    # whose /dev/shm and /dev/mqueue are given the right label: those of GPU containers, of all, of none
    ipc_labels: str = "gpu"
    # what happens to a GPU container whose /dev/shm was mounted with a wrong context=, which nobody can change
    ipc_context_mismatch: str = "refuse"
    # whose environment may ask for GPUs: every container's, or only those with CAP_SYS_ADMIN
    accept_environment: str = "always"
    # what happens to a container whose request is not accepted: "ignore", it starts without; "refuse"
    unaccepted_requests: str = "ignore"
    # what a container gets where sections may be its own, and its engine does not say: "strictest"; "refuse"
    unmatched_sections: str = "strictest"
    # whether a device list as volume mounts is accepted; who may make such mounts is for the cluster to restrict
    accept_volume_mounts: bool = False
    # the driver capabilities that any container can get
    allowed_capabilities: tuple[str, ...] = CAPABILITIES
    # the flags of the vendors whose devices any container can get
    allowed_vendors: tuple[str, ...] = (ALL,)
    # variables that, where a container has them, name its devices in the place of NVIDIA_VISIBLE_DEVICES; as
    # FLAG=VARIABLE in the place of that vendor's flag
    swarm_resources: tuple[str, ...] = ()
    # whether NVIDIA_REQUIRE_* are left unchecked
    disable_requirements: bool = False
    # where the driver's files lie: / or, for a driver container, such as /run/nvidia/driver
    driver_root: str = "/"
    # the folder of MPS's pipes on the host, and the user beside root whose it may be
    mps_pipe_folder: str = "/tmp/nvidia-mps"
    mps_pipe_owner: int = 0
    # the runtime that oci-gpu-runtime becomes; "" is the first runc of PATH, else the first crun
    runtime: str = ""
    # whether requests for IMEX channels are left out
    ignore_imex_channels: bool = False
    # whether an image's own newer CUDA libraries are named in its loader's cache
    cuda_forward_compatibility: bool = True
    # whether the journal is told of each start of a GPU container
    records: bool = True
    # the file that counters are written to, for Prometheus's textfile collector; "" is none
    metrics: str = ""
    # the file that what NVML says of GPUs is written to, for the same; "" is none
    gpu_metrics: str = ""
    # the file of this node's features, for Node Feature Discovery; "" is none
    features: str = ""
    # how a device plugin names MIG devices, and so what is told of them as features: none, single, mixed
    mig_strategy: str = "none"
    # the folder of the files that say which step of the last validation has passed; "" is none
    validation_folder: str = ""
    # their names, as STEP=NAME
    validation_files: tuple[str, ...] = ("driver=driver-ready", "hook=toolkit-ready", "workload=cuda-ready")
    # no setting: what sections go by and this container's engine does not say, of "image" and "namespace"
    unmatched: tuple[str, ...] = ()


def files(path: str | None, root: str = "") -> list[str]:
    """The file at `path`, None for the default one below `root`, and its drop-ins, in the order of reading."""
    name = f"{root}{SETTINGS}" if path is None else path
    try:
        posix.stat(name)
        found = [name]
    except OSError as err:
        if not (path is None and isinstance(err, FileNotFoundError)):
            raise ConfigError(f"cannot open {name}: {err.strerror}") from err
        found = []
    try:
        names = posix.listdir(f"{name}.d")
    except FileNotFoundError:
        return found
    except OSError as err:
        raise ConfigError(f"cannot open {name}.d: {err.strerror}") from err
    drop_ins = sorted([item for item in names if item.endswith(".conf") and item[0] != "."])
    if len(drop_ins) > _MOST_DROP_INS:
        raise ConfigError(f"{name}.d has more than {_MOST_DROP_INS} drop-ins")
    return found + [f"{name}.d/{item}" for item in drop_ins]


def are_there(path: str | None) -> bool:
    """Whether there is a file or a folder of settings, whatever is in it."""
    for name in (SETTINGS, f"{SETTINGS}.d") if path is None else (path,):
        try:
            posix.stat(name)
        except OSError:
            continue
        return True
    return False


def read_settings(path: str | None, who: Who | None, root: str = "") -> Settings:
    """The settings for a container, None for what stands in no section; path, root: see `files`.

    ConfigError where a file cannot be read or understood; RequestError for an image or a namespace that is none.
    """
    names = files(path, root)
    if not names:
        return Settings()
    from oci_gpu_hook.request import settingsfile

    lines = settingsfile.read(names)
    return Settings(**settingsfile.fields(lines, who, Settings()._asdict()))
