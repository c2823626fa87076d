# SPDX-License-Identifier: Apache-2.0
"""What RPMs alone do, by real rpm, and what a container gets of them; what is alike of both kinds: test_packages."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.integration import roots
from tests.integration.engines import PROCDRIVER, Bundle, Outcome, on_node
from tests.packaging import others, packages
from tests.packaging.packages import DOCKERS, ENTRY, TARGET, Release, Rpm, does
from tests.packaging.views import View
from tests.selinux.files import write

KIND = "rpm"


def hosts(release: Release) -> list[Path]:
    return Rpm().hosts(release)


def test_dockers_link_needs_the_hook_and_whoever_has_dockerd_is_told(view: View, release: Release) -> None:
    """Also where somebody had made the same link by hand."""
    for path in (dockerd := view / "usr/bin/dockerd", view / "usr/sbin/dockerd"):
        path.unlink(missing_ok=True)
    said = does(view.rpm("-i", *hosts(release), release.docker))
    assert "restart dockerd" not in said, "there is none"
    assert "oci-gpu-hook-docker" in view.rpm("-e", "--test", "oci-gpu-hook").said
    does(view.rpm("-e", "oci-gpu-hook-docker"))
    write(dockerd, "", 0o755)
    (view / DOCKERS).symlink_to(ENTRY)
    assert "restart dockerd before the first --gpus" in does(view.rpm("-i", release.docker))
    assert str((view / DOCKERS).readlink()) == TARGET


def test_the_sources_and_what_is_built_of_them_tell_of_no_umask_and_no_host(release: Release, tmp_path: Path) -> None:
    assert {packages.query(package, "--qf", "%{BUILDHOST}") for package in release} == {"localhost"}
    tree = packages.copy_of_tree(tmp_path / "tree")
    words, archives = ("env", "SOURCE_DATE_EPOCH=1", tree / "packaging/archive.sh", "name"), []
    for mode in ("go=u-w", "go="):
        subprocess.run(("chmod", "-R", mode, tree), check=True)
        archives.append(subprocess.run(words, check=True, capture_output=True).stdout)
    assert archives[0] == archives[1] and len(archives[0]) > 100_000


RUNTIME = "/usr/bin/oci-gpu-runtime"
_DOCKERS, _RESTART = "without it Docker starts no container", "systemctl restart containerd"
_TASKS = "io.containerd.runtime.v2.task"
_MICROK8S = "var/snap/microk8s/current/args/containerd-template.toml"
# What an engine or a container that needs the runtime has: a file and what is in it, and what its user is told.
IN_USE = (
    (
        "etc/docker/daemon.json",
        f'{{\n  "runtimes": {{ "ours" : {{ "path" : "{RUNTIME}" }} }},\n  "default-runtime": "ours"\n}}\n',
        _DOCKERS,
    ),
    # By PATH.
    ("etc/docker/daemon.json", '{"runtimes":{"x":{"path":"oci-gpu-runtime"}}}', _DOCKERS),
    (
        "etc/systemd/system/docker.service.d/gpu.conf",
        f"[Service]\nEnvironment=DOCKER_BUILDKIT_RUNC_COMMAND={RUNTIME}\n",
        "systemctl daemon-reload && systemctl restart docker",
    ),
    ("etc/docker/daemon.json", '{"runtimes": {"x": {\n  "path":\n    "oci-gpu-runtime"}}}\n', _DOCKERS),
    ("etc/containerd/config.toml", 'BinaryName = "oci-gpu-runtime"\n', _RESTART),
    ("etc/containerd/config.toml", 'BinaryName = "/usr/bin/nvidia-container-runtime"\n', _RESTART),
    ("etc/systemd/system/docker.service", f"ExecStart=dockerd --add-runtime g={RUNTIME}\n", "daemon-reload"),
    ("etc/containerd/config.toml", f'# old = "/usr/bin/runc"\n      BinaryName = "{RUNTIME}"\n', _RESTART),
    ("etc/containerd/conf.d/99-oci-gpu-hook.toml", f'# oci-gpu-hook\n  BinaryName = "{RUNTIME}"\n', _RESTART),
    (
        "etc/crio/crio.conf.d/99-oci-gpu-hook.conf",
        f'[crio.runtime.runtimes."nvidia"]\n  runtime_path = "{RUNTIME}"\n',
        "systemctl restart crio",
    ),
    (
        "etc/containers/containers.conf.d/99-oci-gpu-hook.conf",
        f'[engine]\nruntime = "oci-gpu-runtime"\n[engine.runtimes]\noci-gpu-runtime = ["{RUNTIME}"]\n',
        "oci-gpu-hook configure podman --remove",
    ),
    ("etc/containers/containers.rootless.conf.d/1000/1.conf", f'oci-gpu-runtime = ["{RUNTIME}"]\n', "configure podman"),
    ("var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/1.toml", f'BinaryName = "{RUNTIME}"\n', "restart k3s"),
    ("etc/k0s/containerd.d/99-oci-gpu-hook.toml", f'BinaryName = "{RUNTIME}"\n', "restart k0scontroller k0sworker"),
    ("etc/slurm/oci.conf", 'RunTimeRun="oci-gpu-runtime run --bundle %b %n"\n', "systemctl restart slurmd"),
    (_MICROK8S, 'BinaryName = "nvidia-container-runtime"\n', "snap restart microk8s"),
    # Containers, of pods and of Docker's.
    (f"run/containerd/{_TASKS}/k8s.io/{'c0ffee' * 10}/runtime", RUNTIME, "entered or stopped: c0ffeec0ffee (stop them"),
    (f"run/k0s/containerd/{_TASKS}/k8s.io/id/runtime", RUNTIME, "entered or stopped: id (stop them"),
    (f"run/k0s/containerd/{_TASKS}/k8s.io/id/runtime", "nvidia-container-runtime", "entered or stopped: id (stop them"),
    (
        f"var/snap/microk8s/common/run/containerd/{_TASKS}/k8s.io/id/options.json",
        '{"binary_name":"nvidia-container-runtime"}',
        "entered or stopped: id (stop them",
    ),
    (
        f"run/docker/containerd/daemon/{_TASKS}/moby/id/options.json",
        f'{{"binary_name":"{RUNTIME}"}}',
        "entered or stopped: id (stop them",
    ),
)
NOT_IN_USE = {
    "etc/docker/daemon.json": '{"runtimes":{"oci-gpu-runtime":{"path":"/usr/bin/runc"}}}',
    "etc/containers/containers.conf": 'nvidia-container-runtime = ["/opt/nvidia-container-runtime"]\n',
    "etc/crio/crio.conf.d/90-oci-gpu-hook.conf": '[crio.runtime]\nhooks_dir = ["/usr/share/containers/oci/hooks.d"]\n',
    "etc/containerd/config.toml": f'# BinaryName = "{RUNTIME}"\nBinaryName = "{RUNTIME}2"\n',
    f"run/containerd/{_TASKS}/moby/id/runtime": "/usr/bin/runc",
    f"run/containerd/{_TASKS}/k8s.io/theirs/options.json": '{"binary_name":"/opt/nvidia-container-runtime"}',
}


def test_a_runtime_that_is_in_use_is_not_erased(view: View, release: Release) -> None:
    does(view.rpm("-i", *hosts(release)))
    for name in ("dockerd", "containerd", "crio", "slurmd"):
        write(view / f"usr/bin/{name}", "", 0o755)
    # As the manual has it for k3s.
    (view / "usr/bin/nvidia-container-runtime").symlink_to("oci-gpu-runtime")
    # The service's, which goes with it, by the name that some programs look for.
    write(view / "run/cdi/oci-gpu-hook.yaml", 'args: ["oci-gpu-hook"]\n')
    (view / "etc/cdi").mkdir()
    (view / "etc/cdi/nvidia.yaml").symlink_to("/run/cdi/oci-gpu-hook.yaml")
    for path, text in NOT_IN_USE.items():
        write(view / path, text)
    for path, text, told in IN_USE:
        file = view / path
        before = file.read_text() if file.exists() else ""
        write(file, text)
        done = view.rpm("-e", "oci-gpu-hook-selinux", "oci-gpu-hook")
        assert (done.status != 0, told in done.said) == (True, True), done.said
        assert done.said.count("oci-gpu-hook: ") == done.said.count("install each again, as at first") == 1, done.said
        assert view.rpm("-V", "oci-gpu-hook") == (0, "")
        file.write_text(before)
        does(view.rpm("-U", "--replacepkgs", *hosts(release)))
    does(view.rpm("-e", "oci-gpu-hook-selinux", "oci-gpu-hook"))
    assert not (view / RUNTIME[1:]).exists()


def test_nvidias_package_and_ours_exclude_each_other(view: View, release: Release, tmp_path: Path) -> None:
    rival = others.build_rival(tmp_path)
    does(view.rpm("-i", *hosts(release)))
    for first, second in ((rival, release.docker), (release.docker, rival)):
        does(view.rpm("-i", first))
        before = view.listing()
        done = view.rpm("-i", second)
        assert done.status != 0
        said = done.said.replace("(installed) ", "")
        assert "nvidia-container-toolkit conflicts with oci-gpu-hook-docker" in said
        assert view.listing() == before
        does(view.rpm("-e", "oci-gpu-hook-docker" if first != rival else "nvidia-container-toolkit"))


def test_nvidias_package_goes_with_the_installation_of_ours(view: View, release: Release, tmp_path: Path) -> None:
    """In one transaction: its file is there when ours is about to come."""
    rival, successor = others.build_rival(tmp_path), others.build_successor(tmp_path)
    # By which scriptlets find the database.
    write(view / "etc/rpm/macros", "%_dbpath /run/rpm\n")
    does(view.rpm("-i", rival))
    does(view.rpm("-U", successor, *hosts(release), release.docker))
    assert str((view / DOCKERS).readlink()) == TARGET


def test_without_what_it_requires_it_is_not_installed(tmp_path: Path, release: Release) -> None:
    root = tmp_path / "root"
    root.mkdir()
    words: list[str | Path] = ["rpm", "--root", root, "--define", "_dbpath /var/lib/rpm", "-i", *hosts(release)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    for needed in ("/bin/sh", "/bin/bash", "/usr/bin/python3", "(python3", "python3dist(click)"):
        assert f"{needed} " in done.stderr


def test_another_python_beside_the_hosts_own_does_not_do(view: View, release: Release, tmp_path: Path) -> None:
    """As RHEL's python3.11, while /usr/bin/python3 is 3.9: each start would compile all."""
    does(view.rpm("-U", "--replacepkgs", "--replacefiles", others.build_base(tmp_path, "3.8.1")))
    done = view.rpm("-i", *hosts(release))
    assert done.status != 0 and "(python3 >= 3." in done.said, done.said


