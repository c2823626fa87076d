# SPDX-License-Identifier: Apache-2.0
"""The interpreter's start as the door has it: our stand-in for `encodings`, and nothing from anywhere else.

The real door starts the real interpreter; only what follows the program's first lines is a test's.  What it says is
held against the same by an isolated interpreter with the standard library's own.
"""

from __future__ import annotations

import compileall
import json
import os
import pty
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit import starts
from tests.unit.starts import ROOT

STAND_IN = str(ROOT / "oci_gpu_hook/startup/encodings.py")
LOCALES: list[dict[str, str]] = [
    {},
    {"LANG": "C"},
    {"LC_ALL": "POSIX"},
    {"LANG": "de_DE.ISO-8859-1"},
    {"LC_CTYPE": "ja_JP.eucJP"},
    {"LC_ALL": "C.UTF-8", "LANG": "xx_YY.none"},
]


def run(command: list[Any], env: dict[str, str] | None = None, **how: Any) -> tuple[int, str, str]:
    """Exit code, what was said, and what was complained of."""
    if "stdin" not in how:
        how.setdefault("input", b"")
    ran = subprocess.run(command, capture_output=True, env=env or {}, timeout=60, **how)
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def through_the_door(
    folder: Path, program: str, *words: Any, library: Path = ROOT, **how: Any
) -> tuple[int, str, str]:
    return run([starts.door(folder, program, library), "-", *words], **how)


def by_itself(program: str, *words: Any, **how: Any) -> tuple[int, str, str]:
    return run([sys.executable, "-ISB", "-X", "utf8", "-c", program, "-", *words], **how)


TELL = """
import sys
import encodings
print(encodings.__file__)
print(*sys.path, sep="\\n")
"""


def test_the_stand_in_is_found_and_what_led_to_it_leaves_the_path(tmp_path: Path) -> None:
    usual = by_itself("import sys; print(*sys.path, sep='\\n')")[1].splitlines()
    code, said, complaint = through_the_door(tmp_path, TELL)
    assert (code, complaint) == (0, "")
    assert said.splitlines() == [STAND_IN, str(ROOT), *usual]


def test_a_start_has_no_codecs_and_no_module_but_the_interpreters_own(tmp_path: Path) -> None:
    names = "import sys; print(*sorted(sys.modules))"
    usual = set(by_itself(names)[1].split())
    code, said, _ = through_the_door(tmp_path, names)
    assert code == 0
    spared = {"codecs", "encodings.aliases"}
    if sys.version_info >= (3, 10):
        spared.add("encodings.utf_8")
    assert usual - set(said.split()) == spared
    assert set(said.split()) - usual == {"gc", "rooms"}


@pytest.mark.parametrize("locale", LOCALES, ids=str)
def test_the_environment_is_what_the_door_sets_whatever_the_locale(
    tmp_path: Path, locale: dict[str, str]
) -> None:
    program = """
import json, os, sys
names = [stream.encoding + " " + stream.errors for stream in (sys.stdin, sys.stdout, sys.stderr)]
own = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
print(json.dumps([own, sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), names]))
"""
    code, said, complaint = through_the_door(tmp_path, program, env=locale)
    assert (code, complaint) == (0, "")
    streams = ["utf-8 surrogateescape", "utf-8 surrogateescape", "utf-8 backslashreplace"]
    own = {
        "PYTHONPATH": str(Path(STAND_IN).parent),
        "PYTHONSAFEPATH": "1",
        "PYTHONUTF8": "1",
        "PYTHONCOERCECLOCALE": "0",
    }
    assert own == starts.environment()
    assert json.loads(said) == [own, "utf-8", "surrogateescape", streams]


