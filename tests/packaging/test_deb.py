# SPDX-License-Identifier: Apache-2.0
"""What Debian packages alone do, by real apt and dpkg, under another Python, and what containers of Docker get of it.

What is alike of both kinds: test_packages.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from oci_gpu_hook.node.diagnosis import remedy
from tests.integration import roots
from tests.integration.engines import SIMULATED, on_node, printed
from tests.integration.inside import ALLOWED, COMPUTE, node
from tests.packaging import others, packages
from tests.packaging.conftest import PYENV
from tests.packaging.packages import CLI, DOCKERS, ENTRY, LIBRARY, PACKAGE, SETTINGS, TARGET, Release, does
from tests.packaging.views import View
from tests.selinux.files import write

pytestmark = pytest.mark.skipif(shutil.which("dpkg") is None, reason="RHEL and Fedora have no packages of this kind")
KIND = "deb"


def compiled(view: View) -> set[str]:
    """Which Pythons the package is linked for, and compiled."""
    found = {path.name for path in (view / PACKAGE).glob("__linked__/*")}
    return found | {path.name.split(".")[1] for path in (view / PACKAGE).rglob("*.pyc")}


def tags(python: str) -> set[str]:
    """What `compiled` says of a package that was made for this Python."""
    tag = printed(python, "-ISc", "import sys; print(sys.implementation.cache_tag)").strip()
    return {tag, f"modules.{tag}"}


def test_what_doctor_says_of_a_missing_package_brings_it(view: View) -> None:
    """Over an installation by `make install` too, of which no package is known."""
    make, install = remedy.install("apt", "oci-gpu-hook-docker").commands
    does(view.sh(f"cd {packages.ROOT} && {make} >/dev/null && {install} --yes --no-install-recommends 2>/dev/null"))
    assert os.readlink(view / DOCKERS) == TARGET
    does(view.dpkg("--verify", "oci-gpu-hook", "oci-gpu-hook-docker"))


def test_no_drivers_libraries_come_over_the_hosts(release: Release) -> None:
    """python3-pynvml depends on a driver: apt would choose one for a host that has its own by no package."""
    assert "pynvml" not in printed("dpkg-deb", "--field", release.hook, "Recommends")


def test_lintian_has_nothing_to_say_that_is_not_explained(release: Release, tmp_path: Path) -> None:
    [changes] = release.hook.parent.glob("*.changes")
    # It leaves files in its temporary folder.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert printed("lintian", "--allow-root", "--fail-on", "error,warning", changes, env=environment) == ""


def test_a_release_is_the_sources_and_all_packages_with_their_checksums(tmp_path: Path) -> None:
    printed(packages.ROOT / "packaging/dist.sh", tmp_path / "dist")
    names = {path.name for path in (tmp_path / "dist").iterdir()}
    assert len([name for name in names if name.endswith(".deb")]) == 4
    assert len([name for name in names if name.endswith(".noarch.rpm")]) == 4
    assert len([name for name in names if name.endswith(".src.rpm")]) == len([n for n in names if "tar" in n]) == 1
    printed("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=tmp_path / "dist")


def test_what_the_package_has_is_made_and_started_and_a_removal_leaves_settings(view: View, release: Release) -> None:
    before = view.listing()
    does(view.apt("install", release.hook, release.docker))
    assert (view / "/run/oci-gpu-hook").stat().st_mode & 0o7777 == 0o755
    assert compiled(view) == tags("/usr/bin/python3")
    preset = (packages.ROOT / "packaging/systemd/90-oci-gpu-hook.preset").read_text()
    units = {path.name for path in (view / "/etc/systemd/system").glob("*.wants/oci-gpu-hook*")}
    assert units == {*re.findall("^enable (.*)$", preset, re.MULTILINE)}
    does(view.apt("remove", "oci-gpu-hook"))
    assert not (view / LIBRARY).exists() and not (view / "/run/oci-gpu-hook").exists()
    left = {path for path in view.listing().keys() - before.keys() if not path.startswith("/etc/systemd/")}
    assert {path for path in left if "/deb-systemd-helper" not in path} == {SETTINGS}


def test_an_upgrade_leaves_units_disabled_or_enabled_and_a_purge_disables_them(
    view: View, release: Release, previous: Release
) -> None:
    does(view.dpkg("-i", previous.hook))
    units = view / "/etc/systemd/system"
    disabled = units / "multi-user.target.wants/oci-gpu-hook-inventory.path"
    enabled = units / "timers.target.wants/oci-gpu-hook-metrics.timer"
    disabled.unlink()
    does(view.sh("systemctl enable oci-gpu-hook-metrics.timer"))
    does(view.dpkg("-i", release.hook))
    assert (disabled.is_symlink(), enabled.is_symlink()) == (False, True)
    does(view.apt("purge", "oci-gpu-hook"))
    assert not enabled.is_symlink()


# In the place of systemctl, where each unit is enabled.
TOLD = '#!/bin/sh\necho "$*" >>/run/told\n[ "$2" != is-enabled ] || echo enabled\n'


def test_an_upgrade_starts_no_validation_a_removal_stops_it(view: View, release: Release, previous: Release) -> None:
    does(view.dpkg("-i", previous.hook))
    (view / "/run/systemd/system").mkdir(parents=True)
    (view / "/usr/bin/systemctl").write_text(TOLD)
    does(view.dpkg("-i", release.hook))
    told, validate = view / "/run/told", "oci-gpu-hook-validate.service"
    changed = [line for line in told.read_text().splitlines() if re.search(r"\b((re)?start|stop) ", line)]
    assert any("restart oci-gpu-hook-" in line for line in changed)
    assert not [line for line in changed if validate in line]
    told.unlink()
    (view / "/usr/bin/oci-gpu-hook").write_text('#!/bin/sh\necho "$*" >>/run/told\n')
    does(view.dpkg("--remove", "oci-gpu-hook"))
    said = told.read_text()
    assert re.search(f"(?m)^(.* )?stop .*{validate}", said)
    # What units write is removed once none is left that would.
    assert said.rindex("stop ") < min(said.index(f"{words}remove") for words in ("features --", "metrics --", "cdi "))


def test_a_damaged_installation_can_be_removed(view: View, release: Release) -> None:
    does(view.dpkg("-i", release.hook))
    shutil.rmtree(view / PACKAGE)
    does(view.dpkg("--remove", "oci-gpu-hook"))


def test_what_is_in_use_is_upgraded_and_none_of_it_purged(view: View, release: Release, previous: Release) -> None:
    does(view.dpkg("-i", previous.hook, previous.docker, previous.cli))
    daemon = view / "/etc/docker/daemon.json"
    write(view / "/usr/bin/dockerd", "", 0o755)
    write(daemon, '{"runtimes": {"ours": {"path": "/usr/bin/oci-gpu-runtime"}}}\n')
    does(view.dpkg("-i", release.hook, release.docker, release.cli))
    before = view.listing()
    assert view.apt("purge", "oci-gpu-hook").status != 0
    assert view.listing() == before
    # Alone they may go: the runtime stays.
    does(view.apt("purge", "oci-gpu-hook-cli"))
    daemon.unlink()
    does(view.apt("purge", "oci-gpu-hook"))


TOOLKITS = ("nvidia-container-toolkit", "nvidia-container-toolkit-base")
RIVALS = [("libnvidia-container-tools", "cli", CLI), *[(name, "docker", DOCKERS) for name in TOOLKITS]]


@pytest.mark.parametrize(("name", "kind", "link"), RIVALS)
def test_nvidias_packages_and_ours_refuse_each_other(
    view: View, release: Release, tmp_path: Path, name: str, kind: str, link: str
) -> None:
    """The hook itself can be beside them."""
    control = {"Package": name, "Version": "1.20.2-1", "Architecture": "all"}
    theirs = others.pack(tmp_path, control, {link: "NVIDIA's\n"})
    ours = getattr(release, kind)
    does(view.dpkg("-i", theirs, release.hook))
    for done in (view.dpkg("-i", ours), view.apt("install", "--no-remove", ours)):
        assert done.status != 0
        assert "conflict" in done.said or "remove is disabled" in done.said, done.said
    assert (view / link).read_text() == "NVIDIA's\n"
    does(view.dpkg("--purge", name))
    does(view.dpkg("-i", ours))
    done = view.dpkg("-i", theirs)
    assert done.status != 0 and "conflict" in done.said, done.said
    assert os.readlink(view / link) == TARGET
    does(view.dpkg("--purge", f"oci-gpu-hook-{kind}", "oci-gpu-hook"))
    assert not (view / link).is_symlink()


def other_python() -> str:
    """Another Python than the distribution's, or that one where there is none."""
    ours = tags("/usr/bin/python3")
    found = map(str, sorted(PYENV.glob("versions/3.*/bin/python3")))
    served = (python for python in found if int(python.split("versions/3.")[1].split(".")[0]) >= 9)
    return next((python for python in served if tags(python) != ours), os.path.realpath("/usr/bin/python3"))


