# SPDX-License-Identifier: Apache-2.0
"""`make install` and `make uninstall`: what they put where, that it works, their order, that nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.integration.engines import meanwhile
from tests.selinux.files import write

ROOT = Path(__file__).resolve().parents[2]
ENTRY, START = "libexec/oci/hooks.d/oci-gpu-hook", "libexec/oci-gpu-hook-start"
COMMAND = "bin/oci-gpu-hook"
RUNTIME = "bin/oci-gpu-runtime"
LIBRARY = "lib/oci-gpu-hook"
DOCKERS = "bin/nvidia-container-runtime-hook"
LINKS = {"install-docker": DOCKERS, "install-cli": "bin/nvidia-container-cli"}
TARGET = "../libexec/oci/hooks.d/oci-gpu-hook"
REGISTRATION = "share/containers/oci/hooks.d/oci-gpu-hook.json"
EPOCH = 1700000000
UNITS = (".service", ".path", ".timer")
UNCHECKED_HASH = 1  # PEP 552

Ended = subprocess.CompletedProcess[str]


def run(*command: str | Path, **variables: str) -> Ended:
    """Run a command in an environment of our own: no variable of an outer make reaches it."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


# An installation makes the folder in /run: in one of its own, so that this machine gets none.
ALONE = ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-euc")
COVERED = 'mount -t tmpfs none /run; exec "$@"'


def make(target: str, *settings: str, **variables: str) -> Ended:
    words = ("sh", "make", "--no-print-directory", target, f"PYTHON={sys.executable}", *settings)
    return run(*ALONE, COVERED, *words, **variables)


