/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded under valgrind alone, which refuses mount calls younger than itself: answers them as a kernel
 * that has nothing against them.  A descriptor is a real one, a mount is not made.  What the program does
 * between its calls, which is all that is counted, stays the same.
 * Must not: be used where it matters what a call did.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPEN_TREE = 428, MOVE_MOUNT = 429, FSOPEN = 430, FSCONFIG = 431, FSMOUNT = 432, OPENAT2 = 437, MOUNT_SETATTR = 442 };

struct how {
    uint64_t flags, mode, resolve;
};

static int open_below(int folder, const char *path, const struct how *how) {
    while (folder != AT_FDCWD && *path == '/')
        path++;
    return openat(folder, *path ? path : ".", how->flags, how->mode);
}

static int open_folder(void) {
    char name[] = "/tmp/oci-gpu-hook-bench-mount-XXXXXX";
    int fd = mkdtemp(name) ? open(name, O_PATH | O_DIRECTORY) : -1;
    if (fd >= 0)
        rmdir(name);
    return fd;
}

long syscall(long number, ...) {
    static long (*next)(long, ...);
    va_list list;
    long a, b, c, d, e, f;
    va_start(list, number);
    a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    switch (number) {
    case OPENAT2:
        return open_below((int)a, (const char *)b, (const struct how *)c);
    case OPEN_TREE:
        return *(const char *)b ? openat((int)a, (const char *)b, O_PATH) : dup((int)a);
    case FSOPEN:
        return open("/dev/null", O_RDONLY);
    case FSMOUNT:
        return open_folder();
    case FSCONFIG:
    case MOVE_MOUNT:
    case MOUNT_SETATTR:
        return 0;
    }
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    return next(number, a, b, c, d, e, f);
}
