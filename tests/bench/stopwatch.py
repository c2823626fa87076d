# SPDX-License-Identifier: Apache-2.0
"""Started in the interpreter's place by the door: runs what the door wants run, and tells where the time went.

    python3 FLAGS stopwatch.py time|lines RECORD SCRIPT|-c CODE [ARG...]

`lines` counts, for each function, how many lines of it were run.  `time` wraps, from outside, the import statement
and every function of the rooms, and charges the time to the room that is at work; a room without a phase of its own
(`linux`, `errors`, ...) counts for the one that called it.
Must not: be imported, import what the hook would have to import itself, or change what the hook does.
"""

import builtins
import marshal
import posix
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# The longest beginning of a room's name decides.
PHASES = {
    "oci": "reading",
    "config": "reading",
    "request": "reading",
    "sources": "reading",
    "requirements": "reading",
    "rootfs": "reading",
    "host.": "reading",
    "host.answers": "plan",
    "decision": "plan",
    "provision": "plan",
    "selection": "plan",
    "placement": "plan",
    "plan": "plan",
    "container.mounts": "mounts",
    "container.devices": "mounts",
    "container.cgroup": "cgroup",
    "container.scope": "cgroup",
    "bpf": "cgroup",
    "systemd": "cgroup",
    "dbus": "cgroup",
    "container.devicefilter": "cgroup",
    "container.ldcache": "cache",
    "ldmerge": "cache",
    "container.labels": "labels",
    "container.": "mounts",
    "ipc": "labels",
    "telling": "records",
    "account": "records",
    "host.journal": "records",
}
IMPORTS, REST = "imports", "rest"
_PACKAGE = "oci_gpu_hook"

# `types` would be an import that the hook may have to pay for itself.
_FUNCTION = type(lambda: None)
_clock = time.perf_counter_ns
_spent: "dict[str, int]" = {}
# Until the program's own last line of imports: what loads linked rooms is no import statement.
_at_work = [IMPORTS]
_wrapped: "set[str]" = set()


class Hand:
    """Where the stopwatch stands, and how often it was pressed."""

    since = 0
    pressed = 0
    modules = 0  # how many there were when the rooms were last looked through
    depth = 0  # imports within imports


def phase(file: str) -> str:
    """The phase of a function, by the file that it was compiled from; "" is its caller's."""
    room = file.rpartition(_PACKAGE + "/")[2].removesuffix(".py").replace("/", ".")
    fitting = [start for start in PHASES if room.startswith(start)]
    return PHASES[max(fitting, key=len)] if fitting and _PACKAGE in file else ""


def charge() -> None:
    """The time since the last call goes to the room that is at work."""
    now = _clock()
    _spent[_at_work[-1]] = _spent.get(_at_work[-1], 0) + now - Hand.since
    Hand.since = now
    Hand.pressed += 1


def timed(name: str, function: "Callable[..., Any]") -> "Callable[..., Any]":
    """The function, charged to the phase `name`."""

    def run(*words: "Any", **named: "Any") -> "Any":
        if _at_work[-1] == name:
            return function(*words, **named)
        charge()
        _at_work.append(name)
        try:
            return function(*words, **named)
        finally:
            charge()
            _at_work.pop()

    return run


def wrap_rooms() -> None:
    """Every function of the rooms that have been loaded since the last time; its own time is nobody's.

    Only where no import is at work, and not before the program's own last line of imports: a linked room does not
    tell that its body has only begun.
    """
    started = hasattr(sys.modules.get(f"{_PACKAGE}.__main__"), "main")
    if Hand.depth or not started or len(sys.modules) == Hand.modules:
        return
    charge()
    _at_work[0] = REST
    Hand.modules = len(sys.modules)
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGE) and name not in _wrapped:
            _wrapped.add(name)
            wrap(module.__dict__)
    Hand.since = _clock()


def wrap(namespace: "dict[str, Any]", owner: "Any" = None) -> None:
    """The plain functions of a module or a class, and of a module's classes."""
    for name, value in list(namespace.items()):
        if isinstance(value, _FUNCTION):
            where = phase(value.__code__.co_filename)
            if where and not name.startswith("__"):
                if owner is None:
                    namespace[name] = timed(where, value)
                else:
                    setattr(owner, name, timed(where, value))
        elif owner is None and isinstance(value, type) and value.__module__ in _wrapped:
            wrap(dict(vars(value)), value)


def finish(record: str) -> None:
    """Write what was measured; the stopwatch's own time is told, not hidden."""
    charge()
    pressed, begun = Hand.pressed, _clock()
    for _ in range(1000):
        charge()
    each = (_clock() - begun) / 1000
    lines = [f"{name} {spent}\n" for name, spent in _spent.items()]
    write_record(record, [*lines, f"stopwatch {int(pressed * each)}\n"])


def write_record(record: str, lines: "list[str]") -> None:
    """At the end, whole; what a second interpreter writes comes after it."""
    fd = posix.open(record, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o644)
    posix.write(fd, "".join([*lines, "end 0\n"]).encode())
    posix.close(fd)


def count_lines(record: str) -> "Callable[[], None]":
    """From now on; gives what writes it down.  A module's own lines show what is imported."""
    counts: dict[Any, int] = {}

    def trace(frame: "Any", event: str, argument: "Any") -> "Any":
        if event != "exception":
            counts[frame.f_code] = counts.get(frame.f_code, 0) + 1
        return trace

    def write() -> None:
        sys.settrace(None)
        lines = []
        for code, times in counts.items():
            folder, _, file = code.co_filename.rpartition("/")
            ours = folder.rpartition(_PACKAGE)[1]
            where = folder.rpartition(_PACKAGE + "/")[2] + "/" if _PACKAGE + "/" in folder else ""
            lines.append(f"{where if ours else '~/'}{file}:{code.co_name} {times}\n")
        write_record(record, lines)

    sys.settrace(trace)
    return write


def main() -> None:
    """Become the program that the door starts."""
    what, record, program, *words = sys.argv[1:]
    sys.argv = ["-c", *words[1:]] if program == "-c" else [program, *words]
    code = load(words[0] if program == "-c" else None, program)
    write = count_lines(record) if what == "lines" else take_time(record)
    finish_at_exit(write)
    try:
        exec(code, {"__name__": "__main__", "__file__": program})
    finally:
        write()


def load(source: "Any", program: str) -> "Any":
    """The code that the interpreter would have run: given, a script's, or a compiled file's."""
    if source is None:
        with open(program, "rb") as file:
            source = file.read()
    if program.endswith(".pyc"):
        return marshal.loads(source[16:])
    # compile() sets up the whole of `ast` at its first call, which the interpreter's own reading of a script does
    # not: so this is done before the time is taken.
    return compile(source, program, "exec")


def take_time(record: str) -> "Callable[[], None]":
    """From now on; gives what writes it down."""
    imported = builtins.__import__

    def import_rooms(*words: "Any", **named: "Any") -> "Any":
        Hand.depth += 1
        try:
            module = imported(*words, **named)
        finally:
            Hand.depth -= 1
        wrap_rooms()
        return module

    builtins.__import__ = timed(IMPORTS, import_rooms)
    Hand.since = _clock()
    return lambda: finish(record)


def finish_at_exit(write: "Callable[[], None]") -> None:
    """Also where the program leaves by _exit."""
    leave = posix._exit

    def left(status: int) -> None:
        write()
        leave(status)

    posix._exit = left  # type: ignore[assignment]
    if "os" in sys.modules:
        sys.modules["os"]._exit = left  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
