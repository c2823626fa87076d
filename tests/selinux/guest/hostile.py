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
from .traps import Trap

_CONFINED = Container("nvidia_container_t")
# What a user's folder lets a container's program do, if nothing forbids it.
_PLANT = f"make:{MPS_FOLDER}/planted"
_READ = f"read:{MPS_FOLDER}/secret"
_CONTAINERS = "container_file_t"
# What the hook itself says, by the check that has it say so; and whether the runtime fails where there is none.
_SAID = {
    "mounts": (r"oci-gpu-hook: .*lies in a volume|oci-gpu-hook.*exit code: 7", ""),
    "root": (r"oci-gpu-hook: .*is not the container's root|oci-gpu-hook.*exit code: 3", "."),
}
# What it says where the kernel refuses.
_DENIED = r"oci-gpu-hook: .*Permission denied|oci-gpu-hook.*exit code: 7"


def _attack(name: str, trap: Trap, check: str, *others: str, of: tuple[str, ...] = ("runc", "crun")) -> tuple[Row, ...]:
    """The rows of one trap; others: more types of the host's folder; of: the runtimes."""
    said, fails = _SAID[check]
    stopped = (_CONFINED._replace(refused=_DENIED, avcs=None),)
    return (
        Row(f"hostile {name}", (_CONFINED._replace(refused=said),), trap=trap, runtimes=of),
        *(
            Row(
                f"hostile {name}, {type_}, unchecked",
                stopped,
                trap=trap._replace(type=type_),
                unchecked=check,
                denied=f"oci_gpu_hook_t {type_}:dir write",
                runtimes=of if type_ == trap.type else CRUN,
            )
            for type_ in (trap.type, *others)
        ),
        Row(
            f"hostile {name}, {_CONTAINERS}, unchecked",
            (_CONFINED._replace(refused=fails, avcs=None),),
            trap=trap._replace(type=_CONTAINERS),
            unchecked=check,
            caught=True,
            runtimes=of[-1:],
        ),
    )


def _unchecked(name: str, trap: Trap, type_: str, check: str, denied: str, boolean: str = "") -> Row:
    """A user's folder or link that the hook took: a program of `type_` does not get through it."""
    return Row(
        f"hostile 1: {name}, unchecked",
        (Container(type_, expect={check: "EACCES"}, avcs=None),),
        trap=trap,
        unchecked="sources",
        denied=f"{type_} {denied}",
        boolean=boolean,
        runtimes=CRUN,
    )


_FOLDER, _LINK = traps.FOLDER_OF_A_USER, traps.LINK_OF_A_USER
HOSTILE = (
    Row("hostile 1: a user's folder", (_CONFINED._replace(expect={_PLANT: "ENOENT"}),), trap=_FOLDER, runtimes=RUNC),
    Row("hostile 1: a user's link", (_CONFINED._replace(expect={_READ: "ENOENT"}),), trap=_LINK, runtimes=CRUN),
    _unchecked("a user's folder", _FOLDER, "nvidia_container_t", _PLANT, "user_tmp_t:dir write"),
    _unchecked("one of /tmp's type", _FOLDER._replace(type="tmp_t"), "container_t", _PLANT, "tmp_t:dir write"),
    # As that of a user without confinement is; and the boolean says that containers may use it.
    _unchecked(
        "one of MPS's type",
        _FOLDER._replace(type="nvidia_mps_t"),
        "nvidia_container_t",
        _PLANT,
        "nvidia_mps_t:dir write",
        "nvidia_container_use_mps",
    ),
    _unchecked("a user's link", _LINK, "nvidia_container_t", _READ, "var_t:file read"),
    # No domain confines spc_t: this shows that the others are saved by SELinux alone.
    Row(
        "hostile 1: a user's folder, unchecked, spc_t",
        (Container("spc_t", "s0", privileged=True, expect={_PLANT: WORKS}),),
        trap=_FOLDER,
        unchecked="sources",
        caught=True,
        runtimes=RUNC,
    ),
    *_attack("2: below a clone", traps.CLONE, "mounts"),
    *_attack("3: below a volume", traps.BELOW_A_VOLUME, "mounts", "var_run_t"),
    # runc mounts no volume over a root.
    *_attack("4: a volume over the root", traps.OVER_THE_ROOT, "root", of=CRUN),
    *_attack("5: the root is moved", traps.MOVED_ROOT, "root", "var_run_t"),
)

ROWS = (*cases.ROWS, *cases.VENDORS, *AGENTS, *HOSTILE)
