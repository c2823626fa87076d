/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OCI hook that runs before the one under test, for two things that a real node has and this one simulates:
 * the container's /proc shows the host's /proc/driver (a real kernel shows the driver's folder in every procfs), and,
 * with a label, the container's /dev/mqueue gets it: an engine that labelled it wrongly.
 *
 *   before ROOTFS [LABEL-OF-MQUEUE]     the container's state on stdin
 *
 * Must not: touch anything else, or need anything of an image.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { CLONE_TREE = 1, EMPTY_PATH_FROM = 4 };

static int open_clone(const char *path)
{
	return (int)syscall(SYS_open_tree, AT_FDCWD, path, CLONE_TREE | O_CLOEXEC);
}

static int attach(int tree, const char *path)
{
	return (int)syscall(SYS_move_mount, tree, "", AT_FDCWD, path, EMPTY_PATH_FROM);
}

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int count, char **words)
{
	char state[65536], path[4096];
	size_t length = fread(state, 1, sizeof state - 1, stdin);
	state[length] = 0;
	const char *found = strstr(state, "\"pid\":");
	if (count < 2 || !found)
		return 2;
	snprintf(path, sizeof path, "/proc/%d/ns/mnt", atoi(found + 6));
	int namespace = open(path, O_RDONLY | O_CLOEXEC);
	if (namespace < 0)
		return fail(path);
	int tree = open_clone("/proc/driver");
	if (tree < 0)
		return fail("/proc/driver");
	if (setns(namespace, CLONE_NEWNS))
		return fail("setns");
	snprintf(path, sizeof path, "%s/proc/driver", words[1]);
	if (attach(tree, path))
		return fail(path);
	/* systemd shares the host's mounts; a container's own /proc is of no such group. */
	if (mount("", path, "", MS_REC | MS_PRIVATE, ""))
		return fail("private");
	if (count < 3)
		return 0;
	snprintf(path, sizeof path, "%s/dev/mqueue", words[1]);
	if (setxattr(path, "security.selinux", words[2], strlen(words[2]) + 1, 0))
		return fail(path);
	return 0;
}
