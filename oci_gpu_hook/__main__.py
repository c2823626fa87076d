# SPDX-License-Identifier: Apache-2.0
"""The start of the program: a hook stage goes to `hook`, a call as nvidia-container-cli to what answers it, and
anything else to the command line for people.  Must import nothing before it knows which.
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

# The entry script has this name too, for callers that know no hooks.
_CONTAINER_CLI = "nvidia-container-cli"


def _run_stage(stage: str, arguments: list[str]) -> NoReturn:
    # A start makes too little garbage to collect.  _exit leaves it to the kernel to free everything: an orderly exit of
    # the interpreter takes a fifth of its start.  Nothing is buffered, as the hook writes by descriptor.
    gc.disable()
    from oci_gpu_hook import hook

    posix._exit(hook.main(stage, arguments))


def _run_container_cli(arguments: list[str]) -> NoReturn:
    from oci_gpu_hook.errors import ApplyError, HookError, UsageError
    from oci_gpu_hook.report import sentence
    from oci_gpu_hook.request import containercli

    code = 0
    try:
        call = containercli.parse_call(arguments)
        if call.command == "configure":
            from oci_gpu_hook.runtime import configure

            code = configure.run(call)
        elif call.command in ("help", "version"):
            from oci_gpu_hook import cli

            print(containercli.USAGE if call.command == "help" else f"oci-gpu-hook {cli.VERSION}", flush=True)
        else:
            from oci_gpu_hook.node.gpus import driverlist

            print("\n".join(driverlist.COMMANDS[call.command](call)), flush=True)
    except HookError as err:
        code = sentence.failure(err)
        if isinstance(err, UsageError):
            print(containercli.USAGE, file=sys.stderr, flush=True)
    except OSError as err:
        # Of our own output, whose reader may have gone away, as `head` does.
        code = 0 if isinstance(err, BrokenPipeError) else sentence.failure(ApplyError(f"cannot go on: {err.strerror}"))
    posix._exit(code)


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in _STAGES:
        _run_stage(sys.argv[1], sys.argv[2:])
    if sys.argv[1:2] == [_CONTAINER_CLI]:
        _run_container_cli(sys.argv[2:])
    # `startup.linked` switches it off for every start.
    gc.enable()
    from oci_gpu_hook import cli

    return cli.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
