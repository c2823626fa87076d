# SPDX-License-Identifier: Apache-2.0
"""The RPMs and the Debian packages alike: what they hold, and their life by real rpm, and by dpkg and apt."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from oci_gpu_hook.request import settingsfile
from tests.integration.engines import Installed
from tests.packaging import packages
from tests.packaging.conftest import Built
from tests.packaging.packages import CLI, DOCKERS, ENTRY, LIBRARY, PACKAGE, SETTINGS, TARGET, Kind, Release, does
from tests.packaging.views import View
from tests.selinux.files import write

NO_DPKG = pytest.mark.skipif(shutil.which("dpkg") is None, reason="RHEL and Fedora have no packages of this kind")
KINDS = [packages.Rpm(), pytest.param(packages.Deb(), marks=NO_DPKG)]
pytestmark = pytest.mark.parametrize("kind", KINDS, ids=["rpm", "deb"])
# What a start and a command leave behind.
USED = f"mkdir -p /run/oci-gpu-hook; touch /run/oci-gpu-hook/inventory {PACKAGE}/cli/__pycache__/x.pyc"


def chosen(kind: Kind, release: Release) -> list[Path]:
    """What is installed on a host with Docker."""
    return [*kind.hosts(release), release.docker]


def listing(view: View) -> dict[str, tuple[int, bytes]]:
    """All that is not as on the machine, but for what Debian notes down of units."""
    return {path: it for path, it in view.listing().items() if "/deb-systemd-helper" not in path}


def test_the_packages_hold_what_make_install_installs(kind: Kind, built: Built, installed: Installed) -> None:
    """But for what is made for one Python by Debian's; and beside it settings and documents."""
    release = built(kind.name)
    listed = {path.removesuffix(".gz") for package in release for path in kind.contents(package)}
    made_later = {"vendor", *(("__pycache__", "__linked__") if kind.name == "deb" else ())}
    files = {
        f"/{path.relative_to(installed.tree)}"
        for path in installed.tree.rglob("*")
        if path.is_file() and not made_later & {*path.parts} and not path.name.startswith("installed-")
    }
    assert files - listed == set()
    more = {path for path in listed - files if not (installed.tree / path[1:]).is_dir()} - {DOCKERS, CLI}
    assert {re.sub(r"/(doc|licenses|lintian)/.*", r"/\1", path) for path in more} == {*kind.more}
    for package, link in ((release.docker, DOCKERS), (release.cli, CLI)):
        assert [path for path in kind.contents(package) if not re.search("/(doc|licenses|lintian)/", path)] == [link]
    assert not [path for path in kind.contents(release.hook) if path.endswith(".cil")]


def test_they_are_for_every_architecture_and_say_what_the_sources_say(kind: Kind, built: Built) -> None:
    [version] = re.findall(r"^version = (.*)$", (packages.ROOT / "setup.cfg").read_text(), re.MULTILINE)
    for package in built(kind.name):
        assert kind.version(package) == [version, kind.everywhere]


def test_two_builds_of_one_tree_are_equal(kind: Kind, built: Built, tmp_path: Path) -> None:
    """Of an RPM, which has the time of its build in it, names, modes, times and digests of all files."""
    for one, other in zip(built(kind.name), packages.build(kind.name, tmp_path)):
        assert kind.fingerprint(one) == kind.fingerprint(other)


def test_installed_and_purged_nothing_is_left(kind: Kind, view: View, built: Built) -> None:
    before = listing(view)
    does(kind.install(view, *chosen(kind, built(kind.name))))
    assert kind.verify(view) == (0, "")
    assert (view / ENTRY).stat().st_mode & 0o7777 == 0o755
    assert os.readlink(view / DOCKERS) == TARGET
    does(view.sh(USED))
    does(kind.purge(view))
    assert listing(view) == before


def test_an_upgrade_and_a_downgrade_leave_nothing_of_the_other(kind: Kind, view: View, built: Built) -> None:
    gone = view / PACKAGE / "gone"
    older, newer = chosen(kind, built(f"older {kind.name}")), chosen(kind, built(kind.name))
    does(kind.install(view, *older))
    first = view.listing()
    assert gone.exists()
    does(kind.install(view, *newer))
    assert kind.verify(view) == (0, "")
    assert not gone.exists()
    assert not (view / f"{SETTINGS}{kind.beside}").exists(), "it was not changed"
    linked = {path.read_bytes() for path in (view / PACKAGE).glob("__linked__/*")}
    assert not linked & {content for path, (_, content) in first.items() if "/__linked__/" in path and content}
    does(kind.install(view, *older))
    assert view.listing() == first


def test_the_settings_that_an_administrator_edits_change_with_no_release(kind: Kind, view: View, built: Built) -> None:
    """Else an upgrade would ask of them, or be left half done; what a release may change lies below /usr."""
    does(kind.install(view, *kind.hosts(built(kind.name))))
    text, all_of_them = (view / SETTINGS).read_text(), "/usr/share/oci-gpu-hook/oci-gpu-hook.conf"
    assert all_of_them in text and "oci-gpu-hook.conf(5)" in text
    assert [line for line in text.splitlines() if not line.startswith("# ")] == []
    assert [key for key in settingsfile.KINDS if re.search(rf"\b{key}\b", text)] == []
    named = re.findall("^#([a-z-]+) =", (view / all_of_them).read_text(), re.MULTILINE)
    assert {*named} == {*settingsfile.KINDS}