def test_names_of_files_are_utf8_where_the_locale_has_another_charset(tmp_path: Path) -> None:
    made = ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(tmp_path / "de_DE.ISO-8859-1")]
    if shutil.which("localedef"):
        subprocess.run(made, check=False, capture_output=True)  # 1 where it only warns
    program = "import sys; print(sys.getfilesystemencoding(), sys.stdout.encoding)"
    env = {"LOCPATH": str(tmp_path), "LC_ALL": "de_DE.ISO-8859-1"}
    usual = run([sys.executable, "-ISB", "-c", program], env=env)
    if not usual[1].startswith("iso8859-1"):
        pytest.skip("this machine cannot make a locale")
    # The door itself is in the C locale, and hands that on.
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        env = {"LOCPATH": str(tmp_path), name: "de_DE.ISO-8859-1"}
        assert through_the_door(tmp_path, program, env=env) == (0, "utf-8 utf-8\n", "")


@pytest.mark.parametrize("locale", LOCALES, ids=str)
def test_bytes_that_are_no_utf8_come_through(tmp_path: Path, locale: dict[str, str]) -> None:
    name = b"\xff\xc3\xa4\x80\xed\xa0\x80"
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    program = """
import os, posix, sys
folder, name = sys.argv[2:]
open(os.path.join(folder, name), "w").close()
print(os.fsencode(folder), posix.environ[b"GIVEN"], os.listdir(os.fsencode(folder)))
print(ascii(name), os.listdir(folder) == [name])
sys.stdout.write(name)
"""
    given: Any = {**{key.encode(): value.encode() for key, value in locale.items()}, b"GIVEN": name}
    command: list[Any] = [starts.door(tmp_path, program), "-", folder, name]
    ran = subprocess.run(command, capture_output=True, env=given)
    assert (ran.returncode, ran.stderr) == (0, b"")
    escaped = ascii(name.decode("utf-8", "surrogateescape"))
    said = f"{folder!r} {name!r} {[name]!r}\n{escaped} True\n"
    assert ran.stdout == said.encode() + name


