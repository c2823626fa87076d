# SPDX-License-Identifier: Apache-2.0
"""What enroot 4.1 and Apptainer 1.5 do around nvidia-container-cli, word for word, as a user in their namespaces.

enroot: ``_start`` of src/runtime.sh, bin/enroot-nsenter.c, conf/mounts and conf/hooks, with the root where Slurm's
prologs put it.  Apptainer, in internal/pkg: runtime/engine/apptainer/container_linux.go and util/gpu/nvidia.go.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engines import in_turn
from tests.integration.inside import COMPUTE, gpus, node
from tests.integration.test_lxc import allowed

USER = 64_123
UUIDS = [str(gpu["uuid"]) for gpu in gpus()]
# What is asked for, and the indices that it means; None: refused.
ASKS = {"0": (0,), UUIDS[3]: (3,), "all": (0, 1, 2, 3, 4, 5, 6, 7), "none": (), "99": None}
# "no tmpfs": the host's /dev, and none of enroot's on /tmp, which would prove the root: it lies below a sticky folder.
DEVS = ("host", "restricted", "no tmpfs")
ROWS = [(asks, dev, user) for user in (USER, 0) for dev in DEVS for asks in ASKS]
APPTAINER = [(mode, dev, asks) for mode in ("setuid", "user") for dev in ("yes", "minimal") for asks in ("4", "99")]

BEFORE = f"""
ln -sf ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
mkdir -p /run/enroot /tmp/enroot-data/user-{USER} /run/apptainer/session && chmod 755 /run/enroot
touch /dev/log
for root in /tmp/enroot-data/user-{USER}/root /run/image; do
    cp -a {{root}} $root
    for name in proc dev sys tmp var/tmp run; do mkdir -p $root/$name; done
done
chown -R {USER}:{USER} /tmp/enroot-data/user-{USER} /run/image
cat >/run/look <<'END'
nvidia-smi | sed 's/^/smi /'
nvidia-smi -L
/app/cuda
touch /touched 2>/dev/null || echo read-only
exit 0
END
cp /run/look /run/image/look
cp /run/look /tmp/enroot-data/user-{USER}/root/look
cat >/run/enroot/start <<'END'
{{start}}
END
cat >/run/apptainer/start <<'END'
{{apptainer}}
END
"""
# enroot's own lines of conf/mounts and conf/hooks/10-devices.sh, 98-nvidia.sh, by mount(2): mount(8) wants user 0.
START = """
import ctypes, os, struct, subprocess, sys
root, dev, asks = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
FLAGS = dict(ro=1, nosuid=2, nodev=4, noexec=8, remount=32, bind=4096, rbind=4096 | 16384, private=1 << 18,
             slave=1 << 19, rslave=1 << 19 | 16384)
PROPAGATION = 1 << 18 | 1 << 19

def mount(source, target, type, flags, data=""):
    if libc.mount(source.encode(), target.encode(), type.encode(), flags, data.encode()):
        sys.exit(f"mount {source} at {target}: {os.strerror(ctypes.get_errno())}")

def enroot_mount(lines, root):
    for line in lines.strip().splitlines():
        source, target, type, options = line.split()[:4]
        target = os.path.realpath(root + target)
        words = options.split(",")
        data = ",".join(word for word in words if "=" in word and not word.startswith("x-"))
        flags = 0
        for word in words:
            flags |= FLAGS.get(word, 0)
        if "x-detach" in words:
            libc.umount2(target.encode(), 2)
            continue
        if "x-create=dir" in words:
            os.makedirs(target, exist_ok=True)
        if "x-create=file" in words and not os.path.exists(target):
            os.mknod(target, 0o100644)
        if flags & 4096:
            # What the mount has already is locked in a user namespace.
            flags |= os.statvfs(target if "remount" in words else source).f_flag & (1 | 2 | 4 | 8 | 1024 | 2048)
        kind = flags & ~PROPAGATION & ~(0 if "rbind" in words else 16384)
        if type != "none" or kind:
            mount(source, target, type, kind, data)
            if kind & 4096 and not kind & 32:
                mount("", target, "", kind | 32, data)
        if flags & PROPAGATION:
            mount("", target, "", flags & PROPAGATION | (16384 if "rslave" in words else 0))

