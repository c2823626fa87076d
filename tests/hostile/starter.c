/* SPDX-License-Identifier: Apache-2.0
 * A set-user-ID starter, as SingularityCE's: a user runs it, and as root it makes a mount namespace, a session tmpfs with
 * the user's root below it, and starts nvidia-container-cli there, with root's user and group and an empty environment.
 *
 *   starter bind|readonly|overlay ROOT SESSION WORD...
 *
 * Then it runs /app/cuda in the root, and with "wait" as its last word waits for a byte on standard input. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char final[4096], path[4096], options[16384];

static void check(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(99);
    }
}

static void folder(const char *session, const char *name) {
    snprintf(path, sizeof path, "%s/%s", session, name);
    check(mkdir(path, 0755), path);
}

static int run(char *const words[], int in_root) {
    static char *const environment[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    pid_t child = fork();
    int status;
    check(child, "fork");
    if (child == 0) {
        if (in_root) check(chroot(final), "chroot");
        if (in_root) check(chdir("/"), "chdir");
        execve(words[0], words, environment);
        perror(words[0]);
        _exit(98);
    }
    check(waitpid(child, &status, 0), "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    char *words[64] = {"/usr/bin/nvidia-container-cli", "configure", "--no-cgroups"};
    char *const program[] = {"/app/cuda", NULL};
    const char *mode = argv[1], *root = argv[2], *session = argv[3];
    int count = 3, code;
    if (argc < 4 || argc > 50) return 97;
    check(setresgid(0, 0, 0), "setresgid");
    check(setresuid(0, 0, 0), "setresuid");
    clearenv();
    check(unshare(CLONE_NEWNS), "unshare");
    check(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL), "slave");
    check(mount("tmpfs", session, "tmpfs", MS_NOSUID, "mode=1777"), session);
    folder(session, "final");
    strcpy(final, path);
    if (!strcmp(mode, "overlay")) {
        folder(session, "upper");
        folder(session, "work");
        snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s/upper,workdir=%s/work", root, session, session);
        check(mount("overlay", final, "overlay", MS_NOSUID | MS_NODEV, options), "overlay");
    } else {
        check(mount(root, final, NULL, MS_BIND, NULL), root);
        if (!strcmp(mode, "readonly"))
            check(mount(NULL, final, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL), "readonly");
    }
    for (int at = 4; at < argc; at++) words[count++] = argv[at];
    words[count++] = final;
    code = run(words, 0);
    printf("code %d\n", code);
    fflush(stdout);
    return code ? code : run(program, 1);
}
