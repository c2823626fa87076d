# SPDX-License-Identifier: Apache-2.0
"""Where the program starts: a hook stage goes to `hook`, anything else to the command line for people.

Must import nothing before it knows which.
"""

from __future__ import annotations

import gc
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# OCI runtime-spec, config.md, "POSIX-platform Hooks".
_STAGES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)


def _run_stage(stage: str, arguments: list[str]) -> NoReturn:
    """One hook stage, from which nobody comes back."""
    # A start makes too little garbage to be worth looking for, and taking the interpreter down in order costs a fifth
    # of its own start: the kernel takes everything back.  Nothing is buffered: the hook writes by descriptor.
    gc.disable()
    from oci_gpu_hook import hook

    posix._exit(hook.main(stage, arguments))


def main() -> int:
    """The program; gives its exit code."""
    if len(sys.argv) > 1 and sys.argv[1] in _STAGES:
        _run_stage(sys.argv[1], sys.argv[2:])
    # The door has Python begin as for a stage.
    gc.enable()
    from oci_gpu_hook import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
