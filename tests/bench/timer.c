/* SPDX-License-Identifier: Apache-2.0
 *
 * timer RECORD PROGRAM ARGV0 [ARG...]: runs a hook and appends what it took to RECORD, as one line of
 * wall time in ns, user and system time in us, peak memory in KiB, and the wait status.
 *
 * In C and static, because a child's peak memory starts with what its parent had before execve.
 * Must not: touch standard input, which is the hook's, or outlive it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long microseconds(struct timeval time) {
    return time.tv_sec * 1000000LL + time.tv_usec;
}

int main(int count, char **words) {
    struct rusage used;
    char line[160];
    int status;
    if (count < 4)
        return 125;
    long long begun = nanoseconds();
    pid_t child = fork();
    if (child < 0)
        return 125;
    if (child == 0) {
        execv(words[2], words + 3);
        _exit(127);
    }
    if (wait4(child, &status, 0, &used) != child)
        return 125;
    long long taken = nanoseconds() - begun;
    int length = snprintf(line, sizeof line, "%lld %lld %lld %ld %d\n", taken, microseconds(used.ru_utime),
                          microseconds(used.ru_stime), used.ru_maxrss, status);
    int record = open(words[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (record < 0 || write(record, line, length) != length)
        return 125;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
