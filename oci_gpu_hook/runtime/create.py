# SPDX-License-Identifier: Apache-2.0
"""The hook's entry in a bundle's config.json, for engines that read no hooks.d.

hooks.d/oci-gpu-runtime starts this where it does not add the hook itself, with the words CONFIG HOOK LOG: config.json,
the hook as it is to be there, and the runtime's log, "" for none.  config.json is spliced: what this module does not
know of stays as its engine wrote it.  The hook decides, not this.
"""

from __future__ import annotations

import posix
import sys

from oci_gpu_hook.errors import DONE, ApplyError, BundleError, RequestError
from oci_gpu_hook.formats import jsontext
from oci_gpu_hook.kernel.descriptors import closing, replace
from oci_gpu_hook.kernel.filetypes import is_regular, stamp
from oci_gpu_hook.report import sentence
from oci_gpu_hook.request.state import ExcessError, State, object_of, open_file, read_bytes, read_object

_STAGE = "createRuntime"
# Hooks that do the job, by their names, ours and NVIDIA's; and at these stages: later they have nothing to do.
_DO_THE_JOB = ("oci-gpu-hook", "oci-gpu-hook-start", "nvidia-container-runtime-hook", "nvidia-container-toolkit")
_STAGES_OF_THE_JOB = ("prestart", _STAGE, "createContainer")


def main() -> None:
    config, hook, log = sys.argv[1:]
    try:
        add_hook(config, hook)
    except Exception as err:
        posix._exit(failure(err, config, log))
    posix._exit(DONE)


def failure(error: Exception, config: str, log: str) -> int:
    """Say why nothing is done, in the runtime's log too; gives the exit code, 0 for a container without a request."""
    code = sentence.failure(error)
    if not _asks(config):
        return DONE
    if log.startswith("/"):
        from oci_gpu_hook.report import crun

        crun.append(log, crun.as_json("oci-gpu-runtime", str(error)), posix.O_CREAT)  # it may not be there yet
    return code


def add_hook(config: str, hook: str) -> None:
    with closing(open_file(config, posix.O_NONBLOCK | posix.O_NOFOLLOW)) as fd:
        before = posix.fstat(fd)
        if not is_regular(before):
            raise BundleError(f"{config} is not a regular file")
        data = read_bytes(fd, config)
    hooks = object_of(data, config).get("hooks") or {}
    if not isinstance(hooks, dict) or not all([it is None or isinstance(it, list) for it in hooks.values()]):
        raise BundleError(f"{config} is of the wrong shape: hooks has no lists")
    there = [it for stage in _STAGES_OF_THE_JOB for it in hooks.get(stage) or () if isinstance(it, dict)]
    doing = [it.get("args") for it in there if str(it.get("path")).rpartition("/")[2] in _DO_THE_JOB]
    by_cdi = [words for words in doing if isinstance(words, list) and any([f"{it}"[:5] == "--cdi" for it in words])]
    # What a CDI spec of ours has started gives that spec's devices alone.
    if len(doing) > len(by_cdi) or (by_cdi and not _asks(config)):
        return
    _replace(config, before, with_hook(data.decode(), hook, bool(hooks.get(_STAGE))).encode())


def _asks(config: str) -> bool:
    from oci_gpu_hook.asking import Options, Question
    from oci_gpu_hook.request import sources
    from oci_gpu_hook.request.bundle import Bundle

    # Which variables ask beside, the administrator says.
    variables = sources.swarm_variables(None)
    try:
        question = Question(Bundle("", read_object(config, open_file(config))), State(), Options())
        return question.may_ask() or any([name in question.inputs.environment for name in variables])
    except ExcessError as err:
        return err.may_ask(variables)
    except (BundleError, RequestError):
        return True


def with_hook(text: str, hook: str, others: bool) -> str:
    """hook: as JSON; others: whether it goes behind those of its stage, or in their place."""
    at = text.index("{")
    hooks = jsontext.place(text, at, "hooks")
    if hooks is None or text[hooks[0]] != "{":
        return _with_member(text, at, "hooks", hooks, f'{{"{_STAGE}":[{hook}]}}')
    stage = jsontext.place(text, hooks[0], _STAGE)
    if stage is None or not others:
        return _with_member(text, hooks[0], _STAGE, stage, f"[{hook}]")
    return f"{text[: stage[1] - 1]},{hook}{text[stage[1] - 1 :]}"


def _with_member(text: str, at: int, name: str, old: tuple[int, int] | None, value: str) -> str:
    """The object that begins at `at` with a member's `value` in the place of the `old` one, or as its first."""
    if old is not None:
        return f"{text[: old[0]]}{value}{text[old[1] :]}"
    comma = "," if jsontext.members(text, at) else ""
    return f'{text[: at + 1]}"{name}":{value}{comma}{text[at + 1 :]}'


def _replace(config: str, before: posix.stat_result, data: bytes) -> None:
    """BundleError if config.json has changed since it had the status `before`."""
    new = f"{config}.oci-gpu-runtime-{posix.getpid()}"

    def ready(fd: int) -> None:
        posix.fchown(fd, before.st_uid, before.st_gid)
        posix.fchmod(fd, before.st_mode & 0o7777)
        if stamp(posix.stat(config)) != stamp(before):
            raise BundleError(f"{config} was changed while the hook was added")

    try:
        replace(config, data, new, ready)
    except OSError as err:
        raise ApplyError(f"cannot write {config}: {err.strerror}", "the administrator must see to its folder") from err
