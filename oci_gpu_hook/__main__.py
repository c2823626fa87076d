# SPDX-License-Identifier: Apache-2.0
"""Where the program starts: a hook stage goes to `hook`, anything else to the command line for people.

Must import nothing before it knows which.
"""

from __future__ import annotations

import sys

# OCI runtime-spec, config.md, "POSIX-platform Hooks".
_STAGES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)


def main() -> int:
    """The program; gives its exit code."""
    if len(sys.argv) > 1 and sys.argv[1] in _STAGES:
        from oci_gpu_hook import hook

        return hook.main(sys.argv[1], sys.argv[2:])
    from oci_gpu_hook import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
