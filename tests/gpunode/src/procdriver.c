/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OCI hook (prestart or createRuntime) for containers on a simulated node. The kernel of a real
 * node shows /proc/driver/nvidia in every procfs; the simulation is a mount, which a container's
 * new procfs lacks. This puts a read-only copy of the node's /proc/driver on the container's, and
 * so must run before the hook under test.
 * Must not: touch anything but ROOTFS/proc/driver, or fail a container that has no /proc.
 */
#include "json.h"

enum { CLONE_NEWNS = 0x20000, CLONE_NEWUSER = 0x10000000 };
enum { MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_NOEXEC = 8, MS_REMOUNT = 32, MS_BIND = 4096 };
enum { PROC_SUPER_MAGIC = 0x9fa0, PATH = 4096 };
#if defined(__x86_64__)
enum { NR_umask = 95 };
#else
enum { NR_umask = 166 };
#endif

static _Noreturn void fail(const char *what, const char *path, long result)
{
	char line[PATH + 128] = "gpunode procdriver: ";
	text_append(line, sizeof line, what);
	text_append(line, sizeof line, " ");
	text_append(line, sizeof line, path);
	if (result < 0) {
		text_append(line, sizeof line, ": errno ");
		append_number(line, sizeof line, (u64)-result);
	}
	text_append(line, sizeof line, "\n");
	print_to(2, line);
	sys_exit(1);
}

static long check(long result, const char *what, const char *path)
{
	if (result < 0)
		fail(what, path, result);
	return result;
}

static struct json in;

static void open_json(int fd)
{
	in.fd = fd;
	in.have = in.at = in.at_end = 0;
}

static void read_state(char *pid, size_t pid_room, char *bundle, size_t bundle_room)
{
	char key[32];
	open_json(0);
	for (int more = json_enter(&in); more && json_key(&in, key, sizeof key);) {
		if (!text_compare(key, "bundle") && json_token(&in) == '"') {
			json_string(&in, bundle, bundle_room);
		} else if (!text_compare(key, "pid")) {
			char digit[2] = "";
			while (json_peek(&in) >= '0' && json_peek(&in) <= '9') {
				digit[0] = (char)json_next(&in);
				text_append(pid, pid_room, digit);
			}
		} else {
			json_skip(&in);
		}
	}
	if (!*pid || !*bundle)
		fail("no pid or no bundle in the state on", "stdin", 0);
}

/* Appends the bundle's root.path, or lets it take the bundle's place where it is absolute. */
static void read_rootfs(const char *bundle, char *rootfs)
{
	char file[PATH], key[32], path[PATH] = "";
	text_copy(file, sizeof file, bundle);
	text_append(file, sizeof file, "/config.json");
	open_json((int)check(sys_open(file, O_RDONLY), "cannot open", file));
	for (int more = json_enter(&in); more && json_key(&in, key, sizeof key);) {
		if (text_compare(key, "root") || !json_enter(&in)) {
			json_skip(&in);
			continue;
		}
		while (json_key(&in, key, sizeof key))
			if (!text_compare(key, "path") && json_token(&in) == '"')
				json_string(&in, path, sizeof path);
			else
				json_skip(&in);
		break;
	}
	sys_close(in.fd);
	if (!*path)
		fail("no root.path in", file, 0);
	text_copy(rootfs, PATH, path[0] == '/' ? "" : bundle);
	text_append(rootfs, PATH, path[0] == '/' ? "" : "/");
	text_append(rootfs, PATH, path);
}

