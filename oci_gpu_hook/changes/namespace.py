# SPDX-License-Identifier: Apache-2.0
"""Enter the container's mount namespace, with few privileges, and leave it again (capabilities(7), prctl(2)).

A tree can be attached only from the mount namespace that it is attached in (move_mount(2)).  Every descriptor of the
host is open by then, but see `apply.joined`.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.errors import ApplyError
from oci_gpu_hook.kernel import syscalls

# By number, as in linux/capability.h.
CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, SETGID, SETUID = 0, 1, 2, 3, 6, 7
NET_ADMIN, SYS_CHROOT, SYS_ADMIN, MKNOD = 12, 18, 21, 27

# To enter a mount namespace, to mount and to change a device cgroup: SYS_ADMIN and SYS_CHROOT; to list a cgroup's
# programs: NET_ADMIN, for which BPF_PROG_QUERY takes nothing else; to make things in an image whose folders belong to
# anyone: the rest.
KEPT = (CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, NET_ADMIN, SYS_CHROOT, SYS_ADMIN, MKNOD)
# To make things as the owners of their folders, in a user namespace.
AS_OWNERS = (SETGID, SETUID)


def drop_privileges(*, as_owners: bool) -> None:
    """Keep of the capabilities those in `KEPT`, and in `AS_OWNERS` if so; gain none by any program (no_new_privs)."""
    syscalls.no_new_privs()
    kept = sum([1 << number for number in (*KEPT, *(AS_OWNERS if as_owners else ()))])
    effective, permitted = syscalls.capget()
    syscalls.capset(effective & kept, permitted & kept)


def enter(namespace: int, *, is_users: bool = False) -> int:
    """Enter the namespace that is open at `namespace`; gives a descriptor of the mount namespace that is left."""
    home = posix.open("/proc/self/ns/mnt", posix.O_RDONLY | posix.O_CLOEXEC)
    move(namespace, "enter", syscalls.CLONE_NEWUSER if is_users else syscalls.CLONE_NEWNS)
    return home


def cut_off(namespace: int, top: int) -> None:
    """Let no mount that is made in `namespace`, whose root is open at `top`, show in others."""
    home = enter(namespace)
    try:
        syscalls.mount_setattr(top, syscalls.mount_attr(0, 0, syscalls.MS_SLAVE), recursive=True)
    finally:
        move(home, "leave")


def move(namespace: int, verb: str, kind: int = syscalls.CLONE_NEWNS) -> None:
    try:
        # Named: systemd's RestrictNamespaces= refuses a call that leaves the kind open.
        syscalls.setns(namespace, kind)
    except OSError as err:
        hint = "a security policy of the host may forbid setns(2)"
        raise ApplyError(f"cannot {verb} the container's namespace: {err}", hint) from err