# bin/enroot-nsenter.c: what changes owners and users succeeds, and does nothing.
calls = {"x86_64": (92, 94, 105, 106, 113, 114, 117, 119, 116, 260, 93, 122, 123),
         "aarch64": (146, 144, 145, 143, 147, 149, 159, 54, 55, 151, 152)}[os.uname().machine]
program = [(0x20, 0, 0, 0), *((0x15, len(calls) - at, 0, call) for at, call in enumerate(calls)),
           (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
if libc.prctl(22, 2, ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(filters)))):
    sys.exit("no filter")

point = subprocess.run(["findmnt", "-no", "TARGET", "-T", root], capture_output=True, text=True).stdout.strip()
enroot_mount(f"none {point} none slave", "")
enroot_mount(f"{root} {root} none bind,nosuid,nodev,slave", "")
tmp = "" if dev == "no tmpfs" else "tmpfs /tmp tmpfs x-create=dir,rw,nosuid,nodev,mode=755,slave"
enroot_mount(tmp + '''
/proc /proc none x-create=dir,rbind,rw,nosuid,nodev,noexec,rslave
/sys /sys none x-create=dir,rbind,ro,nosuid,nodev,noexec,rslave
/dev /dev none x-create=dir,rbind,rw,nosuid,noexec,rslave
tmpfs /var/run tmpfs x-create=dir,rw,nosuid,nodev,mode=755,slave
tmpfs /var/lock tmpfs x-create=dir,rw,nosuid,nodev,mode=755,slave
/dev/shm /dev/shm none x-create=dir,bind,rw,nosuid,nodev,noexec,rslave
/etc/hosts /etc/hosts none x-create=file,bind,ro,nosuid,nodev,noexec,private
/etc/hostname /etc/hostname none x-create=file,bind,ro,nosuid,nodev,noexec,private
''', root)
if dev == "restricted":
    enroot_mount('''
none /dev none x-detach,nofail,silent
tmpfs /dev tmpfs x-create=dir,rw,nosuid,noexec,mode=755,slave
/dev/zero /dev/zero none x-create=file,bind,rw,nosuid,noexec,private
/dev/null /dev/null none x-create=file,bind,rw,nosuid,noexec,private
/dev/urandom /dev/urandom none x-create=file,bind,rw,nosuid,noexec,private
devpts /dev/pts devpts x-create=dir,rw,nosuid,noexec,newinstance,ptmxmode=0666,mode=620,slave
/dev/tty /dev/tty none x-create=file,bind,rw,nosuid,noexec,private
/dev/shm /dev/shm none x-create=dir,bind,rw,nosuid,noexec,nodev,rslave
''', root)
    os.symlink("/proc/self/fd", root + "/dev/fd")
enroot_mount("/dev/gdrdrv /dev/gdrdrv none x-create=file,bind,ro,nosuid,noexec,private,nofail,silent", root)
words = ["--no-cgroups", "--ldconfig=@/sbin/ldconfig", *([] if asks == "none" else [f"--device={asks}"])]
words += ["--compute", "--utility"]
code = subprocess.run(["nvidia-container-cli", "--user", "configure", *words, root]).returncode
if code:
    print("refused", code, flush=True)
    sys.exit()
enroot_mount(f"none {root} none remount,bind,nosuid,nodev,ro", "")
os.chroot(root)
os.execv("/bin/sh", ["sh", "/look"])
"""
AMBIENT = (
    "+sys_admin,+mknod,+chown,+dac_override,+dac_read_search,+fowner,+kill,+net_admin,+setgid,+setpcap,+setuid,"
    "+sys_chroot,+sys_ptrace"
)
STARTER = """
mode=$1 dev=$2 asks=$3 session=/run/apptainer/session
final=$session/final
# starter.c: mount_namespace_init, and the master's before it; then layout/session_linux.go, where SingularityCE's is
# the user's
mount --make-rslave / && mount --make-rshared /
mount -t tmpfs -o nosuid,mode=1777$([ $mode = user ] || echo ,uid=64123) tmpfs $session
mkdir $session/rootfs $session/final $session/overlay $session/overlay/upper $session/overlay/work
mount --rbind /run/image $session/rootfs && mount -o remount,bind,nosuid,nodev,ro $session/rootfs
words=lowerdir=$session/rootfs,upperdir=$session/overlay/upper,workdir=$session/overlay/work
[ $mode = setuid ] || words=$words,userxattr
mount -t overlay -o nosuid,nodev,$words overlay $final
# setPropagationMount
mount --make-rslave /
mount --rbind /proc $final/proc
mount --rbind /sys $final/sys
# addDevMount
if [ $dev = yes ]; then
    mount --rbind /dev $final/dev