def made(target: str, *settings: str, **variables: str) -> str:
    """What it says; it must have succeeded."""
    done = make(target, *settings, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, content)
    return found


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def destination(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation below a folder from which it would be packed."""
    folder = tmp_path_factory.mktemp("destination")
    made("install", f"DESTDIR={folder}", SOURCE_DATE_EPOCH=str(EPOCH))
    return folder


@pytest.fixture
def own(destination: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test that changes it; as what is to be packed it has no path of its place in it."""
    return Path(shutil.copytree(destination, tmp_path / "own", symlinks=True))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place") / "prefix"
    made("install", f"PREFIX={folder}")
    return folder


def test_it_installs_what_the_readme_lists_and_nothing_else(destination: Path) -> None:
    tag = sys.implementation.cache_tag
    packaging, library = ROOT / "packaging", f"usr/{LIBRARY}"
    units = [it for it in (packaging / "systemd").iterdir() if it.suffix in UNITS]
    expected = {
        *(f"usr/{part}" for part in (ENTRY, START, COMMAND, RUNTIME, REGISTRATION)),
        *(f"usr/share/man/man{it.stem[-1]}/{it.stem}" for it in packaging.glob("man/*.rst")),
        "usr/share/bash-completion/completions/oci-gpu-hook",
        "usr/share/zsh/site-functions/_oci-gpu-hook",
        "usr/share/fish/vendor_completions.d/oci-gpu-hook.fish",
        *(f"usr/share/selinux/packages/oci-gpu-hook/{it.name}" for it in ROOT.glob("policy/*.cil")),
        "usr/share/oci-gpu-hook/oci-gpu-hook.conf",
        "usr/share/oci-gpu-hook/vendor.schema.json",
        *(f"usr/share/oci-gpu-hook/prometheus/{name}" for name in ("README.md", "dashboard.json")),
        *(f"usr/share/oci-gpu-hook/prometheus/{name}" for name in ("oci-gpu-hook.rules.yaml", "prometheusrule.yaml")),
        "usr/share/oci-gpu-hook/swarm/make-worker.sh",
        f"{library}/installed-vendors",
        *(
            f"usr/share/oci-gpu-hook/vendors/{it.name}"
            for it in packaging.glob("vendors/*.json")
            if it.name != "vendor.schema.json"
        ),
        *(f"usr/lib/systemd/system/{it.name}" for it in units),
        "usr/lib/systemd/system-preset/90-oci-gpu-hook.preset",
        "usr/lib/udev/rules.d/60-oci-gpu-hook.rules",
        "usr/lib/tmpfiles.d/oci-gpu-hook.conf",
        *(f"{library}/{it}" for it in ("installed-folders", "in-use.sh", "link.py")),
        f"{library}/oci_gpu_hook/__linked__/modules.{tag}",
    }
    for source in (ROOT / "oci_gpu_hook").rglob("*.py"):
        path = source.relative_to(ROOT)
        expected.add(f"{library}/{path}")
        expected.add(f"{library}/{path.parent}/__pycache__/{path.stem}.{tag}.pyc")
    assert files(destination) == expected
    # On image-based systems all files have one time: a cache that is checked by time is never used.
    compiled = destination.rglob("*.pyc")
    kinds = {int.from_bytes(path.read_bytes()[4:8], "little") for path in compiled}
    assert kinds == {UNCHECKED_HASH}


def test_a_clone_installs_what_git_does_not_hold(destination: Path, tmp_path: Path) -> None:
    """Manuals, completions and the PrometheusRule are made in it first."""
    listed = run("make", "--silent", "--no-print-directory", "-C", str(ROOT), "list-generated").stdout.split()
    for name in ("hooks.d", "oci_gpu_hook", "packaging", "policy"):
        shutil.copytree(ROOT / name, tmp_path / "clone" / name)
    for name in ("Makefile", "setup.cfg"):
        shutil.copy(ROOT / name, tmp_path / "clone")
    for name in listed:
        (tmp_path / "clone" / name).unlink()
    done = run("make", "-C", f"{tmp_path}/clone", f"PYTHON={sys.executable}", f"DESTDIR={tmp_path}/it", "install")
    assert done.returncode == 0, done.stderr
    assert len(listed) > 20
    assert files(tmp_path / "it") == files(destination)


def test_the_registration_has_an_environment_of_its_own(tmp_path: Path) -> None:
    """It is no part of any path once the files have gone where they belong."""
    assert make("install", f"DESTDIR={tmp_path}", "PREFIX=/opt/gpu").returncode == 0
    named = [name for name, (_, content) in tree(tmp_path).items() if bytes(tmp_path) in content]
    assert named == []
    assert b"/opt/gpu/lib/oci-gpu-hook" in (tmp_path / "opt/gpu" / ENTRY).read_bytes()
    registration = json.loads((tmp_path / "opt/gpu" / REGISTRATION).read_text())
    hook = registration.pop("hook")
    assert [entry.split("=")[0] for entry in hook.pop("env")] == ["PATH", "SHELL"]
    assert hook == {"path": f"/opt/gpu/{ENTRY}", "args": ["oci-gpu-hook", "createRuntime"]}
    assert registration == {"version": "1.0.0", "when": {"always": True}, "stages": ["createRuntime"]}


def test_vendors_files_of_others_stay_and_those_that_are_dropped_go(own: Path) -> None:
    vendors, at = own / "usr/share/oci-gpu-hook/vendors", f"DESTDIR={own}"
    # One of another's, and one as an earlier release left it, which had one more.
    for name in ("others.json", "dropped.json"):
        (vendors / name).write_text("{}")
    with (own / f"usr/{LIBRARY}/installed-vendors").open("a") as listed:
        listed.write("dropped.json\n")
    made("install", at)
    names = {path.name for path in vendors.iterdir()}
    assert {"others.json", "amd.json"} <= names and "dropped.json" not in names
    made("uninstall", at)
    assert [path.name for path in vendors.iterdir()] == ["others.json"]


def test_two_are_equal_and_uninstall_leaves_nothing(destination: Path, tmp_path: Path) -> None:
    """Also where a full disk has stopped one: a file did not get its name, beside each that others read."""
    usr = tmp_path / "usr"
    others = (usr / REGISTRATION).with_name("99-other.json")
    write(others, "{}")
    (usr / "libexec").mkdir()
    before, foreign = tree(tmp_path), str(others.relative_to(tmp_path))
    made("install", f"DESTDIR={tmp_path}", SOURCE_DATE_EPOCH=str(EPOCH))
    found, whole = tree(tmp_path), tree(destination)
    # Which folders it has made is another's here.
    for name in (foreign, f"usr/{LIBRARY}/installed-folders"):
        found.pop(name)
        whole.pop(name, None)
    assert found == whole
    ours = [tmp_path / name for name in files(tmp_path) - {foreign}]
    assert {path.stat().st_mtime for path in ours} == {EPOCH}
    units = [path for path in ours if path.is_relative_to(usr / "lib") and "oci-gpu-hook/" not in str(path)]
    for path in [usr / part for part in (ENTRY, START, COMMAND, RUNTIME, REGISTRATION)] + units:
        path.with_name(f"{path.name}.new").write_bytes(b"")
    for _ in range(2):
        assert make("uninstall", f"DESTDIR={tmp_path}").returncode == 0
        assert tree(tmp_path) == before


def test_the_folder_in_run_is_there_at_once_but_not_in_what_is_to_be_packed(destination: Path, tmp_path: Path) -> None:
    """systemd-tmpfiles makes it at the next boot; until then nothing could be saved."""
    words = f"make --silent {{}} PYTHON={sys.executable} PREFIX={tmp_path}"
    packed = f"DESTDIR={tmp_path}/packed >/dev/null"
    shown = 'stat -c "%n %a %u" /run/oci-gpu-hook'
    script = f"""mount -t tmpfs none /run; umask 077
{words.format("install")} >/dev/null; {shown}
: >/run/oci-gpu-hook/inventory; {words.format("install")} >{tmp_path}/said; ls /run/oci-gpu-hook
{words.format("install")} {packed}; {words.format("uninstall")} {packed}; ls /run
{words.format("uninstall")} >/dev/null; ls /run
{words.format("install")} {packed}; ls /run
"""
    done = run(*ALONE, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/run/oci-gpu-hook 755 0\ninventory\noci-gpu-hook\n"
    assert "cannot be made" not in (tmp_path / "said").read_text()
    assert not (destination / "run").exists()


# A system without a /run, as a container's image may have it; its folders are the machine's.
WITHOUT_RUN = """
mount -t tmpfs none /mnt
for name in /*; do
    if [ -L $name ]; then cp -P $name /mnt/
    elif [ -d $name ] && [ $name != /run ]; then mkdir /mnt$name && mount --rbind $name /mnt$name; fi
done
exec chroot /mnt sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
"""


def test_without_a_run_the_folder_is_not_missed(tmp_path: Path) -> None:
    words = ("make", "--silent", f"PYTHON={sys.executable}", f"PREFIX={tmp_path}")
    done = run(*ALONE, WITHOUT_RUN, "sh", *words, "install")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"installed {tmp_path}/{ENTRY}" in done.stdout
    assert "/run" not in done.stdout


def test_an_older_installation_is_replaced_in_one_step(prefix: Path) -> None:
    """A container may start at any moment, and its entry script would find no modules, or no vendor's flag."""
    first = tree(prefix)
    (prefix / LIBRARY / "oci_gpu_hook/stale.py").write_text("")
    package, vendor = prefix / LIBRARY / "oci_gpu_hook", prefix / "share/oci-gpu-hook/vendors/amd.json"
    before, there = package.stat().st_ino, set[bool]()
    with meanwhile(lambda: there.add(package.exists() and vendor.exists())):
        made("install", f"PREFIX={prefix}")
    assert package.stat().st_ino != before
    assert there == {True}
    assert tree(prefix) == first


def test_what_is_installed_works_and_changes_nothing(prefix: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"process": {"env": ["PATH=/bin"]}, "root": {"path": "rootfs"}}')
    before = tree(prefix)
    state = {"ociVersion": "1.0.2", "id": "c", "status": "created", "pid": 1}
    for bundle, status, said in ((tmp_path, 0, ""), ("/none", 3, "oci-gpu-hook: cannot open ")):
        text = json.dumps({**state, "bundle": str(bundle)})
        entry = [str(prefix / ENTRY), "createRuntime"]
        ran = subprocess.run(entry, input=text, capture_output=True, text=True, env={})
        assert (ran.returncode, ran.stdout) == (status, "")
        assert ran.stderr.startswith(said)
        assert ran.stderr.count("\n") == (1 if said else 0)
    done = run(prefix / COMMAND, "--help")
    assert done.returncode == 0, done.stderr
    assert "inventory" in done.stdout
    assert tree(prefix) == before


@pytest.mark.parametrize("part", [ENTRY, START, COMMAND, RUNTIME, REGISTRATION, f"{LIBRARY}/something"])
@pytest.mark.parametrize("target", ["install", "uninstall"])
def test_a_foreign_file_in_our_place_is_left(tmp_path: Path, part: str, target: str) -> None:
    foreign = tmp_path / "usr" / part
    write(foreign, "another program's\n")
    before = tree(tmp_path)
    done = make(target, f"DESTDIR={tmp_path}")
    assert done.returncode != 0
    assert "is not ours: move it away first" in done.stderr
    assert tree(tmp_path) == before


@pytest.mark.parametrize(("target", "name"), LINKS.items())
def test_a_link_is_made_on_demand_and_goes_with_the_rest(own: Path, tmp_path: Path, target: str, name: str) -> None:
    done = make(target, f"DESTDIR={tmp_path}/empty")
    sentence = f"{tmp_path}/empty/usr/{ENTRY} is not there: run 'make install' first"
    assert (done.returncode != 0, sentence in done.stderr) == (True, True), "it would lead nowhere"
    link, at = own / "usr" / name, f"DESTDIR={own}"
    assert not link.is_symlink()
    said = made(target, at)
    assert str(link.readlink()) == TARGET
    assert link.samefile(own / "usr" / ENTRY)
    assert ("restart it, such as by 'systemctl restart docker'" in said) == (name == DOCKERS)
    inode = link.lstat().st_ino
    done = make(target, at)
    assert (done.returncode, "is there already" in done.stdout) == (0, True)
    assert link.lstat().st_ino == inode
    made("install", at)
    assert str(link.readlink()) == TARGET, "an upgrade leaves it"
    link.unlink()
    link.symlink_to(f"/usr/{ENTRY}")
    made(target, at)
    assert str(link.readlink()) == f"/usr/{ENTRY}", "as one that was made by hand"
    made("uninstall", at)
    assert tree(own) == {}


@pytest.mark.parametrize("text", ["", "nvidia-container-toolkit", f"/opt/{ENTRY}"])
@pytest.mark.parametrize(("target", "name"), LINKS.items())
def test_what_another_has_in_the_links_place_is_left(own: Path, target: str, name: str, text: str) -> None:
    link, at = own / "usr" / name, f"DESTDIR={own}"
    if text:
        link.symlink_to(text)
    else:
        link.write_text("#!/bin/sh\n")
    before = tree(own)
    done = make(target, at)
    assert done.returncode != 0
    # The second line is make's own.
    first, second = done.stderr.splitlines()
    assert first.endswith(f"{link} is there and is not ours: move it away first")
    assert second.startswith("make: ***")
    assert tree(own) == before
    made("uninstall", at)
    assert [name for name in tree(own) if "." not in name and "/bin/" in name] == [f"usr/{name}"]


def test_an_installation_that_was_killed_at_its_start_is_no_obstacle(tmp_path: Path) -> None:
    for target in ("uninstall", "install"):
        (tmp_path / "usr" / LIBRARY).mkdir(parents=True)
        made(target, f"DESTDIR={tmp_path}")
        assert (tmp_path / "usr" / ENTRY).exists() == (target == "install")
    said = made("uninstall", f"DESTDIR={tmp_path}", "PREFIX=/opt")
    assert said == f"nothing was installed below {tmp_path}/opt: give DESTDIR and PREFIX of the installation\n"


def test_a_wrong_setting_is_refused_in_one_sentence(tmp_path: Path) -> None:
    sentences = {
        "PYTHON=python3": "PYTHON must be an absolute path",
        "PYTHON=/nonexistent/python3": "is not there or older than Python 3.9",
        "PREFIX=usr": "PREFIX must be an absolute path",
        "DESTDIR=there": "DESTDIR must be an absolute path",
        "PREFIX=/opt/g p u": "may hold letters, digits",
    }
    for setting, sentence in sentences.items():
        done = make("install", f"DESTDIR={tmp_path}", setting)
        assert done.returncode != 0
        assert sentence in done.stderr
        assert tree(tmp_path) == {}


def test_without_click_nothing_is_installed_and_none_is_downloaded(tmp_path: Path) -> None:
    """Of a Python with pip; what an administrator, or an older release, has put beside the package serves."""
    venv.create(tmp_path / "python", with_pip=True)
    python, prefix = tmp_path / "python/bin/python", tmp_path / "it"
    packages = files(python.parents[1])
    settings = [f"PREFIX={prefix}", f"PYTHON={python}"]
    done = make("install", *settings)
    assert done.returncode != 0
    said = "no click, which the command line needs: install the distribution's python3-click"
    assert done.stderr.splitlines()[0].endswith(said)
    assert not prefix.exists() and files(python.parents[1]) == packages
    # Another Python may be there.
    assert make("install", *settings, f"DESTDIR={tmp_path}/root").returncode == 0
    assert make("install", f"PREFIX={prefix}").returncode == 0
    click = prefix / LIBRARY / "vendor/click"
    click.mkdir(parents=True)
    (click / "__init__.py").touch()
    said = made("install", *settings)
    assert "without nvidia-ml-py, 'inventory refresh' cannot ask NVML" in said
    assert click.is_dir() and files(python.parents[1]) == packages


def test_what_is_registered_is_there_at_any_moment(tmp_path: Path) -> None:
    """An engine that finds the registration alone starts no container; it is the last to come and the first to go."""
    usr, at = tmp_path / "usr", f"DESTDIR={tmp_path}"
    registration, parts = usr / REGISTRATION, (usr / ENTRY, usr / LIBRARY / "oci_gpu_hook")
    alone = set[bool]()

    def look() -> None:
        alone.add(registration.exists() and not all([it.exists() for it in parts]) and registration.exists())

    with meanwhile(look):
        made("install", at)
        made("uninstall", at)
    assert alone == {False}


def test_below_another_prefix_it_is_said_how_engines_find_it(tmp_path: Path) -> None:
    """By a link, which goes with the rest; not of what is to be packed."""
    settings = f"PYTHON={sys.executable} PREFIX={tmp_path}/it"
    hooks, said = "/usr/share/containers/oci/hooks.d", f"{tmp_path}/said"
    script = f"""mount -t tmpfs none /run; mkdir /run/share /run/work
mount -t overlay -o lowerdir=/usr/share,upperdir=/run/share,workdir=/run/work none /usr/share; rm -rf {hooks}
make --silent install {settings} DESTDIR={tmp_path}/packed | grep -c 'do not look' || :
make --silent install {settings} | sed -n "/do not look/s/[^']*'//; s/' makes .*//p" >{said}
cat {said}; sh -eu {said}; readlink {hooks}/*
make --silent install {settings} | grep -c 'do not look' || :
make --silent uninstall {settings} >/dev/null; ls {hooks}
"""
    done = run(*ALONE, script)
    link = f"{tmp_path}/it/{REGISTRATION}"
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["0", f"mkdir -p {hooks} && ln -s {link} {hooks}/", link, "0"]


def test_what_runs_by_our_runtime_keeps_it(tmp_path: Path) -> None:
    """No container could be entered or stopped that it has started; none runs by what is to be packed.

    The prefix is no expression, and another path that it would match is another's.
    """
    runtime = f"{tmp_path}/c++.d/{RUNTIME}"
    words = f"make --silent PYTHON={sys.executable} PREFIX={tmp_path}/c++.d"
    packed = f"DESTDIR={tmp_path}/packed"
    task = "/run/containerd/io.containerd.runtime.v2.task/moby/c1"
    script = f"""mount -t tmpfs none /run
{words} install >/dev/null; find {tmp_path} | sort >/run/before
printf '#!/bin/sh\nwhile read -r _; do :; done\n' >/run/conmon; chmod 0755 /run/conmon
mkfifo /run/end; /run/conmon -c c2 -r {runtime} -b /x </run/end & exec 9>/run/end
! {words} uninstall || exit 9
exec 9>&-; wait
mkdir -p {task}; echo {runtime} >{task}/runtime
! {words} uninstall || exit 9
find {tmp_path} | sort | cmp - /run/before
echo {runtime.replace(".d/", "xd/")} >{task}/runtime; {words} uninstall
{words} {packed} install >/dev/null; {words} {packed} uninstall; ls {tmp_path}/packed
"""
    done = run(*ALONE, script)
    assert done.returncode == 0, done.stderr
    *refused, rest = done.stderr.split("make uninstall: nothing was removed\n")
    said = f"containers run by {runtime}, and without it they cannot be entered or stopped"
    assert [f"{said}: {id}" in text for id, text in zip(("c2", "c1"), refused)] == [True, True]
    assert "oci-gpu-hook:" not in rest


def test_a_process_of_a_containers_own_is_no_monitor_and_says_nothing(tmp_path: Path) -> None:
    """Root's, named and with words as a monitor's; nor is one whose container's id none can be."""
    named = f"-c '\\033[31m' -r {tmp_path}/{RUNTIME} -b /x </run/end &"
    script = f"""mount -t tmpfs none /run; mkfifo /run/end; mkdir -p /run/image/usr
mount -t tmpfs none /run/image; mkdir /run/image/usr; mount --rbind /usr /run/image/usr
cp -P /bin /lib* /run/image
printf '#!/bin/sh\nwhile read -r _; do :; done\n' >/run/image/conmon; chmod 0755 /run/image/conmon
chroot /run/image /conmon -c c2 -r {tmp_path}/{RUNTIME} -b /x </run/end & one=$!
/run/image/conmon {named} other=$!
exec 9>/run/end; until grep -q conmon /proc/$one/comm && grep -q conmon /proc/$other/comm; do :; done
packaging/in-use.sh {tmp_path}/{RUNTIME} && exec 9>&- && wait
"""
    done = run(*ALONE, script)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_nothing_keeps_true_goes_with_the_machines_own(tmp_path: Path) -> None:
    """Labels and metrics of the node, and the spec of the service; not with what is to be packed."""
    at, packed = f"PREFIX={tmp_path}/usr", f"DESTDIR={tmp_path}/packed"
    told, command = tmp_path / "told", tmp_path / "usr" / COMMAND
    assert make("install", at).returncode == make("install", at, packed).returncode == 0
    command.write_text(f'#!/bin/sh\n# It stands for oci-gpu-hook.\necho "$*" >>{told}\n')
    gone = ["features --remove", "metrics --remove", "cdi remove /run/cdi/oci-gpu-hook.yaml"]
    for settings, said in ((at, packed), []), ((at,), gone):
        told.write_text("")
        made("uninstall", *settings)
        assert told.read_text().splitlines() == said


def test_the_administrators_settings_stay(own: Path) -> None:
    settings = own / "etc/oci-gpu-hook.conf"
    write(settings, "records = no\n")
    said = made("uninstall", f"DESTDIR={own}")
    assert f"{settings} is the administrator's: left there" in said
    assert [*files(own)] == ["etc/oci-gpu-hook.conf"]
