# SPDX-License-Identifier: Apache-2.0
"""The rows in which something lies in wait for the hook, on the host or in the image.

Five ways to have it change the host have been found, by their numbers.  Each comes thrice: the hook refuses by itself;
where its own check is taken out SELinux refuses, which the kernel's log must say; and where the label of the host's
folder is a container's own, SELinux cannot.
"""

from __future__ import annotations

from tests.gpunode.catalogue import MPS_FOLDER

from . import cases, traps
from .agentcases import AGENTS
from .cases import CRUN, RUNC, WORKS, Container, Row
from .podcases import PODS
from .policycases import BOUNDS
from .vendorcases import VENDORS

_CONFINED = Container("nvidia_container_t")
# What a user's folder lets a container's program do, if nothing forbids it.
_PLANT = f"make:{MPS_FOLDER}/planted"
_READ = f"read:{MPS_FOLDER}/secret"
# What the hook itself says.
_IN_A_VOLUME = r"oci-gpu-hook: .*lies in a volume|oci-gpu-hook.*exit code: 7"
_NO_ROOT = r"oci-gpu-hook: .*is not the container's root|oci-gpu-hook.*exit code: 3"
# What it says where the kernel refuses.
_DENIED = r"oci-gpu-hook: .*Permission denied|oci-gpu-hook.*exit code: 7"
_WRITE = "oci_gpu_hook_t {}:dir write"
_CONTAINERS = "container_file_t"
_STOPPED = _CONFINED._replace(refused=_DENIED, avcs=None)
_CAUGHT = _CONFINED._replace(avcs=None)

HOSTILE = (
    Row(
        "hostile 1: a user's folder",
        (_CONFINED._replace(expect={_PLANT: "ENOENT"}),),
        trap=traps.FOLDER_OF_A_USER,
        runtimes=RUNC,
    ),
    Row(
        "hostile 1: a user's folder, unchecked",
        (_CONFINED._replace(expect={_PLANT: "EACCES"}, avcs=None),),
        trap=traps.FOLDER_OF_A_USER,
        unchecked="sources",
        denied="nvidia_container_t user_tmp_t:dir write",
        runtimes=RUNC,
    ),
    Row(
        "hostile 1: a user's folder of /tmp's type, unchecked",
        (Container("container_t", expect={_PLANT: "EACCES"}, avcs=None),),
        trap=traps.FOLDER_OF_A_USER._replace(type="tmp_t"),
        unchecked="sources",
        denied="container_t tmp_t:dir write",
        runtimes=CRUN,
    ),
    # As that of a user without confinement is; and the boolean says that containers may use it.
    Row(
        "hostile 1: a user's folder of MPS's type, unchecked",
        (_CONFINED._replace(expect={_PLANT: "EACCES"}, avcs=None),),
        trap=traps.FOLDER_OF_A_USER._replace(type="nvidia_mps_t"),
        unchecked="sources",
        denied="nvidia_container_t nvidia_mps_t:dir write",
        boolean="nvidia_container_use_mps",
        runtimes=CRUN,
    ),
    Row(
        "hostile 1: a user's link",
        (_CONFINED._replace(expect={_READ: "ENOENT"}),),
        trap=traps.LINK_OF_A_USER,
        runtimes=CRUN,
    ),
    Row(
        "hostile 1: a user's link, unchecked",
        (_CONFINED._replace(expect={_READ: "EACCES"}, avcs=None),),
        trap=traps.LINK_OF_A_USER,
        unchecked="sources",
        denied="nvidia_container_t var_t:file read",
        runtimes=CRUN,
    ),
    # No domain confines spc_t: this shows that the others are saved by SELinux alone.
    Row(
        "hostile 1: a user's folder, unchecked, spc_t",
        (Container("spc_t", "s0", "s0", privileged=True, expect={_PLANT: WORKS}),),
        trap=traps.FOLDER_OF_A_USER,
        unchecked="sources",
        caught=True,
        runtimes=RUNC,
    ),
    Row("hostile 2: below a clone", (_CONFINED._replace(refused=_IN_A_VOLUME),), trap=traps.CLONE),
    Row(
        "hostile 2: below a clone, unchecked",
        (_STOPPED,),
        trap=traps.CLONE,
        unchecked="mounts",
        denied=_WRITE.format("nvidia_mps_t"),
    ),
    Row(
        "hostile 2: below a clone of a container's type, unchecked",
        (_CAUGHT,),
        trap=traps.CLONE._replace(type=_CONTAINERS),
        unchecked="mounts",
        caught=True,
        runtimes=CRUN,
    ),
    Row("hostile 3: below a volume", (_CONFINED._replace(refused=_IN_A_VOLUME),), trap=traps.BELOW_A_VOLUME),
    Row(
        "hostile 3: below a volume, unchecked",
        (_STOPPED,),
        trap=traps.BELOW_A_VOLUME,
        unchecked="mounts",
        denied=_WRITE.format("var_t"),
    ),
    Row(
        "hostile 3: below a volume of /run's type, unchecked",
        (_STOPPED,),
        trap=traps.BELOW_A_VOLUME._replace(type="var_run_t"),
        unchecked="mounts",
        denied=_WRITE.format("var_run_t"),
        runtimes=CRUN,
    ),
    Row(
        "hostile 3: below a volume of a container's type, unchecked",
        (_CAUGHT,),
        trap=traps.BELOW_A_VOLUME._replace(type=_CONTAINERS),
        unchecked="mounts",
        caught=True,
        runtimes=RUNC,
    ),
    # runc mounts no volume over a root.
    Row(
        "hostile 4: a volume over the root",
        (_CONFINED._replace(refused=_NO_ROOT),),
        trap=traps.OVER_THE_ROOT,
        runtimes=CRUN,
    ),
    Row(
        "hostile 4: a volume over the root, unchecked",
        (_STOPPED,),
        trap=traps.OVER_THE_ROOT,
        unchecked="root",
        denied=_WRITE.format("var_t"),
        runtimes=CRUN,
    ),
    Row(
        "hostile 4: a volume of a container's type over the root, unchecked",
        (_CAUGHT._replace(refused="."),),
        trap=traps.OVER_THE_ROOT._replace(type=_CONTAINERS),
        unchecked="root",
        caught=True,
        runtimes=CRUN,
    ),
    Row("hostile 5: the root is moved", (_CONFINED._replace(refused=_NO_ROOT),), trap=traps.MOVED_ROOT),
    Row(
        "hostile 5: the root is moved, unchecked",
        (_STOPPED,),
        trap=traps.MOVED_ROOT,
        unchecked="root",
        denied=_WRITE.format("var_t"),
    ),
    Row(
        "hostile 5: the root is moved to /run's type, unchecked",
        (_STOPPED,),
        trap=traps.MOVED_ROOT._replace(type="var_run_t"),
        unchecked="root",
        denied=_WRITE.format("var_run_t"),
        runtimes=CRUN,
    ),
    Row(
        "hostile 5: the root is moved to a container's type, unchecked",
        (_CAUGHT._replace(refused="."),),
        trap=traps.MOVED_ROOT._replace(type=_CONTAINERS),
        unchecked="root",
        caught=True,
        runtimes=RUNC,
    ),
)

# All rows of a run.
ROWS = (*cases.ROWS, *BOUNDS, *PODS, *VENDORS, *AGENTS, *HOSTILE)