/* Under a rootless engine the mount namespace may belong to a user namespace of the container's. */
static void enter_mounts(const char *pid)
{
	char mounts[64] = "/proc/", users[64] = "/proc/";
	text_append(mounts, sizeof mounts, pid);
	text_append(mounts, sizeof mounts, "/ns/mnt");
	text_append(users, sizeof users, pid);
	text_append(users, sizeof users, "/ns/user");
	long target = check(sys_open(mounts, O_RDONLY), "cannot open", mounts);
	long owner = check(sys_open(users, O_RDONLY), "cannot open", users);
	long result = sys6(NR_setns, target, CLONE_NEWNS, 0, 0, 0, 0);
	if (result == -EPERM) {
		check(sys6(NR_setns, owner, CLONE_NEWUSER, 0, 0, 0, 0), "cannot enter", users);
		result = sys6(NR_setns, target, CLONE_NEWNS, 0, 0, 0, 0);
	}
	check(result, "cannot enter", mounts);
}

static void copy_file(int from, int to, const char *name)
{
	static char piece[16384];
	long source = check(sys_openat(from, name, O_RDONLY | O_CLOEXEC, 0), "cannot read", name);
	long target = check(sys_openat(to, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0444),
			    "cannot create", name);
	long got;
	while ((got = check(sys_read((int)source, piece, sizeof piece), "cannot read", name)) > 0)
		for (long done = 0; done < got;)
			done += check(sys_write((int)target, piece + done, (size_t)(got - done)),
				      "cannot write", name);
	sys_close((int)source);
	sys_close((int)target);
}

static void copy_folder(int from, int to)
{
	char entries[4096];
	long got;
	while ((got = sys_getdents64(from, entries, sizeof entries)) > 0)
		for (long at = 0; at < got;) {
			struct dirent64 *entry = (void *)(entries + at);
			const char *name = entry->d_name;
			at += entry->d_reclen;
			if (entry->d_type == DT_REG)
				copy_file(from, to, name);
			if (entry->d_type != DT_DIR || name[0] == '.')
				continue;
			check(sys6(NR_mkdirat, to, (long)name, 0555, 0, 0, 0), "cannot make", name);
			int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
			long below = check(sys_openat(from, name, flags, 0), "cannot read", name);
			long target = check(sys_openat(to, name, flags, 0), "cannot open", name);
			copy_folder((int)below, (int)target);
			sys_close((int)below);
			sys_close((int)target);
		}
}

static long filesystem(const char *path)
{
	long answer[32] = {0};
	return sys6(NR_statfs, (long)path, (long)answer, 0, 0, 0, 0) < 0 ? 0 : answer[0];
}

static void mount_copy(int from, const char *target)
{
	long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	check(sys6(NR_mount, (long)"tmpfs", (long)target, (long)"tmpfs", flags, (long)"mode=0555",
		   0), "cannot mount on", target);
	long to = check(sys_open(target, O_RDONLY | O_DIRECTORY), "cannot open", target);
	copy_folder(from, (int)to);
	sys_close((int)to);
	check(sys6(NR_mount, 0, (long)target, 0, flags | MS_REMOUNT | MS_BIND | MS_RDONLY, 0, 0),
	      "cannot make read-only", target);
}

LOCAL void start(void)
{
	static char pid[24], bundle[PATH], rootfs[PATH], target[PATH];
	sys6(NR_umask, 0, 0, 0, 0, 0, 0);
	read_state(pid, sizeof pid, bundle, sizeof bundle);
	read_rootfs(bundle, rootfs);
	check(sys_open("/proc/driver/gpunode", O_RDONLY), "not inside a simulated node:",
	      "/proc/driver/gpunode");
	long from = check(sys_open("/proc/driver", O_RDONLY | O_DIRECTORY), "cannot open",
			  "/proc/driver");
	enter_mounts(pid);
	text_copy(target, sizeof target, rootfs);
	text_append(target, sizeof target, "/proc");
	if (filesystem(target) != PROC_SUPER_MAGIC)
		sys_exit(0);
	text_append(target, sizeof target, "/driver");
	/* Anything else there: an earlier hook, or a container that shares the node's /proc. */
	if (filesystem(target) == PROC_SUPER_MAGIC)
		mount_copy((int)from, target);
	sys_exit(0);
}
ENTRY(start);