# Each prints what it finds, and must find what the standard library has.
CASES = {
    "names": """
import codecs
for name in ("utf8", "UTF-8", "utf_8", "u8", "Utf 8", "utf-8-sig", "latin-1", "cp1252", "idna", "utf-16", "rot13"):
    print(name, codecs.lookup(name).name, codecs.lookup(name)._is_text_encoding, len(codecs.lookup(name)))
""",
    "no such name": """
import codecs
for name in ("no such", "encodings", "aliases", "utf-8.1", "", "\\xe9"):
    try:
        print(codecs.lookup(name))
    except LookupError as err:
        print(err)
""",
    "every alias": r"""
import codecs, encodings.aliases
for name in sorted(encodings.aliases.aliases):
    try:
        print(name, codecs.lookup(name).name, "aeiou 123".encode(name))
    except LookupError as err:
        print(name, err)
""",
    "modules": """
import sys
import encodings.idna, encodings.aliases, encodings.utf_8, encodings.latin_1
from encodings import utf_8, idna as again, normalize_encoding
from encodings.utf_8 import StreamReader, getregentry
import encodings as once_more
print(encodings.latin_1.Codec.__name__, encodings.idna is again)
print(encodings.utf_8 is utf_8, utf_8.StreamReader is StreamReader)
print(encodings.aliases.aliases is encodings._aliases, encodings is once_more is sys.modules["encodings"])
print([sys.modules["encodings." + name].__file__ for name in ("idna", "aliases", "utf_8", "latin_1")])
print(encodings.__path__, encodings.__file__, encodings.__spec__.origin, encodings.__name__)
print(normalize_encoding("a b-c"), getregentry().name)
try:
    encodings.nothing
except AttributeError as err:
    print(err)
""",
    "one after another": """
import encodings.latin_1
print(encodings.latin_1.Codec().encode("\\xe9"), type(encodings.latin_1).__name__)
from encodings.latin_1 import Codec
print(Codec is encodings.latin_1.Codec)
from encodings import latin_1
print(latin_1 is encodings.latin_1)
import importlib
print(importlib.import_module("encodings.cp037").decoding_table[:3] is not None)
print(importlib.reload(encodings).__file__)
""",
    "not there": """
import encodings
print(hasattr(encodings, "nothing"), hasattr(encodings, "__all__"), hasattr(encodings, "search_function"))
try:
    import encodings.nothing
except ImportError as err:
    print(err)
try:
    from encodings import nothing
except ImportError as err:
    print(err)
""",
    "idna, punycode": r"""
print("b\xfccher.example".encode("idna"), b"xn--bcher-kva.example".decode("idna"), "b\xfc".encode("punycode"))
""",
    "streams": r"""
import codecs, io
data = "a\u00e4\u20ac\U0001f600\n\u00df".encode()
print(codecs.getreader("utf-8")(io.BytesIO(data)).readlines() == data.decode().splitlines(True))
print(codecs.getreader("utf-8")(io.BytesIO(data + b"\xff"), "replace").read() == data.decode() + "\ufffd")
written = io.BytesIO()
codecs.getwriter("utf-8")(written, errors="ignore").write("\u00e4\ud800")
print(written.getvalue(), codecs.getencoder("utf-8")("\u00e4"), codecs.getdecoder("utf-8")(b"\xc3\xa4"))
print(codecs.EncodedFile(io.BytesIO(data), "latin-1", "utf-8", "replace").read())
""",
    "split characters": r"""
import codecs
data = "a\u00e4\u20ac\U0001f600b".encode()
for size in range(1, 5):
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    print("".join(codecs.iterdecode(pieces, "utf-8")) == data.decode(), len(list(codecs.iterdecode(pieces, "utf-8"))))
print(list(codecs.iterencode(["a", "\u00e4"], "utf-8")))
for errors in ("strict", "replace", "ignore", "surrogateescape", "backslashreplace"):
    for broken in (b"\xc3", b"a\xffb", b"\xf0\x9f", b"\xed\xa0\x80"):
        try:
            print(errors, ascii("".join(codecs.iterdecode([broken[:1], broken[1:]], "utf-8", errors))))
        except UnicodeDecodeError as err:
            print(errors, err)
""",
    "states": r"""
import codecs
decoder = codecs.getincrementaldecoder("utf-8")("replace")
print(decoder.decode(input=b"a\xe2\x82"), decoder.getstate(), decoder.errors, decoder.buffer)
state = decoder.getstate()
print(ascii(decoder.decode(b"\xac")), decoder.getstate())
decoder.setstate(state)
print(ascii(decoder.decode(b"", True)), decoder.getstate())
decoder.decode(b"\xe2")
decoder.reset()
print(decoder.getstate(), decoder.decode(bytearray(b"b")), decoder.decode(memoryview(b"c"), final=True))
encoder = codecs.getincrementalencoder("utf-8")()
print(encoder.encode(input="\u00e4"), encoder.getstate(), encoder.setstate(0), encoder.reset(), encoder.errors)
try:
    encoder.encode("\udcff", True)
except UnicodeEncodeError as err:
    print(err)
""",
    "files": r"""
import io, os, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "\u00e4\udcff")
    for encoding in ("utf-8", "UTF-8", "utf8", "latin-1", "utf-16", "utf-8-sig", None):
        with open(path, "w+", encoding=encoding) as file:
            file.write("\u00e4\u00f6\n" * 5000)
            file.seek(0)
            for _ in range(2222):
                file.readline()
            place = file.tell()
            rest = file.read()
            file.seek(place)
            print(encoding, file.encoding, place, len(rest), rest == file.read())
            file.seek(0, 2)
            file.write("\u00df")
        with open(path, "a", encoding=encoding) as file:
            file.write("\u00df")
        with open(path, "rb") as file:
            print(len(file.read()))
    with open(path, "wb") as file:
        file.write(b"a\xffb")
    print(ascii(open(path, errors="surrogateescape").read()))
    try:
        open(path).read()
    except UnicodeDecodeError as err:
        print(err)
""",
    "source in another charset": r"""
import os, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "latin.py"), "wb") as file:
        file.write(b"# coding: iso-8859-15\nname = '\xa4'\n")
    sys.path.append(folder)
    import latin
    print(ascii(latin.name))
""",
    "the standard library at large": """
import argparse, ctypes, email.message, json, logging, pathlib, re, subprocess, tempfile, threading, traceback
print(json.loads(json.dumps(["\\u00e4"])), subprocess.run(["echo", "\\u00e4"], capture_output=True, text=True).stdout)
found = []
threads = [threading.Thread(target=lambda: found.append("\\xe9".encode("cp1252"))) for _ in range(8)]
print([thread.start() for thread in threads], [thread.join() for thread in threads], found)
""",
}  # fmt: skip