else
    mkdir -p $session/dev/shm $session/dev/pts
    mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs $session/dev/shm
    mount -t devpts -o nosuid,noexec,mode=0620,newinstance,ptmxmode=0666 devpts $session/dev/pts
    ln -s /dev/pts/ptmx $session/dev/ptmx
    for name in tty null zero random urandom; do
        : >$session/dev/$name
        mount --bind /dev/$name $session/dev/$name
    done
    mount --rbind $session/dev $final/dev
fi
for name in tmp var/tmp; do mount --rbind /$name $final/$name; done
mount --make-private $final
words="configure --no-cgroups --device=$asks --compute --utility --ldconfig=@/sbin/ldconfig $final"
[ $mode = setuid ] || words="--user $words"
if ! env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
    setpriv --bounding-set=-all,{ambient} --inh-caps=-all,{ambient} --ambient-caps=-all,{ambient} \\
    nvidia-container-cli $words
then echo refused; exit 0; fi
exec chroot $final /bin/sh /look
"""
AS_USER = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
MAPPED = "unshare --user --map-user={0} --map-group={0} --keep-caps --mount"
PLACE = f"/tmp/enroot-data/user-{USER}/root"


def enroot(asks: str, dev: str, user: int) -> str:
    return f"""
cd {PLACE}; find . | sort >/run/before
{AS_USER} {MAPPED.format(user)} --propagation unchanged /usr/bin/python3 /run/enroot/start {PLACE} "{dev}" {asks} 2>&1
find . | sort | cmp -s /run/before - && echo root as before || :
"""


def apptainer(mode: str, dev: str, asks: str) -> str:
    owner, before = 0, "unshare --mount --propagation unchanged"
    if mode == "user":
        owner, before = USER, f"{AS_USER} {MAPPED.format(USER)}"
    return f"""
