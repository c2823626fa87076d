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
#include <stdio.h>
#include <stdlib.h>
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

/* What is written to a new file system stays in a folder of the bench's, which takes it away. */
static int open_folder(void) {
    char name[4096];
    const char *mounts = getenv("BENCH_MOUNTS");
    if (!mounts || snprintf(name, sizeof name, "%s/XXXXXX", mounts) >= (int)sizeof name)
        return -1;
    return mkdtemp(name) ? open(name, O_PATH | O_DIRECTORY) : -1;
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

/* Nothing was mounted, so nothing can be unmounted. */
int umount2(const char *target, int flags) {
    (void)target, (void)flags;
    return 0;
}
