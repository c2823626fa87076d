# SPDX-License-Identifier: Apache-2.0
"""The command line for people: shows, explains and prepares what the hook does.

Must not decide anything differently from the hook: it prints the same values that the hook would carry out.
"""

from __future__ import annotations

import os
import sys

from oci_gpu_hook.errors import OUR_BUG, ApplyError, HookError, UsageError, quoted

# As setup.cfg and the spec have it.
VERSION = "0.1.0"


def run(arguments: list[str]) -> int:
    from oci_gpu_hook.cli import limit

    return limit.run(lambda: main(arguments))


def main(arguments: list[str]) -> int:
    try:
        import click
    except ImportError:
        if sys.flags.no_site:
            # As the entry script starts it.
            seen = f"{quoted(' '.join(arguments))} is not a hook stage (people start another program of this name)"
            print(f"oci-gpu-hook: {seen}", file=sys.stderr)
            return UsageError.exit_code
        print("oci-gpu-hook: the command line needs click, which this Python lacks", file=sys.stderr)
        return OUR_BUG
    from oci_gpu_hook.cli.commands import program

    # Of one that is closed Python makes None.
    nowhere = open(os.devnull, "w")  # noqa: SIM115  # it lives as long as the program
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    # No colours if the user wants none (no-color.org) or the terminal has none; else click goes by the terminal.
    color = False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None
    try:
        result = program.main(arguments, prog_name="oci-gpu-hook", standalone_mode=False, color=color)
        # Buffered output that cannot be written must fail here, and not when the interpreter ends.
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as err:
        sentence = " ".join(err.format_message().split()).rstrip(".")
        print(f"oci-gpu-hook: {sentence[:1].lower()}{sentence[1:]}", file=sys.stderr)
        return UsageError.exit_code
    except click.Abort:
        return OUR_BUG
    except HookError as err:
        print(f"oci-gpu-hook: {err}", file=sys.stderr)
        return err.exit_code
    except (BrokenPipeError, SystemExit) as err:
        # The reader of our output went away, as `head` does; where click meets that, it leaves this in place of stdout.
        if isinstance(err, SystemExit) and not isinstance(sys.stdout, click.utils.PacifyFlushWrapper):
            raise
        sys.stderr.close()
        # A check that was cut off has not passed.
        return OUR_BUG if arguments[:1] in (["doctor"], ["validate"]) and "--help" not in arguments else 0
    except OSError as err:
        # Errors of the files that a command reads or writes are caught there: this one is of our own output.
        print(f"oci-gpu-hook: cannot go on: {err.strerror or err}", file=sys.stderr)
        # What could not be written is dropped, so that the interpreter's end does not fail again.
        os.dup2(nowhere.fileno(), 1)
        return ApplyError.exit_code