def test_changed_settings_are_kept(kind: Kind, view: View, built: Built) -> None:
    """By an upgrade, whose own lie beside them; by a purge drop-ins alone, and an RPM's as .rpmsave."""
    does(kind.install(view, *chosen(kind, built(f"older {kind.name}"))))
    drop_in = view / f"{SETTINGS}.d/50-ours.conf"
    for path in (view / SETTINGS, drop_in):
        path.write_text(packages.CHANGED)
    assert kind.install(view, *chosen(kind, built(kind.name))).status == 0
    assert (view / SETTINGS).read_text() == packages.CHANGED
    ours = (packages.ROOT / "packaging/etc/oci-gpu-hook.conf").read_text()
    assert (view / f"{SETTINGS}{kind.beside}").read_text() == ours
    assert kind.purge(view).status == 0
    saved = view / f"{SETTINGS}.rpmsave"
    assert (saved.read_text() if kind.name == "rpm" else packages.CHANGED) == drop_in.read_text() == packages.CHANGED
    assert not (view / SETTINGS).exists() and not (view / ENTRY).exists()


@pytest.mark.parametrize("place", [ENTRY, packages.REGISTRATION, "/usr/bin/oci-gpu-hook", "/usr/bin/oci-gpu-runtime"])
def test_a_foreign_file_in_our_place_stops_the_installation(kind: Kind, view: View, built: Built, place: str) -> None:
    foreign = view / place
    write(foreign, "another program's\n")
    before = view.listing()
    done = kind.install(view, *chosen(kind, built(kind.name)))
    assert done.status != 0
    assert f"oci-gpu-hook: {place} is there and is not ours: move it away first" in done.said
    assert foreign.read_text() == "another program's\n"
    assert not [path for path in view.listing().keys() - before.keys() if LIBRARY in path]


@pytest.mark.parametrize("target", ["", "/opt/nvidia/hook", f"{ENTRY}.old"])
@pytest.mark.parametrize(("which", "name"), [("docker", DOCKERS), ("cli", CLI)])
def test_what_another_has_in_the_links_place_stays(
    kind: Kind, view: View, built: Built, which: str, name: str, target: str
) -> None:
    """A file, and links that lead elsewhere; at an upgrade, too."""
    link, release = view / name, built(kind.name)
    package = getattr(release, which)
    does(kind.install(view, *kind.hosts(release)))
    sentence = f"oci-gpu-hook-{which}: {name} is there and is not ours: move it away first"
    for _ in range(2):
        if target:
            link.symlink_to(target)
        else:
            link.write_text("another program's\n")
        before = view.listing()
        done = kind.install(view, package)
        assert (done.status != 0, sentence in done.said) == (True, True), done.said
        assert view.listing() == before
        link.unlink()
        does(kind.install(view, package))
        assert os.readlink(link) == TARGET
        link.unlink()


def test_an_installation_by_hand_is_taken_over(kind: Kind, view: View, built: Built) -> None:
    """A whole one or a half one, its settings too; after the purge nothing of it is left either."""
    before = view.listing()
    packages.install_by_hand(view.path)
    (view / DOCKERS).symlink_to(ENTRY)
    (view / SETTINGS).write_text(packages.CHANGED)
    assert kind.install(view, *chosen(kind, built(kind.name))).status == 0
    assert (view / SETTINGS).read_text() == packages.CHANGED
    # An RPM leaves what was made for another Python to its erasure.
    assert (view / PACKAGE / "__linked__/modules.other").exists() is (kind.name == "rpm")
    # In vendor lies what the administrator has put there by pip.
    assert {path.name for path in (view / LIBRARY).iterdir()} == {"in-use.sh", "link.py", "oci_gpu_hook", "vendor"}
    assert kind.purge(view).status == 0
    after = {path for path in listing(view) if not path.startswith(SETTINGS) or path.startswith(f"{SETTINGS}.d")}
    assert after == before.keys()


@pytest.mark.parametrize("action", ["install", "uninstall"])
def test_make_leaves_what_a_package_has_installed_and_says_how_it_goes(
    kind: Kind, view: View, built: Built, tmp_path: Path, action: str
) -> None:
    """Moved away by hand, the package's hook could start no container."""
    does(kind.install(view, *kind.hosts(built(kind.name))))
    # The database is the view's own.
    (view / "/run/.rpmmacros").write_text("%_dbpath /run/rpm\n")
    before = view.listing()
    tree = packages.copy_of_tree(tmp_path / "tree")
    remove = {"rpm": "dnf remove", "deb": "apt remove"}[kind.name]
    done = view.sh(f"{tree}/packaging/install.sh {action} '' /usr /usr/bin/python3")
    said = f"a package has put {LIBRARY} there: remove it first, by '{remove} oci-gpu-hook'"
    assert (done.status, done.said) == (1, f"make {action}: {said}\n")
    assert view.listing() == before
