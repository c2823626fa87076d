# SPDX-License-Identifier: Apache-2.0
"""The start of the program: it runs a hook stage by `hook`, and anything else by the command line for people.

Must import nothing before it knows which of the two is needed.
"""

from __future__ import annotations

import gc
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# OCI runtime-spec, config.md, "POSIX-platform Hooks".
_STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


def _run_stage(stage: str, arguments: list[str]) -> NoReturn:
    """Run one hook stage, and exit."""
    # A start makes too little garbage to collect.  _exit leaves it to the kernel to free everything: an orderly exit of
    # the interpreter takes a fifth of its start.  Nothing is buffered, as the hook writes by descriptor.
    gc.disable()
    from oci_gpu_hook import hook

    posix._exit(hook.main(stage, arguments))


def main() -> int:
    """Run the program; gives its exit code."""
    if len(sys.argv) > 1 and sys.argv[1] in _STAGES:
        _run_stage(sys.argv[1], sys.argv[2:])
    # `startup.linked` switches it off for every start.
    gc.enable()
    from oci_gpu_hook import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