@pytest.mark.parametrize("program", CASES.values(), ids=CASES)
def test_all_codecs_are_as_in_the_standard_library(tmp_path: Path, program: str) -> None:
    expected = by_itself(program)
    assert expected[0] == 0 and expected[1] and not expected[2], expected
    assert through_the_door(tmp_path, program) == expected


def doors_and_its_own(folder: Path, program: str) -> list[list[str]]:
    by_itself = [sys.executable, "-ISB", "-X", "utf8", "-c", program]
    return [[str(starts.door(folder, program)), "-"], by_itself]


READ = "import sys; sys.stdout.write(sys.stdin.read(3)); sys.stdout.write(sys.stdin.read())"
TEXT = "a\u00e4\u20ac\U0001f600\r\n\u00df".encode() + b"\xff"


@pytest.mark.parametrize("begin", [0, 1, 3])
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_standard_input_is_read_from_where_it_stands(tmp_path: Path, kind: str, begin: int) -> None:
    found = []
    for command in doors_and_its_own(tmp_path, READ):
        given: dict[str, Any] = {"input": TEXT[begin:]}
        if kind == "file":
            (tmp_path / "text").write_bytes(TEXT)
            descriptor = os.open(tmp_path / "text", os.O_RDONLY)
            os.lseek(descriptor, begin, os.SEEK_SET)
            given = {"stdin": descriptor}
        ran = subprocess.run(command, stdout=subprocess.PIPE, env={}, check=True, **given)
        found.append(ran.stdout)
    assert found[0] == found[1] == TEXT[begin:]


def test_standard_input_may_be_a_terminal(tmp_path: Path) -> None:
    program = "import sys; print(sys.stdin.isatty(), sys.stdin.readline())"
    found = []
    for command in doors_and_its_own(tmp_path, program):
        ours, theirs = pty.openpty()
        os.write(ours, "\u00e4\n".encode())
        found.append(run(command, stdin=theirs))
        os.close(ours)
        os.close(theirs)
    assert found[0] == found[1] == (0, "True \u00e4\n\n", "")


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_standard_output_goes_on_where_the_file_stands(tmp_path: Path, flags: int) -> None:
    descriptor = os.open(tmp_path / "output", flags | os.O_CREAT)
    os.write(descriptor, b"before ")
    program = "import sys; print('\u00e4', sys.stdout.tell())"
    command = [str(starts.door(tmp_path, program)), "-"]
    subprocess.run(command, stdout=descriptor, env={}, check=True)
    os.close(descriptor)
    assert (tmp_path / "output").read_text() == "before \u00e4 7\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(tmp_path: Path, closed: str) -> None:
    program = "import sys; open(sys.argv[2], 'w').write('started')"
    shell = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh"]
    command = [*shell, starts.door(tmp_path, program), "-", tmp_path / "output"]
    assert run(command) == (0, "", "")
    assert (tmp_path / "output").read_text() == "started"


def test_the_state_is_handed_over_as_it_is(tmp_path: Path) -> None:
    """With the bundle as the folder that it begins in, and a state that is no UTF-8."""
    program = "import posix, sys; print(posix.environ[b'OCI_GPU_HOOK_STATE'], sys.argv)"
    (tmp_path / "config.json").write_text("{")
    state = b'{"bundle": "/\xff"}'
    ran = run([starts.door(tmp_path, program), "createRuntime"], input=state, cwd=tmp_path)
    assert ran == (0, f"{state!r} ['-c', 'createRuntime']\n", "")


