# SPDX-License-Identifier: Apache-2.0
"""The one loop that carries a plan out.  Decides nothing.

If a required operation fails, all that was done is taken back, and the container is stopped.  An optional one that
fails is taken back alone, and noted.
"""

from __future__ import annotations

import posix

from oci_gpu_hook.changes import namespace
from oci_gpu_hook.changes.tree import Tree, Undo
from oci_gpu_hook.errors import ApplyError, DriverError, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oci_gpu_hook.container.process import Process
    from oci_gpu_hook.host.root import HostRoot
    from oci_gpu_hook.operations import Operation, Perform
    from oci_gpu_hook.planning.plan import Plan

    Steps = list[tuple[Operation, Perform]]

_SHOWN = "'oci-gpu-hook plan' shows every step"


def run(plan: Plan, host: HostRoot, root_fd: int, process: Process, *, opens_root: bool = False) -> list[str]:
    """Gives a sentence for each operation that was left undone.  DriverError if a required file of the host is gone,
    ApplyError if a required operation fails.  opens_root: see `Tree.make_writable`.
    """
    # An engine's umask may be 077, and modes are meant as they are written.
    posix.umask(0)
    undo = Undo()
    notes: list[str] = []
    try:
        steps = _prepared(plan.operations, host, undo, notes)
        if plan.label:
            # A host without SELinux does not load it.
            from oci_gpu_hook.changes import contextset

            # Mount points and nodes are to bear the container's label from the moment that they exist.
            contextset.create_as(plan.label)
        inside = process.open("ns/mnt", posix.O_RDONLY)
        # All of the host that is needed is open.
        as_owners = plan.layout.user_namespace
        namespace.drop_privileges(as_owners=as_owners)
        home = namespace.enter(inside)
        own = plan.container.own_mounts
        tree = Tree(root_fd, own, undo, plan.label, as_owners=as_owners, is_layer=plan.container.is_layer)
        _perform_all(steps, tree, home, notes, opens_root=opens_root)
    except BaseException:
        undo.take_back()
        raise
    # Some hundred descriptors are open.  They close with the process, which ends with this start.
    return notes


def joined(process: Process) -> bool:
    """Whether this start goes on in the namespaces of `process`, which show the host's files until it has its root."""
    # Engines without root are root in a namespace of their own.  A user's runc, as Slurm starts it, has none around it.
    if posix.geteuid() == 0:
        return False
    namespace.enter(process.open("ns/user", posix.O_RDONLY), is_users=True)
    namespace.enter(process.open("ns/mnt", posix.O_RDONLY))
    return True


def cut_off(process: Process) -> None:
    """Let no mount in the namespace of `process` show on the host; gVisor's runtime sees to that after its call."""
    try:
        namespace.cut_off(process.open("ns/mnt", posix.O_RDONLY), process.open("root", posix.O_PATH))
    except OSError as err:
        raise ApplyError(f"cannot cut the container's mounts off from the host's: {reason(err)}", _SHOWN) from err


def _prepared(operations: tuple[Operation, ...], host: HostRoot, undo: Undo, notes: list[str]) -> Steps:
    """An optional operation that cannot be prepared is left out, and noted."""
    steps = []
    for operation in operations:
        try:
            steps.append((operation, operation.prepare(host, undo)))
        except OSError as err:
            sentence = f"cannot {operation.describe()}: {reason(err)}"
            if operation.required:
                raise DriverError(sentence, "run 'oci-gpu-hook inventory refresh', or fix the driver") from err
            notes.append(sentence)
    return steps


def _perform_all(steps: Steps, tree: Tree, home: int, notes: list[str], *, opens_root: bool) -> None:
    before = tree.undo.mark()
    try:
        if opens_root:
            tree.make_writable()
        for operation, perform in steps:
            _perform(operation, perform, tree, notes)
        _close(tree)
        namespace.move(home, "leave")
    except BaseException:
        # From outside its mount namespace the kernel refuses to unmount what is in it.
        tree.undo.take_back(before)
        try:
            namespace.move(home, "leave")
        except ApplyError:
            # The process ends here, and the error that is on its way says more.
            pass
        raise


def _close(tree: Tree) -> None:
    try:
        tree.make_readonly()
    except OSError as err:
        raise ApplyError(f"cannot make the driver's folder read-only: {reason(err)}", _SHOWN) from err


def _perform(operation: Operation, perform: Perform, tree: Tree, notes: list[str]) -> None:
    before = tree.undo.mark()
    try:
        note = perform(tree)
    except OSError as err:
        note = f"cannot {operation.describe()}: {reason(err)}"
        if operation.required:
            raise ApplyError(note, _SHOWN) from err
        tree.undo.take_back(before)
    if note:
        notes.append(note)
