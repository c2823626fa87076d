/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An OCI hook that runs before the one under test, for two things that a real node has and this one simulates:
 * the container's /proc shows the host's /proc/driver (a real kernel shows the driver's folder in every procfs), and,
 * with a label, the container's /dev/mqueue gets it: an engine that labelled it wrongly.
 *
 *   before [LABEL-OF-MQUEUE]     the container's state on stdin
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

/* The string that follows `key` in `text`. */
static int quoted(const char *text, const char *key, char *value, size_t size)
{
	const char *found = text ? strstr(text, key) : NULL;
	const char *begin = found ? strchr(found + strlen(key), '"') : NULL;
	const char *end = begin ? strchr(begin + 1, '"') : NULL;
	return end && (size_t)snprintf(value, size, "%.*s", (int)(end - begin - 1), begin + 1) < size;
}

static int root_of_bundle(const char *state, char *root, size_t size)
{
	static char config[1 << 20];
	char bundle[1000], name[1000], path[4096];
	if (!quoted(state, "\"bundle\":", bundle, sizeof bundle))
		return 0;
	snprintf(path, sizeof path, "%s/config.json", bundle);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	config[fread(config, 1, sizeof config - 1, file)] = 0;
	fclose(file);
	if (!quoted(strstr(config, "\"root\":"), "\"path\":", name, sizeof name))
		return 0;
	snprintf(root, size, "%s/%s", *name == '/' ? "" : bundle, name);
	return 1;
}

int main(int count, char **words)
{
	char state[65536], path[4096], root[3000];
	size_t length = fread(state, 1, sizeof state - 1, stdin);
	state[length] = 0;
	const char *found = strstr(state, "\"pid\":");
	if (!found || !root_of_bundle(state, root, sizeof root))
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
	snprintf(path, sizeof path, "%s/proc/driver", root);
	if (attach(tree, path))
		return fail(path);
	/* systemd shares the host's mounts; a container's own /proc is of no such group. */
	if (mount("", path, "", MS_REC | MS_PRIVATE, ""))
		return fail("private");
	if (count < 2)
		return 0;
	snprintf(path, sizeof path, "%s/dev/mqueue", root);
	if (setxattr(path, "security.selinux", words[1], strlen(words[1]) + 1, 0))
		return fail(path);
	return 0;
}