def poison(folder: Path) -> Path:
    """A folder in which every module that an interpreter might look for says that it was found."""
    folder.mkdir()
    names = {"oci_gpu_hook", "sitecustomize", "usercustomize", *sys.builtin_module_names}
    standard = Path(os.__file__).parent
    names |= {path.stem for path in standard.iterdir() if path.suffix == ".py" or path.is_dir()}
    names |= {path.name.partition(".")[0] for path in (standard / "lib-dynload").glob("*.so")}
    for name in names:
        text = f"open({str(folder / 'found')!r}, 'a').write('{name} ')\n"
        (folder / f"{name}.py").write_text(text)
    for package in ("encodings", "oci_gpu_hook"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text((folder / f"{package}.py").read_text())
    for name in ("posix", "gc", "marshal", "_json", "encodings", "linecache", "oci_gpu_hook"):
        assert (folder / f"{name}.py").exists()
    return folder


FLAGS = """
import sys, os
print(sys.flags, sys.path, sorted(sys.modules), sys.warnoptions, sys._xoptions, sys.breakpointhook)
print(sorted(name for name in os.environ if name.startswith("PYTHON")), sys.pycache_prefix, sys.dont_write_bytecode)
print(sys.prefix, sys.executable, sys.stdin.encoding, sys.stdout.errors, sys.stdout.line_buffering)
import gc, faulthandler, tracemalloc
print(gc.isenabled(), faulthandler.is_enabled(), tracemalloc.is_tracing(), sys.getfilesystemencoding())
"""
HOSTILE = {
    "PYTHONPATH": "{poison}",
    "PYTHONHOME": "/nowhere",
    "PYTHONSTARTUP": "{poison}/gc.py",
    "PYTHONINSPECT": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONBREAKPOINT": "os.abort",
    "PYTHONHASHSEED": "no number",
    "PYTHONIOENCODING": "utf-16:strict",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "warn",
    "PYTHONSAFEPATH": "",
    "PYTHONVERBOSE": "1",
    "PYTHONDEBUG": "1",
    "PYTHONOPTIMIZE": "2",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDEVMODE": "1",
    "PYTHONMALLOC": "debug",
    "PYTHONMALLOCSTATS": "1",
    "PYTHONTRACEMALLOC": "5",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONPROFILEIMPORTTIME": "1",
    "PYTHONPYCACHEPREFIX": "{poison}",
    "PYTHONPLATLIBDIR": "nowhere",
    "PYTHONEXECUTABLE": "/nowhere/python",
    "PYTHONUSERBASE": "{poison}",
    "PYTHONINTMAXSTRDIGITS": "1",
    "PYTHONASYNCIODEBUG": "1",
    "PYTHON_FROZEN_MODULES": "off",
    "PYTHON_CPU_COUNT": "no number",
    "PYTHON_GIL": "no number",
    "PYTHON_NO_SUCH": "x",
}


@pytest.mark.parametrize("name", [*HOSTILE, "all of them"])
def test_no_variable_from_outside_reaches_the_interpreter(tmp_path: Path, name: str) -> None:
    folder = poison(tmp_path / "poison")
    expected = through_the_door(tmp_path, FLAGS)
    assert expected[0] == 0 and expected[1] and not expected[2], expected
    given = {key: value.format(poison=folder) for key, value in HOSTILE.items()}
    env = given if name == "all of them" else {name: given[name]}
    assert through_the_door(tmp_path, FLAGS, env=env) == expected
    assert not (folder / "found").exists()


# As an interpreter ends that has met a fault of ours: the traceback is what imports most.
FAILS = "from oci_gpu_hook import errors, linux, ldso\nimport json\nraise ValueError('\\u00e4')"


@pytest.mark.parametrize("main", [starts.MAIN, FAILS, "import encodings.idna, codecs, linecache"])
@pytest.mark.parametrize("devices", ["void", "0"])
def test_no_module_comes_from_the_bundle(tmp_path: Path, main: str, devices: str) -> None:
    """Runtimes start hooks in the bundle, which is a container's; Python looks for modules where it is started."""
    bundle = poison(tmp_path / "bundle")
    config = {
        "root": {"path": "rootfs"},
        "process": {"env": [f"NVIDIA_VISIBLE_DEVICES={devices}"]},
    }
    (bundle / "config.json").write_text(json.dumps(config))
    (bundle / "rootfs").mkdir()
    (tmp_path / "host").mkdir()
    state = json.dumps({"id": "c", "pid": os.getpid(), "bundle": str(bundle)}).encode()
    # With an option the door leaves the state where it is: both ways are to be seen.
    for options in ([], ["--host-root", str(tmp_path / "host")]):
        command = [starts.door(tmp_path, main), "createRuntime", *options]
        code, _, complaint = run(command, input=state, cwd=bundle)
        assert not (bundle / "found").exists(), (bundle / "found").read_text()
        assert code == (1 if main == FAILS else code), complaint
        assert ("Traceback" in complaint) == (main == FAILS), complaint


@pytest.fixture()
def library(tmp_path: Path) -> Path:
    """The package as an installation has it, compiled by the Python that runs this."""
    path = tmp_path / "library"
    shutil.copytree(
        ROOT / "oci_gpu_hook",
        path / "oci_gpu_hook",
        ignore=shutil.ignore_patterns("__pycache__", "__linked__"),
    )
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(path, quiet=1, invalidation_mode=mode)
    return path


def compiled(library: Path) -> Path:
    (found,) = (library / "oci_gpu_hook/startup/__pycache__").glob("encodings.*.pyc")
    return found


def test_the_compiled_stand_in_is_what_is_read(tmp_path: Path, library: Path) -> None:
    (library / "oci_gpu_hook/startup/encodings.py").write_text("raise SystemExit('the source')\n")
    code, said, complaint = through_the_door(tmp_path, TELL, library=library)
    assert (code, complaint) == (0, "")
    assert said.splitlines()[0] == str(library / "oci_gpu_hook/startup/encodings.py")


@pytest.mark.parametrize("damage", ["missing", "of another version", "cut short", "empty"])
def test_without_the_compiled_stand_in_its_source_serves(
    tmp_path: Path, library: Path, damage: str
) -> None:
    data = compiled(library).read_bytes()
    compiled(library).write_bytes(
        {"of another version": b"\0\0\r\n" + data[4:], "cut short": data[:9]}.get(damage, b"")
    )
    if damage == "missing":
        shutil.rmtree(compiled(library).parent)
    code, said, complaint = through_the_door(tmp_path, TELL, library=library)
    assert (code, complaint) == (0, "")
    assert said.splitlines()[0] == str(library / "oci_gpu_hook/startup/encodings.py")


def test_without_the_stand_in_the_standard_library_serves(tmp_path: Path, library: Path) -> None:
    """As for a moment in an update, which puts file after file into place."""
    expected = by_itself("import encodings; print(encodings.__file__)")
    (library / "oci_gpu_hook/startup/encodings.py").unlink()
    compiled(library).unlink()
    program = "import encodings; print(encodings.__file__)"
    assert through_the_door(tmp_path, program, library=library) == expected


OTHERS = [f"3.{minor}" for minor in range(9, 15) if minor != sys.version_info[1]]


def another_python(version: str) -> Path:
    """On PATH, or as a pyenv version, whose shim on PATH may not start."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = [Path(folder, f"python{version}") for folder in os.get_exec_path()]
    for path in (*on_path, *pyenv.glob(f"versions/{version}.*/bin/python3")):
        if path.exists() and not subprocess.run([path, "-V"], capture_output=True).returncode:
            return path
    pytest.skip(f"this machine has no Python {version}")


@pytest.mark.parametrize("version", OTHERS)
def test_another_python_than_the_one_that_compiled_starts(
    tmp_path: Path, library: Path, version: str
) -> None:
    """As after an update of Python.  It compiles the source for itself."""
    found = another_python(version)
    door = starts.door(tmp_path, TELL, library)
    door.write_text(door.read_text().replace(sys.executable, str(found)))
    code, said, complaint = run([door, "-"], env={"PATH": os.environ["PATH"]})
    assert (code, complaint) == (0, "")
    assert said.splitlines()[:2] == [
        str(library / "oci_gpu_hook/startup/encodings.py"),
        str(library),
    ]
    assert not any("startup" in line for line in said.splitlines()[2:])