def test_another_python_is_compiled_and_linked_for(view: View, release: Release, tmp_path: Path) -> None:
    """Once python3-minimal brings it, which has the link /usr/bin/python3.  Until it is made again, the hook serves."""
    does(view.dpkg("-i", release.hook))
    python = other_python()
    # So that a trigger shows where there is no other Python, too.
    linked = [path.name for path in (view / PACKAGE).glob("__linked__/*")]
    does(view.sh(f"rm -rf {PACKAGE}/__linked__"))
    version = view.sh("dpkg-query -Wf '${Version} ${Architecture}' python3-minimal").said.split()
    control = dict(zip(("Package", "Version", "Architecture"), ("python3-minimal", *version)))
    minimal = others.pack(tmp_path, control, {"/usr/bin/python3": f"-> {python}"})
    before = compiled(view)
    said = does(view.dpkg("--no-triggers", "--unpack", minimal))
    assert compiled(view) == before == tags("/usr/bin/python3") - {*linked}
    serves = f"cd /; echo '{{' | {ENTRY} createRuntime 2>&1 || echo $?"
    unlinked = view.sh(serves).said
    assert "Traceback" not in unlinked and unlinked.endswith("\n3\n"), unlinked
    said += does(view.dpkg("--no-triggers", "--configure", "--pending"))
    said += does(view.dpkg("--triggers-only", "--pending"))
    assert "Processing triggers for oci-gpu-hook" in said
    assert compiled(view) == tags(python)
    assert view.sh(serves).said == unlinked


