/*
 * Lines for people: the one that says why the device is refused, and, where XPU_LOG asks for it, what the
 * wrappers do. The log's file is opened for each line, as the program may close any descriptor.
 */
#define _GNU_SOURCE
#include "slot.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = 1024, PATH = 512 };

bool xpu_log_on;
static char path[PATH];

static void write_line(int fd, char *line, int size, int length) {
    if (length < 0)
        return;
    if (length > size - 2)
        length = size - 2;
    line[length] = '\n';
    /* One write a line: lines of several processes do not mix. What cannot be said is not said. */
    (void)!syscall(SYS_write, fd, line, (size_t)length + 1);
}

void xpu_refuse(const char *why) {
    static int said;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
        return;
    char line[LINE];
    write_line(STDERR_FILENO, line, LINE, snprintf(line, LINE, "xpu: the device is refused: %s", why));
}

void xpu_log_open(void) {
    const char *wanted = getenv("XPU_LOG");
    if (!wanted || strncmp(wanted, "debug", 5) != 0 || (wanted[5] && wanted[5] != ':'))
        return;
    if (wanted[5] == ':' && wanted[6]) {
        /* A setuid program writes no file for its caller. */
        if (getauxval(AT_SECURE) || strlen(wanted + 6) >= PATH)
            return;
        memcpy(path, wanted + 6, strlen(wanted + 6) + 1);
    }
    __atomic_store_n(&xpu_log_on, true, __ATOMIC_RELAXED);
}

void xpu_log(const char *format, ...) {
    char line[LINE];
    int start = snprintf(line, LINE, "xpu[%d]: ", (int)syscall(SYS_getpid));
    va_list values;
    va_start(values, format);
    int more = vsnprintf(line + start, (size_t)(LINE - start), format, values);
    va_end(values);
    int fd = STDERR_FILENO;
    if (path[0])
        fd = (int)syscall(SYS_openat, AT_FDCWD, path,
                          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0644);
    if (fd < 0)
        return;
    write_line(fd, line, LINE, more < 0 ? more : start + more);
    if (path[0])
        xpu_close(fd);
}
