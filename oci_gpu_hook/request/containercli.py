# SPDX-License-Identifier: Apache-2.0
"""The words of nvidia-container-cli, by which LXC, enroot, Apptainer, Charliecloud and ctr ask for GPUs.  Pure.

They become the same `Inputs` as an environment, so that the same settings hold.  What is needless has no effect.
"""

from __future__ import annotations

from getopt import GetoptError, getopt, gnu_getopt

from oci_gpu_hook.errors import UsageError, quoted
from oci_gpu_hook.formats.decimal import decimal
from oci_gpu_hook.record import NamedTuple
from oci_gpu_hook.request import words
from oci_gpu_hook.request.sources import Inputs

USAGE = """\
usage: nvidia-container-cli [--user] COMMAND
       configure [--pid=PID] [--device=LIST] [--CAPABILITY] [--require=EXPR] [--imex-channel=LIST] [--no-cgroups] ROOTFS
       list [--device=LIST] [--libraries] [--binaries] [--ipcs] [--firmwares] [--compat32]
       info [--csv]
oci-gpu-hook-hpc(7) has the rest"""

# Options by their letters, "" for none; with a value they end in "=".  Of these all but --root, and --ldconfig and
# --csv below, have no effect: no ldconfig runs, no module is loaded, and the journal has the record.
_GLOBAL = {"debug=": "d", "load-kmods": "k", "user": "u", "root=": "r", "ldcache=": "l", "no-pivot": "n"}
_GLOBAL |= {"no-create-imex-channels": "", "help": "h", "version": "V"}
_MIG = {"mig-config=": words.MIG_MANAGEMENT[0], "mig-monitor=": words.MIG_MANAGEMENT[1]}
_COMMON = {"device=": "d", "imex-channel=": "", "compat32": "", **dict.fromkeys(_MIG, "")}
_COMMANDS = {
    "configure": {
        **_COMMON,
        **{"pid=": "p", "require=": "r", "ldconfig=": "l", "csv=": "", "cuda-compat-mode=": ""},
        **{"compute": "c", "utility": "u", "video": "v", "graphics": "g", "display": "D", "ngx": ""},
        **dict.fromkeys(("no-cgroups", "no-devbind", "no-persistenced", "no-fabricmanager", "no-gsp-firmware"), ""),
    },
    "list": {**_COMMON, "libraries": "l", "binaries": "b", "ipcs": "i", "firmwares": "f"},
    "info": {"csv": ""},
}
_MAX_PID = 1 << 22  # proc_sys_kernel(5), pid_max


class Call(NamedTuple):
    """One call; options: without dashes, with all values that each was given ("" for those that take none)."""

    command: str
    options: dict[str, tuple[str, ...]]
    root: str

    def has(self, option: str) -> bool:
        return option in self.options

    def last(self, option: str) -> str:
        return self.options.get(option, ("",))[-1]

    def pid(self) -> int | None:
        """The container's process, None if the caller runs in the container's mount namespace."""
        found = decimal(self.last("pid"), _MAX_PID) if self.has("pid") else None
        if self.has("pid") and not found:
            raise UsageError(f"--pid is {quoted(self.last('pid'))}, which is not a process")
        return found

    def inputs(self) -> Inputs:
        """The request.  A caller who names a process is root, or has no more power than over its own containers."""
        environment = {
            words.VISIBLE_DEVICES: ",".join(filter(None, self.options.get("device", ()))) or words.NONE,
            words.DRIVER_CAPABILITIES: ",".join([name for name in words.CAPABILITIES if self.has(name)]),
            words.IMEX_CHANNELS: ",".join(self.options.get("imex-channel", ())),
        }
        environment |= {variable: self.last(option[:-1]) for option, variable in _MIG.items()}
        environment |= {f"NVIDIA_REQUIRE_{number}": it for number, it in enumerate(self.options.get("require", ()))}
        return Inputs(environment, privileged=self.has("pid"))


def parse_call(arguments: list[str]) -> Call:
    """The call with these words; UsageError for words that nvidia-container-cli does not know."""
    # --user may have a value, which getopt cannot say: whom the caller runs as, it is already.
    plain = ["--user" if word.startswith(("--user=", "-u")) else word for word in arguments]
    try:
        given, rest = getopt(plain, *_known(_GLOBAL))
        command = rest[0] if rest else ""
        for asked, letter in (("help", "h"), ("version", "V")):
            if {(f"--{asked}", ""), (f"-{letter}", "")} & {*given}:
                return Call(asked, {}, "")
        if command not in _COMMANDS:
            raise UsageError(f"unknown command {quoted(command)}" if command else "no command is named")
        known = _COMMANDS[command]
        # Not what --user has become: of configure, -u is --utility.
        more, names = gnu_getopt(arguments[len(arguments) - len(rest) + 1 :], *_known(known))
    except GetoptError as err:
        raise UsageError(f"nvidia-container-cli: {err.msg}") from err
    options: dict[str, tuple[str, ...]] = {}
    for found, table in ((given, _GLOBAL), (more, known)):
        letters = {f"-{letter}": option.rstrip("=") for option, letter in table.items() if letter}
        for name, value in [(letters.get(word, word[2:]), value) for word, value in found]:
            options[name] = (*options.get(name, ()), value)
    if len(names) != (command == "configure"):
        raise UsageError(f"{command} takes {'one root' if command == 'configure' else 'options only'}")
    call = Call(command, options, names[0] if names else "")
    if call.last("root") not in ("", "/"):
        hint = "the administrator sets driver-root, in /etc/oci-gpu-hook.conf"
        raise UsageError(f"--root={quoted(call.last('root'))} is not taken from a caller", hint)
    return call


def _known(table: dict[str, str]) -> tuple[str, list[str]]:
    """Options as getopt takes them: their letters, and their names."""
    letters = [letter + (":" if option.endswith("=") else "") for option, letter in table.items() if letter]
    return "".join(letters), [*table]