def test_the_spec_is_read_where_there_is_no_python_yet() -> None:
    """As in a build root that makes the source package, and finds out what to install for the rest."""
    script = "mount --bind /dev/null $(readlink -f /usr/bin/python3) && exec rpmspec --query --requires "
    words = ["unshare", "--mount", "sh", "-ec", f"{script} packaging/oci-gpu-hook.spec"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=packages.ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(python3 >= 0 with python3 < 0)\n" in done.stdout


def test_rpmlint_has_nothing_to_say_that_is_not_explained(release: Release) -> None:
    folder = release.hook.parents[2]
    words: list[str | Path] = ["rpmlint", "--rpmlintrc", packages.ROOT / "packaging/oci-gpu-hook.rpmlintrc", *release]
    sources = [*folder.glob("SRPMS/*.rpm"), *folder.glob("SPECS/*.spec")]
    done = subprocess.run([*words, *sources], check=False, capture_output=True, text=True)
    assert " 0 errors, 0 warnings" in done.stdout, done.stdout
    assert done.returncode == 0


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
    return on_node(ON_NODE.format(packages=" ".join(map(str, hosts(release))), script=script), hook=False)


def test_a_container_outlives_an_upgrade(release: Release, previous: Release, tmp_path: Path, driver: Path) -> None:
    """Its engine goes on to call the runtime by the path that it had.  The next one has what the old did not know."""
    roots.debian(tmp_path / "rootfs", driver)
    roots.debian(tmp_path / "next/rootfs", driver)
    Bundle(tmp_path, {"createRuntime": [PROCDRIVER]}).asks("1,5").runs("/bin/sleep", "1000")
    after = Bundle(tmp_path / "next", {"createRuntime": [PROCDRIVER]}).asks("1,5")
    after.runs("/bin/sh", "-c", f"command -v {packages.FORGOTTEN}")
    new = " ".join(map(str, hosts(release)))
    out = on_node_with(
        previous,
        f"""
rpm -i {previous.docker} >&2
oci-gpu-hook inventory refresh >&2
oci-gpu-runtime run --detach --bundle {tmp_path} outlives </dev/null >/run/out 2>&1 || cat /run/out >&2
rpm -U {new} {release.docker} >&2
command rpm --define "_dbpath /run/rpm" -q oci-gpu-hook
oci-gpu-runtime exec outlives /bin/sh -c 'command -v {packages.FORGOTTEN} || echo not known'
oci-gpu-runtime run --bundle {tmp_path}/next next </dev/null
oci-gpu-runtime exec outlives /bin/sh -c 'nvidia-smi -L; /app/cuda'
oci-gpu-runtime kill outlives KILL
until oci-gpu-runtime delete outlives 2>/dev/null; do sleep 0.1; done
""",
    ).printed()
    assert previous.hook.name.startswith("oci-gpu-hook-0.0.1")
    version, *known = out.splitlines()[:3]
    assert version.startswith("oci-gpu-hook-0.1.0")
    assert known[0] == "not known" and known[1].endswith(f"/{packages.FORGOTTEN}")
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
