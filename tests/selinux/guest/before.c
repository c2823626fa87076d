/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OCI hook that runs before the one under test, for two things that a real node has and this one simulates:
 * the container's /proc shows the host's /proc/driver (a real kernel shows the driver's folder in every procfs), and,
 * with a label, the container's /dev/mqueue gets it: an engine that labelled it wrongly.
 *
 *   before [ROOTFS [LABEL-OF-MQUEUE]]     the container's state on stdin
 *
 * Without ROOTFS it is what the bundle's config.json says, as an engine writes it that has the hook from a file.
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

/* What follows `key` in `text`, up to the next quote. */
static int quoted(const char *text, const char *key, char *value, size_t size)
{
	const char *found = strstr(text, key);
	const char *end = found ? strchr(found + strlen(key), '"') : NULL;
	if (!end || (size_t)snprintf(value, size, "%.*s", (int)(end - found - strlen(key)), found + strlen(key)) >= size)
		return 0;
	return 1;
}

static int root_of_bundle(const char *state, char *root, size_t size)
{
	static char config[1 << 20];
	char bundle[3000], path[4096];
	if (!quoted(state, "\"bundle\":\"", bundle, sizeof bundle))
		return 0;
	snprintf(path, sizeof path, "%s/config.json", bundle);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	config[fread(config, 1, sizeof config - 1, file)] = 0;
	fclose(file);
	return quoted(config, "\"root\":{\"path\":\"", root, size);
}

int main(int count, char **words)
{
	char state[65536], path[4096], root[3000];
	size_t length = fread(state, 1, sizeof state - 1, stdin);
	state[length] = 0;
	const char *found = strstr(state, "\"pid\":");
	if (!found || (count < 2 && !root_of_bundle(state, root, sizeof root)))
		return 2;
	const char *rootfs = count < 2 ? root : words[1];
	snprintf(path, sizeof path, "/proc/%d/ns/mnt", atoi(found + 6));
	int namespace = open(path, O_RDONLY | O_CLOEXEC);
	if (namespace < 0)
		return fail(path);
	int tree = open_clone("/proc/driver");
	if (tree < 0)
		return fail("/proc/driver");
	if (setns(namespace, CLONE_NEWNS))
		return fail("setns");
	snprintf(path, sizeof path, "%s/proc/driver", rootfs);
	if (attach(tree, path))
		return fail(path);
	/* systemd shares the host's mounts; a container's own /proc is of no such group. */
	if (mount("", path, "", MS_REC | MS_PRIVATE, ""))
		return fail("private");
	if (count < 3)
		return 0;
	snprintf(path, sizeof path, "%s/dev/mqueue", rootfs);
	if (setxattr(path, "security.selinux", words[2], strlen(words[2]) + 1, 0))
		return fail(path);
	return 0;
}
