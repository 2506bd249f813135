/*
 * The daemon's start: into the background, the file with its pid, and the message to the waiting process.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

int ready_fd = -1;

void report(const char *line) {
    if (ready_fd < 0)
        return;
    if (write(ready_fd, line, strlen(line)) < 0)
        say("nobody waits for: %s", line);
    close(ready_fd);
    ready_fd = -1;
}

_Noreturn void give_up(const char *what, const char *where) {
    char line[SIM_MAX_PATH + 256];
    snprintf(line, sizeof line, "%s %s: %s\n", what, where, strerror(errno));
    say("%.*s", (int)strcspn(line, "\n"), line);
    report(line);
    exit(1);
}

/* "PID START\n", START as in /proc/PID/stat: a later reader can distinguish this process from a later one of
 * the same pid. The lock is held as long as the driver lives. */
void write_pid_file(const char *path) {
    char text[2048] = "", line[64];
    int stat_fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t length = stat_fd < 0 ? -1 : read(stat_fd, text, sizeof text - 1);
    close(stat_fd);
    if (length <= 0)
        give_up("cannot read", "/proc/self/stat");
    const char *field = strrchr(text, ')');
    for (int i = 0; field && i < 20; i++)
        field = strchr(field + 1, ' ');
    if (!field)
        give_up("cannot understand", "/proc/self/stat");
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
        give_up("another driver holds", path);
    int size = snprintf(line, sizeof line, "%d %llu\n", (int)getpid(), strtoull(field + 1, NULL, 10));
    if (ftruncate(fd, 0) < 0 || write(fd, line, (size_t)size) != size)
        give_up("cannot write", path);
}

void become_daemon(void) {
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child < 0)
            give_up("cannot start", "a process");
        if (child > 0)
            _exit(0);
        if (i == 0 && setsid() < 0)
            give_up("cannot start", "a session");
    }
    int null = open("/dev/null", O_RDWR);
    int log = open(state.log_file, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (null < 0 || log < 0)
        give_up("cannot write", state.log_file);
    if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log, 2) < 0)
        give_up("cannot use", state.log_file);
    if (ready_fd >= 0 && ready_fd != 3) {
        if (dup2(ready_fd, 3) < 0)
            give_up("cannot use", "the ready descriptor");
        ready_fd = 3;
    }
    if (syscall(SYS_close_range, ready_fd >= 0 ? 4 : 3, ~0u, 0) < 0)
        give_up("cannot close", "the caller's descriptors");
    if (ready_fd >= 0)
        (void)fcntl(ready_fd, F_SETFD, FD_CLOEXEC);
}