chown {owner} /run/apptainer/session
{before} /bin/sh -eu /run/apptainer/start {mode} {dev} {asks} 2>&1
"""


@pytest.fixture(scope="module")
def seen(patterns: dict[str, Path]) -> dict[str, list[str]]:
    words = {"root": patterns["debian"], "start": START}
    words["apptainer"] = STARTER.replace("{ambient}", AMBIENT)
    scripts = {f"enroot {row}": enroot(*row) for row in ROWS}
    scripts |= {f"apptainer {row}": apptainer(*row) for row in APPTAINER}
    scripts["host"] = "grep -c -e enroot-data -e apptainer /proc/self/mountinfo || :"
    return in_turn(scripts, BEFORE.format(**words), description="h100x8", cgroup="v1")


def has(lines: list[str], indices: tuple[int, ...], *, all_nodes: bool) -> None:
    assert [line.split("UUID: ")[1][:-1] for line in lines if "UUID: " in line and line.startswith("GPU ")] == [
        UUIDS[index] for index in indices
    ], lines
    wanted = COMPUTE | {node(index) for index in (range(8) if all_nodes else indices)}
    assert wanted == {name for name in allowed(lines) if name in COMPUTE or name[11:].isdecimal()}, lines
    count = 8 if all_nodes else len(indices)
    assert (f"cuInit 0, {count} devices" if count else "cuInit 100, -1 devices") in lines, lines


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_enroot(seen: dict[str, list[str]], row: tuple[str, str, int]) -> None:
    """One root for all starts, which keeps the mount points of the last one."""
    lines, indices = seen[f"enroot {row}"], ASKS[row[0]]
    if indices is None:
        assert "refused 5" in lines and any("unknown device '99'" in line for line in lines), lines
        assert "root as before" in lines
        return
    has(lines, indices, all_nodes=row[1] != "restricted")
    assert "read-only" in lines
    # Each task of a job would say it.
    assert not any("no node is made in it" in line for line in lines), lines


@pytest.mark.parametrize("row", APPTAINER, ids=str)
def test_apptainer(seen: dict[str, list[str]], row: tuple[str, str, str]) -> None:
    lines = seen[f"apptainer {row}"]
    if row[2] == "99":
        assert "refused" in lines, lines
    else:
        has(lines, (4,), all_nodes=row[1] == "yes")


def test_nothing_shows_on_the_host(seen: dict[str, list[str]]) -> None:
    assert seen["host"] == ["0"]


# Who starts containers without any hook: Charliecloud, which copies the driver's files, and systemd-nspawn.
ROOT = """
cp -a {root} /run/root
cat >/run/root/look <<'END'
nvidia-smi | sed 's/^/smi /'
/app/cuda
mknod /dev/tried c 195 0 2>&1
exit 0
END
for name in proc dev sys tmp run home mnt opt var; do mkdir -p /run/root/$name; done
"""
CHARLIECLOUD = """
ln -s ../libexec/oci/hooks.d/oci-gpu-hook /usr/bin/nvidia-container-cli
export USER=root
for name in hosts resolv.conf passwd group; do touch /run/root/etc/$name; done
cp /bin/true /run/root/usr/bin/true
ch-fromhost --nvidia /run/root
ch-run /run/root -- /bin/sh /look
echo of the host
find -L $(nvidia-container-cli list --binaries --libraries) -maxdepth 0 | wc -l
nvidia-container-cli list --binaries --libraries | wc -l
"""
NSPAWN = """
printf 'ID=test\\n' >/run/root/etc/os-release
words=$(oci-gpu-hook flags nspawn --directory /run/root 1 6 2>/run/said)
eval "systemd-nspawn --register=no --quiet --directory /run/root $words /bin/sh /look" 2>&1 </dev/null || echo failed
sed 's/^/said /' /run/said
"""
FILES = """
mkdir -p /etc/systemd/nspawn
oci-gpu-hook flags nspawn --way file --directory /run/root 3 2>/dev/null >/run/lines
sed '/^# systemd-nspawn@/,$d' /run/lines >/etc/systemd/nspawn/files.nspawn
systemd-nspawn --register=no --quiet --machine files --directory /run/root /bin/sh /look 2>&1 </dev/null || echo failed
sed 's/^/line /' /run/lines
"""


def test_charliecloud_copies_the_drivers_files(patterns: dict[str, Path]) -> None:
    """Its containers have the host's /dev, and so every GPU."""
    script = ROOT.format(root=patterns["debian"]) + CHARLIECLOUD
    lines = in_turn({"ch": script}, description="v100")["ch"]
    assert allowed(lines) >= COMPUTE | {"/dev/nvidia0"}, lines
    assert "cuInit 0, 1 devices" in lines, lines
    there, listed = lines[lines.index("of the host") + 1 :]
    assert there == listed and int(listed) > 30


@pytest.mark.parametrize("cgroup", ["v1", "v2"])
def test_nspawn_has_what_its_words_say(patterns: dict[str, Path], cgroup: str) -> None:
    """Device rules are systemd's, which PID 1 of the node sets; what the words cannot say is told."""
    before = ROOT.format(root=patterns["debian"])
    scripts = {"words": NSPAWN, "file": FILES}
    found = in_turn(scripts, before, description="h100x8", cgroup=cgroup, booted=True)
    lines = found["words"]
    assert allowed(lines) == COMPUTE | {node(1), node(6)}, lines
    assert "cuInit 0, 2 devices" in lines, lines
    assert "mknod: /dev/tried: Operation not permitted" in lines, lines
    said = [line for line in lines if line.startswith("said ")]
    assert any("shows in the container's /proc/driver/nvidia" in line for line in said), said
    assert allowed(found["file"]) == COMPUTE | {node(3)}, found["file"]
    assert f"line DeviceAllow={node(3)} rw" in found["file"]
