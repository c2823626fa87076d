# SPDX-License-Identifier: Apache-2.0
"""Boot a virtual machine with an enforcing SELinux, run every case in it, and say whether all passed.

    python3 -m tests.selinux.run [--only WORD] [--policy FOLDER] [--store FOLDER] [--break FAULT] [--console]

`--only` runs the rows whose names contain a word; `--policy` takes the modules from another folder; `--store` names the
root of another module store: etc/selinux and var/lib/selinux of a host with RHEL, Fedora or Debian 13, if its
semanage.conf has a policy-version that the machine's kernel takes; `--break` plants a fault in the hook, which must
make it fail; `--console` shows all that the machine prints.  Exit status 0 only if every row has passed.
Must not decide what is tested: guest/cases.py does, and guest/policy.py what differs between policies.
"""

from __future__ import annotations

import os
import platform
import sys

from tests import machine
from tests.guest.tree import make_image
from tests.selinux.base import REPOSITORY, Base
from tests.selinux.tree import FAULTS, Tree

PATIENCE = 3600  # seconds for the machine, from power-on to power-off, on a busy host
MACHINE = ["qemu-system-x86_64", "-M", "q35", "-cpu", "max"]
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off lsm=selinux selinux=1 enforcing=1 audit=1"
    " audit_backlog_limit=8192 nokaslr systemd.show_status=0 tsc=reliable log_buf_len=4M"
)


def main() -> int:
    """Make or find the tree, renew it, boot, judge."""
    folders = (("--policy", os.path.join(REPOSITORY, "policy")), ("--store", ""))
    options = machine.options("test-selinux", FAULTS, *folders)
    if platform.machine() != "x86_64":
        raise SystemExit("test-selinux: the virtual machine is x86_64's: run this on such a machine")
    base = Base(options.store)

    def image() -> str:
        tree = Tree(base)
        tree.renew(options.policy, options.only, options.fault)
        return make_image(base.root, f"{base.folder}/root.img")

    return machine.test(MACHINE, base, KERNEL_LINE, image, patience=PATIENCE, console=options.console)


if __name__ == "__main__":
    sys.exit(main())