def test_scripts_can_be_run_again_and_no_failure_to_compile_fails_them(view: View, release: Release) -> None:
    does(view.dpkg("-i", release.hook, release.docker))
    first = view.listing()
    scripts = "/var/lib/dpkg/info/oci-gpu-hook"
    version = packages.field(release.hook, "Version")
    for words in (f"configure {version}", "triggered /usr/bin/python3", "abort-remove"):
        does(view.sh(f"{scripts}.postinst {words}"))
        assert view.listing() == first
    for _ in range(2):
        does(view.sh(f"{scripts}.prerm upgrade 9 && {scripts}.preinst upgrade {version}"))
        assert compiled(view) == {name for name in tags("/usr/bin/python3") if "modules" in name}
    does(view.sh(f"{scripts}-docker.preinst install && {scripts}-docker.postinst configure"))
    does(view.sh(f"{scripts}.prerm remove && {scripts}.prerm remove"))
    assert compiled(view) == set()
    does(view.sh(f"{scripts}.postinst abort-remove"))
    assert view.listing() == first
    (view / LIBRARY / "link.py").write_text("raise SystemExit(1)\n")
    (view / PACKAGE / "gone.py").write_text("no Python\n")
    said = view.sh(f"{scripts}.postinst triggered /usr/bin/python3")
    assert said.status == 0
    assert "cannot link it" in said.said and "cannot compile it" in said.said
    assert compiled(view) == set()
    assert view.sh("/usr/bin/oci-gpu-hook --version").status == 0


def test_where_no_policy_has_a_container_module_the_modules_are_left_alone(view: View, release: Release) -> None:
    """Its dependencies are not there: what its scripts say is all."""
    before = view.listing()
    done = view.dpkg("--force-depends", "-i", release.hook, release.selinux)
    assert done.status == 0
    assert "oci-gpu-hook-selinux: the policy modules are not in force" in done.said
    assert (view / "/usr/share/selinux/packages/oci-gpu-hook/oci_gpu_hook.cil").exists()
    assert view.dpkg("--purge", "oci-gpu-hook-selinux", "oci-gpu-hook").status == 0
    left = view.listing().keys() - before.keys()
    assert left <= {"/var/lib/systemd/deb-systemd-helper-enabled"}


