# SPDX-License-Identifier: Apache-2.0
"""Give up what the hook does not need from here on (capabilities(7), prctl(2)).

Every descriptor of the host is open: what is left is to attach trees, make folders and nodes, open a cgroup.  The hook
starts no program, and from now on it could gain nothing by one.
"""

from __future__ import annotations

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


def drop(*, as_owners: bool) -> None:
    """Keep of the capabilities those in `KEPT`, and in `AS_OWNERS` if so; gain none by any program (no_new_privs)."""
    syscalls.no_new_privs()
    kept = sum([1 << number for number in (*KEPT, *(AS_OWNERS if as_owners else ()))])
    effective, permitted, _ = syscalls.capget()
    syscalls.capset(effective & kept, permitted & kept, 0)
