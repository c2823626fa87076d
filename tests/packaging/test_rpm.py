# SPDX-License-Identifier: Apache-2.0
"""The RPMs: installed, upgraded, downgraded and erased by real rpm, and what a container gets of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import roots
from tests.integration.engines import PROCDRIVER, Bundle, Installed, Outcome, on_node
from tests.packaging import rpms
from tests.packaging.rpms import CHANGED, CLI, DOCKERS, ENTRY, LIBRARY, PACKAGE, REGISTRATION, SETTINGS, TARGET, Release
from tests.packaging.views import View


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """This tree's."""
    return rpms.build(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """An older one."""
    tree = rpms.older_tree(tmp_path_factory.mktemp("tree") / "tree")
    return rpms.build(tmp_path_factory.mktemp("previous"), "0.0.1", tree)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rpms.build_base(tmp_path_factory.mktemp("base"))


@pytest.fixture()
def view(base: Path) -> Iterator[View]:
    opened = View()
    does(opened, "-i", base)
    yield opened
    opened.close()


def does(view: View, *words: str | Path) -> str:
    """What must succeed, without a word of complaint."""
    done = view.rpm(*words)
    assert done.status == 0, done.said
    assert not re.search("warning|error", done.said), done.said
    return done.said


def is_sound(view: View) -> bool:
    return view.rpm("-V", "oci-gpu-hook", "oci-gpu-hook-selinux") == (0, "")


def query(package: Path, *words: str) -> str:
    """What rpm says of a package."""
    return subprocess.run(["rpm", "-qp", *words, package], check=True, capture_output=True, text=True, cwd="/").stdout


def test_the_packages_hold_what_make_install_installs(release: Release, installed: Installed) -> None:
    """And beside it the settings, documents and a folder for the state."""
    listed = {line.removesuffix(".gz") for package in release for line in query(package, "-l").splitlines()}
    files = {
        f"/{path.relative_to(installed.tree)}"
        for path in installed.tree.rglob("*")
        if path.is_file() and "vendor" not in path.parts and not path.name.startswith("installed-")
    }
    assert files - listed == set()
    more = {path for path in listed - files if not (installed.tree / path.lstrip("/")).is_dir()}
    assert {re.sub(r"/(doc|licenses)/.*", r"/\1", path) for path in more} == {
        "/etc/oci-gpu-hook.conf",
        "/etc/oci-gpu-hook.conf.d",
        "/etc/oci-gpu-hook",
        "/etc/oci-gpu-hook/vendors",
        "/run/oci-gpu-hook",
        "/run/oci-gpu-hook/refresh-wanted",
        "/usr/share/doc",
        "/usr/share/licenses",
    }


def test_two_packages_hold_one_link_each(release: Release) -> None:
    for package, link in ((release.docker, DOCKERS), (release.cli, CLI)):
        files = query(package, "--qf", "[%{FILENAMES} %{FILELINKTOS}\n]").splitlines()
        assert [line for line in files if "/licenses/" not in line] == [f"{link} {TARGET}"]


def test_they_are_noarch_and_say_what_the_sources_say(release: Release) -> None:
    [version] = re.findall(r"^version = (.*)$", (rpms.ROOT / "setup.cfg").read_text(), re.MULTILINE)
    for package in (*release, release.docker, release.cli):
        assert query(package, "--qf", "%{VERSION} %{ARCH} %{LICENSE}") == f"{version} noarch Apache-2.0"


def test_installed_and_erased_nothing_is_left(view: View, release: Release) -> None:
    before = view.listing()
    does(view, "-i", *release)
    assert is_sound(view)
    assert (view / ENTRY).stat().st_mode & 0o7777 == 0o755
    # What a start and a command leave, and must not be left by us.
    (view / "run/oci-gpu-hook").mkdir(parents=True, exist_ok=True)
    (view / "run/oci-gpu-hook/inventory").write_text("")
    (view / PACKAGE / "cli/__pycache__/x.pyc").write_text("")
    # Or "rpm -V is clean" would say nothing.
    (view / ENTRY).write_text("#!/bin/sh\n")
    assert ENTRY in view.rpm("-V", "oci-gpu-hook").said
    does(view, "-e", "oci-gpu-hook", "oci-gpu-hook-selinux")
    assert view.listing() == before


def test_an_upgrade_and_a_downgrade_leave_nothing_of_the_other(view: View, release: Release, previous: Release) -> None:
    gone = view / PACKAGE / "gone"
    does(view, "-i", *previous)
    first = view.listing()
    assert gone.exists()
    does(view, "-U", *release)
    assert is_sound(view)
    assert not gone.exists()
    assert not (view / f"{SETTINGS}.rpmnew").exists(), "it was not changed"
    does(view, "-U", "--oldpackage", *previous)
    assert is_sound(view)
    assert view.listing() == first


def test_changed_settings_are_kept(view: View, release: Release, previous: Release) -> None:
    """By an upgrade, whose own lie beside it as .rpmnew, and by an erasure, as .rpmsave; drop-ins always."""
    does(view, "-i", *previous)
    (view / SETTINGS).write_text(CHANGED)
    drop_in = view / f"{SETTINGS}.d/50-ours.conf"
    drop_in.write_text(CHANGED)
    said = view.rpm("-U", *release)
    assert (said.status, "created as" in said.said) == (0, True)
    assert (view / SETTINGS).read_text() == CHANGED
    ours = (rpms.ROOT / "packaging/oci-gpu-hook.conf").read_text()
    assert (view / f"{SETTINGS}.rpmnew").read_text() == ours
    said = view.rpm("-e", "oci-gpu-hook", "oci-gpu-hook-selinux")
    assert (said.status, "saved as" in said.said) == (0, True)
    assert (view / f"{SETTINGS}.rpmsave").read_text() == CHANGED
    assert drop_in.read_text() == CHANGED
    assert not (view / ENTRY).exists()


@pytest.mark.parametrize("place", [ENTRY, REGISTRATION, "/usr/bin/oci-gpu-hook"])
def test_a_foreign_file_in_our_place_stops_the_installation(view: View, release: Release, place: str) -> None:
    foreign = view / place
    foreign.parent.mkdir(parents=True, exist_ok=True)
    foreign.write_text("another program's\n")
    before = view.listing()
    done = view.rpm("-i", *release)
    assert done.status != 0
    assert f"oci-gpu-hook: {place} is there and is not ours: move it away first" in done.said
    assert view.rpm("-q", "oci-gpu-hook").status != 0
    assert foreign.read_text() == "another program's\n"
    assert not [path for path in view.listing().keys() - before.keys() if LIBRARY in f"/{path}"]


def test_dockers_link_comes_goes_and_outlives_an_upgrade(view: View, release: Release, previous: Release) -> None:
    """Also where somebody had made the same link by hand."""
    link = view / DOCKERS
    for path in (dockerd := view / "usr/bin/dockerd", view / "usr/sbin/dockerd"):
        path.unlink(missing_ok=True)
    before = view.listing()
    said = does(view, "-i", *previous, previous.docker)
    assert "restart dockerd" not in said, "there is none"
    for package in (previous, release):
        does(view, "-U", "--replacepkgs", *package, package.docker)
        assert str(link.readlink()) == TARGET
        assert view.rpm("-V", "oci-gpu-hook-docker") == (0, "")
    assert "oci-gpu-hook-docker" in view.rpm("-e", "--test", "oci-gpu-hook").said
    does(view, "-e", "oci-gpu-hook-docker")
    assert not link.is_symlink()
    dockerd.write_text("")
    dockerd.chmod(0o755)
    link.symlink_to(ENTRY)
    said = does(view, "-i", release.docker)
    assert "restart dockerd before the first --gpus" in said
    assert str(link.readlink()) == TARGET
    dockerd.unlink()
    does(view, "-e", "oci-gpu-hook-docker", "oci-gpu-hook", "oci-gpu-hook-selinux")
    assert view.listing() == before


RUNTIME = "/usr/bin/oci-gpu-runtime"
DAEMON_JSON = f"""{{
  "runtimes": {{ "ours" : {{ "path" : "{RUNTIME}" }} }},
  "default-runtime": "ours"
}}
"""
# What an engine or a container that needs the runtime has: a file and what is in it, and what its user is told.
IN_USE = {
    "Docker": ("etc/docker/daemon.json", DAEMON_JSON, "without it Docker starts no container"),
    "Docker, by PATH": (
        "etc/docker/daemon.json",
        '{"runtimes":{"x":{"path":"oci-gpu-runtime"}}}',
        "without it Docker starts no container",
    ),
    "BuildKit": (
        "etc/systemd/system/docker.service.d/gpu.conf",
        f"[Service]\nEnvironment=DOCKER_BUILDKIT_RUNC_COMMAND={RUNTIME}\n",
        "systemctl daemon-reload && systemctl restart docker",
    ),
    "containerd": (
        "etc/containerd/config.toml",
        f'# old = "/usr/bin/runc"\n      BinaryName = "{RUNTIME}"\n',
        "systemctl restart containerd",
    ),
    "containerd, by a drop-in": (
        "etc/containerd/conf.d/99-oci-gpu-hook.toml",
        f'# oci-gpu-hook\nversion = 3\n  BinaryName = "{RUNTIME}"\n',
        "systemctl restart containerd",
    ),
    "CRI-O": (
        "etc/crio/crio.conf.d/99-oci-gpu-hook.conf",
        f'[crio.runtime.runtimes."nvidia"]\n  runtime_path = "{RUNTIME}"\n',
        "systemctl restart crio",
    ),
    "podman": (
        "etc/containers/containers.conf.d/99-oci-gpu-hook.conf",
        f'[engine]\nruntime = "oci-gpu-runtime"\n[engine.runtimes]\noci-gpu-runtime = ["{RUNTIME}"]\n',
        "oci-gpu-hook configure podman --remove",
    ),
    "a container": (
        f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{'c0ffee' * 10}/runtime",
        RUNTIME,
        "they cannot be entered or stopped: c0ffeec0ffee (stop them",
    ),
    "a container of Docker's": (
        "run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/id/options.json",
        f'{{"binary_name":"{RUNTIME}"}}',
        "they cannot be entered or stopped: id (stop them",
    ),
}
NOT_IN_USE = {
    "etc/docker/daemon.json": '{"runtimes":{"oci-gpu-runtime":{"path":"/usr/bin/runc"}}}',
    "etc/crio/crio.conf.d/90-oci-gpu-hook.conf": '[crio.runtime]\nhooks_dir = ["/usr/share/containers/oci/hooks.d"]\n',
    "etc/containerd/config.toml": f'# BinaryName = "{RUNTIME}"\nBinaryName = "{RUNTIME}2"\n',
    "run/containerd/io.containerd.runtime.v2.task/moby/id/runtime": "/usr/bin/runc",
}


def test_a_runtime_that_is_in_use_is_not_erased(view: View, release: Release) -> None:
    does(view, "-i", *release)
    for name in ("dockerd", "containerd", "crio"):
        (view / f"usr/bin/{name}").write_text("")
        (view / f"usr/bin/{name}").chmod(0o755)
    for path, text in NOT_IN_USE.items():
        (view / path).parent.mkdir(parents=True, exist_ok=True)
        (view / path).write_text(text)
    for path, text, told in IN_USE.values():
        file = view / path
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text() if file.exists() else ""
        file.write_text(text)
        done = view.rpm("-e", "oci-gpu-hook-selinux", "oci-gpu-hook")
        assert (done.status != 0, told in done.said) == (True, True), done.said
        assert done.said.count("oci-gpu-hook: ") == 1, done.said
        assert view.rpm("-V", "oci-gpu-hook") == (0, "")
        file.write_text(before)
        does(view, "-U", "--replacepkgs", *release)
    does(view, "-e", "oci-gpu-hook-selinux", "oci-gpu-hook")
    assert not (view / RUNTIME[1:]).exists()


@pytest.mark.parametrize("target", ["", "/opt/nvidia/hook", f"{ENTRY}.old"])
@pytest.mark.parametrize(("kind", "name"), [("docker", DOCKERS), ("cli", CLI)])
def test_what_another_has_in_the_links_place_stays(
    view: View, release: Release, kind: str, name: str, target: str
) -> None:
    """A file, and links that lead elsewhere; at an upgrade, too."""
    link, package = view / name, getattr(release, kind)
    put = (lambda: link.symlink_to(target)) if target else (lambda: link.write_text("#!/bin/sh\n"))
    does(view, "-i", *release)
    sentence = f"oci-gpu-hook-{kind}: {name} is there and is not ours: move it away first"
    for _ in range(2):
        put()
        before = view.listing()
        done = view.rpm("-U", "--replacepkgs", package)
        assert (done.status != 0, sentence in done.said) == (True, True), done.said
        assert view.listing() == before
        link.unlink()
        does(view, "-U", "--replacepkgs", package)
        link.unlink()


def test_nvidias_package_and_ours_exclude_each_other(
    view: View, release: Release, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rival = rpms.build_rival(tmp_path_factory.mktemp("rival"))
    does(view, "-i", *release)
    for first, second in ((rival, release.docker), (release.docker, rival)):
        does(view, "-i", first)
        before = view.listing()
        done = view.rpm("-i", second)
        assert done.status != 0
        said = done.said.replace("(installed) ", "")
        assert "nvidia-container-toolkit conflicts with oci-gpu-hook-docker" in said
        assert view.listing() == before
        does(view, "-e", "oci-gpu-hook-docker" if first != rival else "nvidia-container-toolkit")


def test_settings_that_were_there_before_stay(view: View, release: Release) -> None:
    settings = view / SETTINGS
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(CHANGED)
    assert view.rpm("-i", *release).status == 0
    assert settings.read_text() == CHANGED


def test_an_installation_by_hand_is_taken_over(view: View, release: Release) -> None:
    """A whole one or a half one; after the erasure nothing of it is left either."""
    before = view.listing()
    rpms.install_by_hand(view.path)
    does(view, "-i", *release)
    assert is_sound(view)
    # In vendor lies what the administrator has put there by pip.
    assert {path.name for path in (view / LIBRARY).iterdir()} == {"in-use.sh", "link.py", "oci_gpu_hook", "vendor"}
    does(view, "-e", "oci-gpu-hook", "oci-gpu-hook-selinux")
    assert view.listing() == before


def test_without_what_it_requires_it_is_not_installed(tmp_path: Path, release: Release) -> None:
    root = tmp_path / "root"
    root.mkdir()
    words: list[str | Path] = ["rpm", "--root", root, "--define", "_dbpath /var/lib/rpm", "-i", *release]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    for needed in ("/bin/sh", "/bin/bash", "/usr/bin/python3", "python(abi)", "python3dist(click)"):
        assert f"{needed} " in done.stderr


def test_the_spec_is_read_where_there_is_no_python_yet() -> None:
    """As in a build root that makes the source package, and finds out what to install for the rest."""
    script = "mount --bind /dev/null $(readlink -f /usr/bin/python3) && exec rpmspec --query --requires "
    words = ["unshare", "--mount", "sh", "-ec", f"{script} packaging/oci-gpu-hook.spec"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=rpms.ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "python(abi) = 0\n" in done.stdout


def test_rpmlint_has_nothing_to_say_that_is_not_explained(release: Release) -> None:
    folder = release.hook.parents[2]
    words: list[str | Path] = [
        "rpmlint",
        "--rpmlintrc",
        rpms.ROOT / "packaging/oci-gpu-hook.rpmlintrc",
        *(*release, release.docker, release.cli),
    ]
    sources = [*folder.glob("SRPMS/*.rpm"), *folder.glob("SPECS/*.spec")]
    done = subprocess.run([*words, *sources], check=False, capture_output=True, text=True)
    assert " 0 errors, 0 warnings" in done.stdout, done.stdout
    assert done.returncode == 0


def test_two_builds_of_one_tree_hold_the_same(release: Release, tmp_path: Path) -> None:
    """Names, modes, times and digests of all files."""
    again = rpms.build(tmp_path)
    for one, other in zip((*release, release.docker, release.cli), (*again, again.docker, again.cli)):
        assert query(one, "--dump") == query(other, "--dump")


# On the node's own root, whose /usr, /etc and /run are throw-away, with a database of its own.
ON_NODE = """
exec 9>&1 >&2
rpm() {{ command rpm --define '_dbpath /run/rpm' --nodeps "$@"; }}
rpm -i {packages}
rpm -V oci-gpu-hook oci-gpu-hook-selinux
exec >&9
{script}
"""


def on_node_with(release: Release, script: str) -> Outcome:
    packages = " ".join(str(path) for path in release)
    return on_node(None, ON_NODE.format(packages=packages, script=script))


def test_a_container_outlives_an_upgrade(release: Release, previous: Release, tmp_path: Path, driver: Path) -> None:
    """Its engine goes on to call the runtime by the path that it had.  The next one has what the old did not know."""
    roots.debian(tmp_path / "rootfs", driver)
    roots.debian(tmp_path / "next/rootfs", driver)
    bundle = Bundle(tmp_path, {"createRuntime": [PROCDRIVER]}).asks("1,5")
    bundle.runs("/bin/sleep", "1000")
    after = Bundle(tmp_path / "next", {"createRuntime": [PROCDRIVER]}).asks("1,5")
    after.runs("/bin/sh", "-c", f"command -v {rpms.FORGOTTEN}")
    new = " ".join(str(path) for path in release)
    out = on_node_with(
        previous,
        f"""
rpm -i {previous.docker} >&2
oci-gpu-hook inventory refresh >&2
oci-gpu-runtime run --detach --bundle {tmp_path} outlives </dev/null >/run/out 2>&1 || cat /run/out >&2
rpm -U {new} {release.docker} >&2
command rpm --define "_dbpath /run/rpm" -q oci-gpu-hook
oci-gpu-runtime exec outlives /bin/sh -c 'command -v {rpms.FORGOTTEN} || echo not known'
oci-gpu-runtime run --bundle {tmp_path}/next next </dev/null
oci-gpu-runtime exec outlives /bin/sh -c 'nvidia-smi -L; /app/cuda'
oci-gpu-runtime kill outlives KILL
until oci-gpu-runtime delete outlives 2>/dev/null; do sleep 0.1; done
""",
    ).printed()
    assert previous.hook.name.startswith("oci-gpu-hook-0.0.1")
    version, *known = out.splitlines()[:3]
    assert version.startswith("oci-gpu-hook-0.1.0")
    assert known[0] == "not known" and known[1].endswith(f"/{rpms.FORGOTTEN}")
    assert out.count("NVIDIA H100") == 2 and out.endswith("cuInit 0, 2 devices\n")


def test_commands_units_and_erasure_work_on_a_node(release: Release) -> None:
    """With real systemctl, which enables what the preset says and disables it again."""
    # A machine may have such names of its own, from before.
    script = f"""
enabled() {{ find /etc/systemd -lname '*oci-gpu-hook*' -printf '%f ' | xargs -n1 | sort | xargs; }}
stat -c '%n %a' /run/oci-gpu-hook
enabled
/usr/bin/oci-gpu-hook inventory refresh
rpm -V oci-gpu-hook
rpm -e oci-gpu-hook oci-gpu-hook-selinux >&2
enabled
find /usr /etc /run -xdev -name '*oci*gpu*hook*' ! -path '*/tests/*' -newercm {release.hook}
"""
    out = on_node_with(release, script).printed()
    lines = out.splitlines()
    assert lines[0] == "/run/oci-gpu-hook 755"
    assert lines[1] == ("oci-gpu-hook-devices.service oci-gpu-hook-inventory.path oci-gpu-hook-inventory.service")
    assert "saved /run/oci-gpu-hook/inventory: driver " in out
    assert lines[-1] == "", "nothing is enabled, and nothing is left"
