/*
 * Lines for people. The log's file is opened for each line, as the program may close any descriptor.
 *
 * They come from inside another program: a line must not end it (SIGPIPE), stop it (SIGTTOU), keep it waiting
 * (a pipe without a reader), change its errno, or get into a file of the program that has number 2.
 */
#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 1024, PATH = 512 };
#define MIB (UINT64_C(1) << 20)
#define LONGEST_WAIT_NS 100000000L

bool xpu_log_on;
static char path[PATH];
static bool quiet; /* XPU_LOG=off */
static dev_t stderr_device;
static ino_t stderr_inode;

/* By number: the libc functions are cancellation points, or have a version newer than the oldest image. */
static int stat_of(int fd, struct stat *found) { return (int)syscall(SYS_fstat, fd, found); }

__attribute__((constructor)) static void remember_stderr(void) {
    struct stat found;
    int before = errno;
    if (stat_of(STDERR_FILENO, &found) == 0) {
        stderr_device = found.st_dev;
        stderr_inode = found.st_ino;
    }
    errno = before;
}

/* cudart loads this library at a program's first call. Number 2 may have been another file for long by then.
 * A shell or an engine never gives a stderr that is readable, unless it is appended to, and never a network
 * connection. */
static bool may_be_stderr(const struct stat *found) {
    if (S_ISREG(found->st_mode)) {
        long flags = syscall(SYS_fcntl, STDERR_FILENO, F_GETFL);
        return flags >= 0 && (flags & O_APPEND || (flags & O_ACCMODE) == O_WRONLY);
    }
    int domain = 0;
    socklen_t size = sizeof domain;
    return !S_ISSOCK(found->st_mode) ||
           (syscall(SYS_getsockopt, STDERR_FILENO, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
            domain == AF_UNIX);
}

/* Whether descriptor 2 is still for people. A daemon that has closed its stderr gets the number for its next
 * file, pipe or socket. So it must be the same file as when this library was loaded, or a file that is
 * appended to, as logs are. It must not be close-on-exec: a stderr that dup2 has set is not. */
static bool is_stderr(const struct stat *found) {
    long flags = syscall(SYS_fcntl, STDERR_FILENO, F_GETFD);
    if (flags < 0 || flags & FD_CLOEXEC)
        return false;
    if (found->st_dev == stderr_device && found->st_ino == stderr_inode)
        return may_be_stderr(found);
    return S_ISREG(found->st_mode) && syscall(SYS_fcntl, STDERR_FILENO, F_GETFL) & O_APPEND;
}

/* A kernel's set of signals: 64 bits. */
static uint64_t only(int signal) { return UINT64_C(1) << (signal - 1); }

/* Waits a moment for a slow reader. After that was in vain once, later lines do not wait. */
static bool takes_more(int fd) {
    static int slow;
    struct pollfd asked = {.fd = fd, .events = POLLOUT};
    struct timespec wait = {.tv_nsec = __atomic_load_n(&slow, __ATOMIC_RELAXED) ? 0 : LONGEST_WAIT_NS};
    bool ready = syscall(SYS_ppoll, &asked, 1, &wait, NULL, sizeof(uint64_t)) > 0;
    __atomic_store_n(&slow, !ready, __ATOMIC_RELAXED);
    return ready;
}

/* One write a line: lines of several processes do not mix. A line that cannot be written is left out. */
static void put(int fd, bool socket, const char *line, size_t length) {
    uint64_t stops = only(SIGPIPE) | only(SIGTTOU), before, pending = 0, broken = only(SIGPIPE);
    const struct timespec now = {0};
    if (socket) {
        syscall(SYS_sendto, fd, line, length, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
        return;
    }
    if (!takes_more(fd) || syscall(SYS_rt_sigprocmask, SIG_BLOCK, &stops, &before, sizeof before) != 0)
        return;
    syscall(SYS_rt_sigpending, &pending, sizeof pending);
    if (syscall(SYS_write, fd, line, length) < 0 && errno == EPIPE && !(pending & broken))
        syscall(SYS_rt_sigtimedwait, &broken, NULL, &now, sizeof broken); /* the one for this write */
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
}

static void write_line(int fd, char *line, int size, int length) {
    struct stat found;
    if (length < 0 || stat_of(fd, &found) != 0 || (fd == STDERR_FILENO && !is_stderr(&found)))
        return;
    if (length > size - 2)
        length = size - 2;
    line[length] = '\n';
    put(fd, S_ISSOCK(found.st_mode), line, (size_t)length + 1);
}

/* Whether this process has not printed it yet. A forked child prints it again. */
static bool is_news(int *said_by) {
    int self = (int)syscall(SYS_getpid);
    return __atomic_exchange_n(said_by, self, __ATOMIC_RELAXED) != self;
}

void xpu_device_refused(const char *why) {
    static int said_by;
    char line[LINE];
    int before = errno;
    if (is_news(&said_by))
        write_line(STDERR_FILENO, line, LINE, snprintf(line, LINE, "xpu: the device is refused: %s", why));
    errno = before;
}

void xpu_log_once(int *told_by, const char *format, ...) {
    int before = errno;
    bool told = __atomic_load_n(&xpu_log_on, __ATOMIC_RELAXED) && !path[0];
    if (!told && !quiet && is_news(told_by)) {
        char line[LINE / 2];
        va_list values;
        va_start(values, format);
        int length = vsnprintf(line, sizeof line, format, values);
        va_end(values);
        write_line(STDERR_FILENO, line, sizeof line, length);
    }
    errno = before;
}

struct xpu_mib xpu_mib(uint64_t bytes) {
    struct xpu_mib told;
    unsigned long long whole = bytes / MIB, tenths = bytes % MIB * 10 / MIB;
    if (bytes % MIB)
        snprintf(told.text, sizeof told.text, "%llu.%llu MiB", whole, tenths);
    else
        snprintf(told.text, sizeof told.text, "%llu MiB", whole);
    return told;
}

void xpu_log_open(void) {
    const char *wanted = getenv("XPU_LOG");
    quiet = wanted && strcmp(wanted, "off") == 0;
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
    int before = errno, start = snprintf(line, LINE, "xpu[%d]: ", (int)syscall(SYS_getpid));
    va_list values;
    va_start(values, format);
    int more = vsnprintf(line + start, (size_t)(LINE - start), format, values);
    va_end(values);
    int fd = STDERR_FILENO;
    if (path[0])
        fd = (int)syscall(SYS_openat, AT_FDCWD, path,
                          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK,
                          0644);
    if (fd >= 0)
        write_line(fd, line, LINE, more < 0 ? more : start + more);
    if (path[0] && fd >= 0)
        syscall(SYS_close, fd);
    errno = before;
}
