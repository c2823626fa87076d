/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a container's program can do, one line a check: NAME=ok, or NAME= and the error's name. It is C because each of
 * a hundred starts of an interpreter costs a second on an emulated processor.
 *
 *   probe nodes|lib|smi|sem|shm|mq|klog|hold|stay|load:LIBRARY|read:PATH|list:PATH|map:NODE|make:PATH|
 *         connect:PATH|listen:PATH ...
 *
 * Must not: judge; the table of cases knows what is right.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(const char *check, int succeeded)
{
	printf("%s=%s\n", check, succeeded ? "ok" : strerrorname_np(errno));
}

/* Every /dev/nvidia*: a node without a device answers ENXIO once everything has let us through. */
static void nodes(void)
{
	DIR *folder = opendir("/dev");
	struct dirent *entry;
	int count = 0;
	char wrong[512] = "";
	while (folder && (entry = readdir(folder))) {
		char path[300];
		struct stat status;
		snprintf(path, sizeof path, "/dev/%s", entry->d_name);
		if (strncmp(entry->d_name, "nvidia", 6) || (!stat(path, &status) && !S_ISCHR(status.st_mode)))
			continue;
		count++;
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0 || errno != ENXIO) {
			const char *got = fd >= 0 ? "opened" : strerrorname_np(errno);
			size_t used = strlen(wrong);
			snprintf(wrong + used, sizeof wrong - used, ",%s:%s", entry->d_name, got);
		}
		if (fd >= 0)
			close(fd);
	}
	if (*wrong)
		printf("nodes=%s\n", wrong + 1);
	else
		printf("nodes=%s\n", count ? "ENXIO" : "none");
}

static void library(void)
{
	void *found = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = NULL;
	if (found)
		*(void **)&init = dlsym(found, "cuInit");
	if (init && !init(0))
		puts("lib=ok");
	else
		printf("lib=%s\n", found ? "no cuInit" : dlerror());
}

static void load(const char *check, const char *name)
{
	printf("%s=%s\n", check, dlopen(name, RTLD_NOW) ? "ok" : dlerror());
}

static void smi(void)
{
	int status = -1;
	pid_t child = fork();
	if (!child) {
		int null = open("/dev/null", O_WRONLY);
		dup2(null, 1);
		execl("/usr/bin/nvidia-smi", "nvidia-smi", (char *)NULL);
		_exit(100 + errno);
	}
	waitpid(child, &status, 0);
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		puts("smi=ok");
	else
		printf("smi=status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static void semaphore(void)
{
	sem_t *made = sem_open("/probe", O_CREAT | O_EXCL, 0600, 1);
	tell("sem", made != SEM_FAILED && !sem_wait(made) && !sem_post(made) && !sem_unlink("/probe"));
}

static int segment(const char *name, const char *text)
{
	int fd = shm_open(name, O_CREAT | O_RDWR, 0644);
	if (fd < 0 || ftruncate(fd, 4096))
		return 0;
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (memory == MAP_FAILED)
		return 0;
	strcpy(memory, text);
	munmap(memory, 4096);
	return 1;
}

static int queue(const char *name)
{
	struct mq_attr attributes = { .mq_maxmsg = 2, .mq_msgsize = 64 };
	mqd_t made = mq_open(name, O_CREAT | O_RDWR, 0644, &attributes);
	return made >= 0 && !mq_send(made, "secret", 6, 0);
}

static void message_queue(void)
{
	char text[64];
	int made = queue("/probe");
	mqd_t again = made ? mq_open("/probe", O_RDWR) : -1;
	tell("mq", made && again >= 0 && mq_receive(again, text, sizeof text, NULL) == 6 && !mq_unlink("/probe"));
}

static void read_from(const char *check, const char *path)
{
	char byte;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	tell(check, fd >= 0 && read(fd, &byte, 1) >= 0);
	if (fd >= 0)
		close(fd);
}

static void list(const char *check, const char *path)
{
	DIR *folder = opendir(path);
	tell(check, folder && readdir(folder));
	if (folder)
		closedir(folder);
}

/* A node's memory, for execution. */
static void map(const char *check, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	tell(check, fd >= 0 && mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != MAP_FAILED);
	if (fd >= 0)
		close(fd);
}

/* The host's kernel log. */
static void kernel_log(void)
{
	enum { READ_ALL = 3 };
	char text[64];
	tell("klog", klogctl(READ_ALL, text, sizeof text) >= 0);
}

static void make(const char *check, const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 04755);
	tell(check, fd >= 0);
	if (fd >= 0)
		close(fd);
}

static void connect_to(const char *check, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	tell(check, !connect(fd, (struct sockaddr *)&address, sizeof address));
	close(fd);
}

/* A socket that is listened to for as long as we are there, in the place of one that an earlier process left. */
static void listen_at(const char *check, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	unlink(path);
	tell(check, !bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, 1));
}

/* Leave a segment for others, and stay. */
static void stay(void)
{
	tell("stay", segment("/secret", "secret"));
	for (;;)
		pause();
}

/* Leave everything that others may try to read, and stay. */
static void hold(void)
{
	int fd = open("/tmp/secret", O_CREAT | O_WRONLY, 0644);
	int wrote = fd >= 0 && write(fd, "secret", 6) == 6;
	int shared = segment("/secret", "secret");
	tell("hold", wrote && shared);
	tell("hold-mq", queue("/secret"));
	fflush(stdout);
	for (;;)
		pause();
}

int main(int count, char **checks)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < count; i++) {
		const char *check = checks[i];
		if (!strcmp(check, "nodes"))
			nodes();
		else if (!strcmp(check, "lib"))
			library();
		else if (!strcmp(check, "smi"))
			smi();
		else if (!strcmp(check, "sem"))
			semaphore();
		else if (!strcmp(check, "shm"))
			tell("shm", segment("/probe", "text") && !shm_unlink("/probe"));
		else if (!strcmp(check, "mq"))
			message_queue();
		else if (!strcmp(check, "klog"))
			kernel_log();
		else if (!strcmp(check, "hold"))
			hold();
		else if (!strcmp(check, "stay"))
			stay();
		else if (!strncmp(check, "load:", 5))
			load(check, check + 5);
		else if (!strncmp(check, "read:", 5))
			read_from(check, check + 5);
		else if (!strncmp(check, "list:", 5))
			list(check, check + 5);
		else if (!strncmp(check, "map:", 4))
			map(check, check + 4);
		else if (!strncmp(check, "make:", 5))
			make(check, check + 5);
		else if (!strncmp(check, "connect:", 8))
			connect_to(check, check + 8);
		else if (!strncmp(check, "listen:", 7))
			listen_at(check, check + 7);
		else
			return 2;
	}
	return 0;
}
