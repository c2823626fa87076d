# SPDX-License-Identifier: Apache-2.0
"""`make install` and `make uninstall`: what they put where, that it works, that nothing is left.

Nothing is installed outside of a test's own folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOOR = "libexec/oci/hooks.d/oci-gpu-hook"
COMMAND = "bin/oci-gpu-hook"
LIBRARY = "lib/oci-gpu-hook"
REGISTRATION = "share/containers/oci/hooks.d/oci-gpu-hook.json"
EPOCH = 1700000000
UNCHECKED_HASH = 1  # PEP 552


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def run(*command: str | Path, **variables: str) -> Ended:
    """Run a command in an environment of our own: no variable of an outer make reaches it."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return Ended(ran.returncode, ran.stdout, ran.stderr)


def make(target: str, *settings: str, **variables: str) -> Ended:
    return run(
        "make", "--no-print-directory", target, f"PYTHON={sys.executable}", *settings, **variables
    )


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below the folder, with its mode and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, content)
    return found


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def state(bundle: Path) -> str:
    return json.dumps(
        {"ociVersion": "1.0.2", "id": "c", "status": "created", "pid": 1, "bundle": str(bundle)}
    )


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An installation that works where it is."""
    folder = tmp_path / "prefix"
    done = make("install", f"PREFIX={folder}")
    assert done.status == 0, done.err
    return folder


def test_it_installs_what_the_readme_lists_and_nothing_else(
    tmp_path: Path,
) -> None:
    done = make("install", f"DESTDIR={tmp_path}")
    assert done.status == 0, done.err
    tag = sys.implementation.cache_tag
    expected = {
        f"usr/{part}" for part in (DOOR, COMMAND, REGISTRATION, f"{LIBRARY}/installed-folders")
    }
    expected |= {
        "usr/share/man/man8/oci-gpu-hook.8",
        "usr/share/man/man5/oci-gpu-hook.conf.5",
        "usr/share/man/man8/oci_gpu_hook_selinux.8",
        "usr/share/bash-completion/completions/oci-gpu-hook",
        "usr/share/zsh/site-functions/_oci-gpu-hook",
        "usr/share/fish/vendor_completions.d/oci-gpu-hook.fish",
    }
    expected |= {
        f"usr/share/oci-gpu-hook/policy/{path.name}" for path in (ROOT / "policy").glob("*.cil")
    }
    expected.add("usr/share/oci-gpu-hook/oci-gpu-hook.conf")
    expected |= {
        f"usr/lib/systemd/system/{path.name}"
        for path in (ROOT / "packaging/systemd").iterdir()
        if path.suffix in (".service", ".path", ".timer")
    }
    expected.add("usr/lib/systemd/system-preset/90-oci-gpu-hook.preset")
    expected.add("usr/lib/udev/rules.d/60-oci-gpu-hook.rules")
    expected.add("usr/lib/tmpfiles.d/oci-gpu-hook.conf")
    for source in (ROOT / "oci_gpu_hook").rglob("*.py"):
        path = source.relative_to(ROOT)
        expected |= {
            f"usr/{LIBRARY}/{path}",
            f"usr/{LIBRARY}/{path.parent}/__pycache__/{path.stem}.{tag}.pyc",
        }
    expected.add(f"usr/{LIBRARY}/link.py")
    expected.add(f"usr/{LIBRARY}/oci_gpu_hook/__linked__/rooms.{tag}")
    assert files(tmp_path) == expected


def test_nothing_installed_names_the_destdir(tmp_path: Path) -> None:
    """It is no part of any path once the files have gone where they belong."""
    assert make("install", f"DESTDIR={tmp_path}", "PREFIX=/opt/gpu").status == 0
    named = [name for name, (_, content) in tree(tmp_path).items() if bytes(tmp_path) in content]
    assert named == []
    assert b"/opt/gpu/lib/oci-gpu-hook" in (tmp_path / "opt/gpu" / DOOR).read_bytes()


def test_the_registration_leads_to_the_door_and_closes_out_the_containers_environment(
    tmp_path: Path,
) -> None:
    assert make("install", f"DESTDIR={tmp_path}", "PREFIX=/opt/gpu").status == 0
    registration = json.loads((tmp_path / "opt/gpu" / REGISTRATION).read_text())
    hook = registration["hook"]
    assert hook["path"] == f"/opt/gpu/{DOOR}"
    assert hook["args"] == ["oci-gpu-hook", "createRuntime"]
    assert [entry.split("=")[0] for entry in hook["env"]] == ["PATH", "SHELL"]
    assert hook["timeout"] > 0
    assert registration["when"] == {"always": True}
    assert registration["stages"] == ["createRuntime"]
    assert registration["version"] == "1.0.0"


def test_a_second_installation_changes_nothing(tmp_path: Path) -> None:
    assert make("install", f"DESTDIR={tmp_path}").status == 0
    first = tree(tmp_path)
    assert make("install", f"DESTDIR={tmp_path}").status == 0
    assert tree(tmp_path) == first


def test_an_installation_over_an_older_one_leaves_none_of_its_modules(prefix: Path) -> None:
    stale = prefix / LIBRARY / "oci_gpu_hook/stale.py"
    stale.write_text("")
    assert make("install", f"PREFIX={prefix}").status == 0
    assert not stale.exists()


def test_an_installation_over_an_older_one_never_leaves_the_package_out(prefix: Path) -> None:
    """A container may start at any moment, and its door would find no rooms."""
    package, ended, missed = prefix / LIBRARY / "oci_gpu_hook", threading.Event(), []

    def watch() -> None:
        while not ended.is_set():
            if not package.exists():
                missed.append(package)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = package.stat().st_ino
    done = make("install", f"PREFIX={prefix}")
    ended.set()
    watcher.join()
    assert done.status == 0, done.err
    assert package.stat().st_ino != before
    assert not missed


def test_two_installations_of_one_source_are_equal(tmp_path: Path) -> None:
    times = []
    for name in ("one", "two"):
        done = make("install", f"DESTDIR={tmp_path / name}", SOURCE_DATE_EPOCH=str(EPOCH))
        assert done.status == 0, done.err
        times.append(
            {path.stat().st_mtime for path in (tmp_path / name).rglob("*") if path.is_file()}
        )
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert times == [{EPOCH}, {EPOCH}]


def test_the_door_answers_for_a_container_without_a_request(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"process": {"env": ["PATH=/bin"]}, "root": {"path": "rootfs"}}'
    )
    before = tree(prefix)
    door = [str(prefix / DOOR), "createRuntime"]
    ran = subprocess.run(door, input=state(tmp_path), capture_output=True, text=True, env={})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert tree(prefix) == before


def test_the_door_hands_the_exit_status_on(prefix: Path, tmp_path: Path) -> None:
    door = [str(prefix / DOOR), "createRuntime"]
    ran = subprocess.run(
        door, input=state(tmp_path / "none"), capture_output=True, text=True, env={}
    )
    assert ran.returncode == 3
    assert ran.stderr.startswith("oci-gpu-hook: cannot open ")
    assert ran.stderr.count("\n") == 1


def test_the_command_answers(prefix: Path) -> None:
    done = run(prefix / COMMAND, "--help")
    assert done.status == 0, done.err
    assert "inventory" in done.out


def test_what_is_installed_is_compiled_and_never_checked_by_time(prefix: Path) -> None:
    """On image-based systems all files have one time: a cache checked by time is never used."""
    compiled = list((prefix / LIBRARY).rglob("*.pyc"))
    assert len(compiled) == len(list((prefix / LIBRARY / "oci_gpu_hook").rglob("*.py")))
    assert {int.from_bytes(path.read_bytes()[4:8], "little") for path in compiled} == {
        UNCHECKED_HASH
    }


def test_uninstall_leaves_nothing(tmp_path: Path) -> None:
    assert make("install", f"DESTDIR={tmp_path}").status == 0
    done = make("uninstall", f"DESTDIR={tmp_path}")
    assert done.status == 0, done.err
    assert tree(tmp_path) == {}
    assert make("uninstall", f"DESTDIR={tmp_path}").status == 0


def test_uninstall_takes_away_what_a_full_disk_has_stopped(tmp_path: Path) -> None:
    """A file that did not get its name: beside each of those that engines, systemd and udev read."""
    assert make("install", f"DESTDIR={tmp_path}", "PREFIX=/usr").status == 0
    usr = tmp_path / "usr"
    units = [usr / "lib" / path for path in files(usr / "lib") if "oci-gpu-hook/" not in path]
    for path in [usr / DOOR, usr / COMMAND, usr / REGISTRATION, *units]:
        path.with_name(f"{path.name}.new").write_bytes(b"")
    assert make("uninstall", f"DESTDIR={tmp_path}", "PREFIX=/usr").status == 0
    assert tree(tmp_path) == {}


def test_uninstall_leaves_what_is_not_ours(tmp_path: Path) -> None:
    others = tmp_path / "usr" / REGISTRATION
    others = others.with_name("99-other.json")
    empty = tmp_path / "usr/libexec"
    others.parent.mkdir(parents=True)
    others.write_text("{}")
    empty.mkdir(parents=True)
    before = tree(tmp_path)
    assert make("install", f"DESTDIR={tmp_path}").status == 0
    assert make("uninstall", f"DESTDIR={tmp_path}").status == 0
    assert tree(tmp_path) == before


@pytest.mark.parametrize("part", [DOOR, COMMAND, REGISTRATION, f"{LIBRARY}/something"])
@pytest.mark.parametrize("target", ["install", "uninstall"])
def test_a_file_of_somebody_else_in_our_place_is_left_alone(
    tmp_path: Path, part: str, target: str
) -> None:
    foreign = tmp_path / "usr" / part
    foreign.parent.mkdir(parents=True)
    foreign.write_text("another program's\n")
    before = tree(tmp_path)
    done = make(target, f"DESTDIR={tmp_path}")
    assert done.status != 0
    assert "is not ours: move it away first" in done.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize("target", ["install", "uninstall"])
def test_an_installation_that_was_killed_at_its_start_is_no_obstacle(
    tmp_path: Path, target: str
) -> None:
    (tmp_path / "usr" / LIBRARY).mkdir(parents=True)
    done = make(target, f"DESTDIR={tmp_path}")
    assert done.status == 0, done.err
    assert (tmp_path / "usr" / DOOR).exists() == (target == "install")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("PYTHON=python3", "PYTHON must be an absolute path"),
        ("PYTHON=/nonexistent/python3", "is not there or older than Python 3.9"),
        ("PREFIX=usr", "PREFIX must be an absolute path"),
        ("DESTDIR=there", "DESTDIR must be an absolute path"),
        ("PREFIX=/opt/g p u", "may hold letters, digits"),
        ("PREFIX=/opt/g:pu", "PREFIX may hold no colon"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_sentence(
    tmp_path: Path, setting: str, sentence: str
) -> None:
    done = make("install", f"DESTDIR={tmp_path}", setting)
    assert done.status != 0
    assert sentence in done.err
    assert tree(tmp_path) == {}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has pip and no click."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True)
    return folder / "bin/python"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder that pip can install a stand-in for click from, so that no test needs a network."""
    folder = tmp_path / "index"
    folder.mkdir()
    information = "click-8.0.0.dist-info"
    with zipfile.ZipFile(folder / "click-8.0.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("click/__init__.py", "raise SystemExit(99)\n")
        wheel.writestr(
            f"{information}/METADATA", "Metadata-Version: 2.1\nName: click\nVersion: 8.0.0\n"
        )
        wheel.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{information}/RECORD", "")
    return folder


def test_where_python_lacks_click_one_is_put_beside_ours(
    tmp_path: Path, bare_python: Path, index: Path
) -> None:
    prefix = tmp_path / "prefix"
    packages = files(bare_python.parents[1])
    settings = [f"PREFIX={prefix}", f"PYTHON={bare_python}"]
    done = make("install", *settings, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(index))
    assert done.status == 0, done.err
    assert (prefix / LIBRARY / "vendor/click/__init__.py").exists()
    new = {name for name in files(bare_python.parents[1]) - packages if not name.endswith(".pyc")}
    assert new == set(), "the system's own packages are not ours to add to"
    assert run(prefix / COMMAND, "--help").status == 99, "the command takes the click beside it"
    assert make("uninstall", f"PREFIX={prefix}").status == 0
    assert not prefix.exists()


def test_where_click_cannot_be_had_nothing_is_registered(tmp_path: Path, bare_python: Path) -> None:
    done = make("install", f"DESTDIR={tmp_path}", f"PYTHON={bare_python}", PIP_NO_INDEX="1")
    assert done.status != 0
    assert not (tmp_path / "usr" / REGISTRATION).exists()
    assert make("uninstall", f"DESTDIR={tmp_path}").status == 0
    assert tree(tmp_path) == {}
