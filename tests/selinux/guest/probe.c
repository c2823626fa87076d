/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a container's program can do, one line a check: NAME=ok, or NAME= and the error's name. It is C because each of
 * a hundred starts of an interpreter costs a second on an emulated processor.
 *
 *   probe nodes|lib|smi|sem|shm|mq|hold|stay|load:LIBRARY|read:PATH|make:PATH|connect:PATH|listen:PATH ...
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
static void nodes(const char *check, const char *unused)
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
		int fd = open(path, O_RDWR);
		if (fd >= 0 || errno != ENXIO) {
			const char *got = fd >= 0 ? "opened" : strerrorname_np(errno);
			size_t used = strlen(wrong);
			snprintf(wrong + used, sizeof wrong - used, ",%s:%s", entry->d_name, got);
		}
	}
	printf("%s=%s\n", check, *wrong ? wrong + 1 : count ? "ENXIO" : "none");
}

static void library(const char *check, const char *unused)
{
	void *found = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned) = NULL;
	if (found)
		*(void **)&init = dlsym(found, "cuInit");
	printf("%s=%s\n", check, init && !init(0) ? "ok" : found ? "no cuInit" : dlerror());
}

static void load(const char *check, const char *name)
{
	printf("%s=%s\n", check, dlopen(name, RTLD_NOW) ? "ok" : dlerror());
}

static void smi(const char *check, const char *unused)
{
	int status = system("exec /usr/bin/nvidia-smi >/dev/null");
	if (status)
		printf("%s=status %d\n", check, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	else
		printf("%s=ok\n", check);
}

static void semaphore(const char *check, const char *unused)
{
	sem_t *made = sem_open("/probe", O_CREAT | O_EXCL, 0600, 1);
	tell(check, made != SEM_FAILED && !sem_wait(made) && !sem_post(made) && !sem_unlink("/probe"));
}

static int segment(const char *name)
{
	int fd = shm_open(name, O_CREAT | O_RDWR, 0644);
	if (fd < 0 || ftruncate(fd, 4096))
		return 0;
	char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return 0;
	strcpy(memory, "secret");
	return 1;
}

static void shared_memory(const char *check, const char *unused)
{
	tell(check, segment("/probe") && !shm_unlink("/probe"));
}

static int queue(const char *name)
{
	struct mq_attr attributes = { .mq_maxmsg = 2, .mq_msgsize = 64 };
	mqd_t made = mq_open(name, O_CREAT | O_RDWR, 0644, &attributes);
	return made >= 0 && !mq_send(made, "secret", 6, 0);
}

static void message_queue(const char *check, const char *unused)
{
	char text[64];
	int made = queue("/probe");
	mqd_t again = made ? mq_open("/probe", O_RDWR) : -1;
	tell(check, made && again >= 0 && mq_receive(again, text, sizeof text, NULL) == 6 && !mq_unlink("/probe"));
}

static void read_from(const char *check, const char *path)
{
	char byte;
	int fd = open(path, O_RDONLY);
	tell(check, fd >= 0 && read(fd, &byte, 1) >= 0);
	close(fd);
}

static void make(const char *check, const char *path)
{
	tell(check, open(path, O_WRONLY | O_CREAT | O_EXCL, 04755) >= 0);
}

static int local_socket(const char *path, struct sockaddr_un *address)
{
	address->sun_family = AF_UNIX;
	snprintf(address->sun_path, sizeof address->sun_path, "%s", path);
	return socket(AF_UNIX, SOCK_STREAM, 0);
}

static void connect_to(const char *check, const char *path)
{
	struct sockaddr_un address;
	int fd = local_socket(path, &address);
	tell(check, !connect(fd, (struct sockaddr *)&address, sizeof address));
}

/* A socket that is listened to for as long as we are there, in the place of one that an earlier process left. */
static void listen_at(const char *check, const char *path)
{
	struct sockaddr_un address;
	int fd = local_socket(path, &address);
	unlink(path);
	tell(check, !bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, 1));
}

/* Leave a segment for others, and stay. */
static void stay(const char *check, const char *unused)
{
	tell(check, segment("/secret"));
	for (;;)
		pause();
}

/* Leave everything that others may try to read, and stay. */
static void hold(const char *check, const char *unused)
{
	int fd = open("/tmp/secret", O_CREAT | O_WRONLY, 0644);
	tell("hold-mq", fd >= 0 && write(fd, "secret", 6) == 6 && queue("/secret"));
	stay(check, unused);
}

static const struct {
	const char *name;
	void (*run)(const char *check, const char *path);
} CHECKS[] = {
	{ "nodes", nodes }, { "lib", library }, { "smi", smi }, { "sem", semaphore }, { "shm", shared_memory },
	{ "mq", message_queue }, { "hold", hold }, { "stay", stay }, { "load:", load }, { "read:", read_from },
	{ "make:", make }, { "connect:", connect_to }, { "listen:", listen_at },
};

int main(int count, char **checks)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < count; i++) {
		const char *path = strchr(checks[i], ':');
		size_t length = path ? (size_t)(++path - checks[i]) : strlen(checks[i]), n = 0;
		while (n < sizeof CHECKS / sizeof *CHECKS &&
		       (strlen(CHECKS[n].name) != length || strncmp(checks[i], CHECKS[n].name, length)))
			n++;
		if (n == sizeof CHECKS / sizeof *CHECKS)
			return 2;
		CHECKS[n].run(checks[i], path);
	}
	return 0;
}
