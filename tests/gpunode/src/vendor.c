/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs of other vendors' drivers: each says of its devices' nodes, NODES, which of them this
 * process may open; of a folder there, of all that are in it.
 * Exit 0 where there is a node and all may be opened; else 1.
 * Must not: need anything from the image it runs in.
 */
#include "sys.h"

enum { PATH = 256 };

static int found, denied;

static void show(const char *path)
{
	long result = sys_open(path, O_RDWR | O_NONBLOCK);
	if (result == -ENOENT)
		return;
	int no = result == -EPERM || result == -EACCES;
	if (result >= 0)
		sys_close((int)result);
	found++;
	denied += no;
	SAY(path, no ? " denied\n" : " allowed\n");
}

static void show_folder(int fd, const char *folder)
{
	static char entries[32768];
	char path[PATH];
	long got;
	while ((got = sys_getdents64(fd, entries, sizeof entries)) > 0)
		for (long at = 0; at < got;) {
			struct dirent64 *entry = (void *)(entries + at);
			at += entry->d_reclen;
			if (entry->d_type != DT_CHR && entry->d_type != DT_REG)
				continue;
			text_copy(path, sizeof path, folder);
			text_append(path, sizeof path, "/");
			text_append(path, sizeof path, entry->d_name);
			show(path);
		}
}

LOCAL _Noreturn void start(const long *stack)
{
	(void)stack;
	char path[PATH];
	for (const char *at = NODES; *at;) {
		size_t n = 0;
		while (*at && *at != ' ' && n + 1 < sizeof path)
			path[n++] = *at++;
		path[n] = 0;
		while (*at == ' ')
			at++;
		long fd = sys_open(path, O_RDONLY | O_DIRECTORY);
		if (fd >= 0)
			show_folder((int)fd, path);
		else
			show(path);
	}
	sys_exit(!found || denied);
}
ENTRY(start);