# On the node's own root, whose /usr, /etc and /run are throw-away; /var is made so.  In the
# containers each of NVIDIA's nodes that they have is opened.
ON_NODE = """
exec 9>&1 >&2
mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work
mount -t overlay -o lowerdir=/var,upperdir=/mnt/upper,workdir=/mnt/work none /var
look='for path in $(find /dev/nvidia* -type c); do echo $path $({{ true <$path; }} 2>&1); done'
rm -f /usr/sbin/policy-rc.d
# What units of every host hang on; and no condition that forbids this host.
for target in sysinit basic multi-user timers; do
    printf '[Unit]\nDefaultDependencies=no\n' >/usr/lib/systemd/system/$target.target
done
for kind in service path; do
    mkdir -p /etc/systemd/system/oci-gpu-hook-.$kind.d
    printf '[Unit]\nConditionVirtualization=\n' >/etc/systemd/system/oci-gpu-hook-.$kind.d/here.conf
done
systemctl daemon-reload
dpkg -i {previous}
install -m 755 {runtime} /usr/bin/simulated-runc
mkdir -p /run/docker /run/data && mount -t tmpfs none /run/data
# Its containerd makes /opt/containerd, and the lanes that run beside this one tell what is left on the machine.
mount -t tmpfs none /opt
# by NAME PATH: the daemon's default runtime.
mkdir -p /etc/docker
by() {{
    runtimes='"runtimes": {{"%s": {{"path": "%s"}}}}'
    printf "{{$runtimes, \\"default-runtime\\": \\"%s\\"}}" $1 $2 $1 >/etc/docker/daemon.json
}}
by simulated /usr/bin/simulated-runc
export DOCKER_HOST=unix:///run/docker.sock
dockerd --data-root /run/data --exec-root /run/docker --pidfile /run/docker.pid \\
    --host $DOCKER_HOST --iptables=false --ip-forward=false --bridge=none >/run/docker.log 2>&1 &
for try in $(seq 12000); do docker version >/dev/null 2>&1 && break; sleep 0.05; done
tar -C {image} -c . | docker import - image >/dev/null || {{ cat /run/docker.log >&2; exit 1; }}
run="docker run --network none --gpus"
oci-gpu-hook inventory refresh
$run '"device=1,5"' --detach --name kept image /bin/sleep 600
dpkg -i {release}
exec >&9
echo == units; systemctl is-active oci-gpu-hook-inventory.path; ls /run/oci-gpu-hook/inventory
echo == kept; docker exec kept /bin/sh -c "$look"
docker rm --force kept >&2
echo == docker; $run '"device=1,5"' --rm image /bin/sh -c "$look"
echo == in use
remove() {{ apt-get remove -q -y oci-gpu-hook 2>&1 | grep '^oci-gpu-hook' || :; }}
reload() {{
    by "$@"
    kill -HUP $(cat /run/docker.pid)
    until docker info --format '{{{{.DefaultRuntime}}}} {{{{.Runtimes}}}}' | grep -q "^$1 .*$2"; do sleep 0.05; done
}}
serves() {{
    docker exec asleep /bin/sh -c 'echo entered'
    docker run --rm --network none image /bin/sh -c 'echo started'
}}
reload ours /usr/bin/oci-gpu-runtime
docker run --detach --network none --name asleep image /bin/sleep 600 >&2
remove; serves
echo == a container
reload ours /usr/bin/runc
remove; serves
echo == removed
docker restart --time 0 asleep >&2
dpkg --list oci-gpu-hook oci-gpu-hook-docker | grep -c ^ii
remove; serves
dpkg --list oci-gpu-hook oci-gpu-hook-docker | grep -c ^rc
docker rm --force asleep >&2
dpkg -i {release} >&2
echo == left
dpkg --purge oci-gpu-hook-docker oci-gpu-hook >&2
systemctl is-active oci-gpu-hook-inventory.path || :
rm -r /etc/systemd/system/oci-gpu-hook-.*
find /usr /etc /run -xdev -name '*oci*gpu*hook*' ! -path '*/tests/*' -newercm {previous_hook}
"""


@pytest.mark.skipif(shutil.which("dockerd", path="/usr/sbin:/usr/bin") is None, reason="no Docker")
def test_docker_starts_containers_with_the_installed_packages(
    release: Release, previous: Release, tmp_path: Path, driver: Path
) -> None:
    """Upgraded while a container runs, which keeps its GPUs."""
    image = roots.debian(tmp_path / "image", driver)
    old, new = f"{previous.hook} {previous.docker}", f"{release.hook} {release.docker}"
    script = ON_NODE.format(previous=old, release=new, previous_hook=previous.hook, image=image, runtime=SIMULATED)
    out = on_node(script, booted=True, hook=False).printed()
    seen = {part.split("\n")[0]: part.split("\n")[1:-1] for part in out.split("== ")[1:]}
    assert [*seen] == ["units", "kept", "docker", "in use", "a container", "removed", "left"]
    assert seen["units"] == ["active", "/run/oci-gpu-hook/inventory"]
    for engine in ("kept", "docker"):
        opened = {line.split()[0] for line in seen[engine] if line.endswith(ALLOWED)}
        assert opened == {*COMPUTE, node(1), node(5)}, seen[engine]
        assert len(seen[engine]) == len(opened)
    assert seen["left"] == ["inactive"]
    named = "/etc/docker/daemon.json names /usr/bin/oci-gpu-runtime"
    running = "containers run by /usr/bin/oci-gpu-runtime"
    for stage, words in (("in use", [named, running]), ("a container", [running])):
        *refused, entered, started = seen[stage]
        assert (entered, started) == ("entered", "started")
        assert [word in line for word, line in zip(words, refused)] == [True] * len(refused) and refused, refused
    assert seen["removed"] == ["2", "entered", "started", "1"]
