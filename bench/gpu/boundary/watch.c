/* See watch.h. */
#define _GNU_SOURCE
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const unsigned int MARK = 0x58505500; /* no program's ioctl, on descriptor -1 */
enum { ONLY = 8 };
/* The parts of an ioctl's number that the driver looks at: its size, and the number proper. */
static const unsigned int LOOKED_AT = 0x3fff00ff;
static unsigned int only[ONLY], only_count;
static pid_t child;
static bool failed;

static void stop(const char *what) {
    printf("FAILED: %s: %s\n", what, strerror(errno));
    if (child > 0)
        kill(child, SIGKILL);
    exit(1);
}

/* ---- output ---- */

void value(const char *name, const char *format, ...) {
    va_list words;
    va_start(words, format);
    printf("%s: ", name);
    vprintf(format, words);
    printf("\n");
    fflush(stdout);
    va_end(words);
}

bool check(bool holds, const char *what) {
    printf("%s: %s\n", holds ? "ok" : "FAILED", what);
    fflush(stdout);
    failed = failed || !holds;
    return holds;
}

int status_of_checks(void) { return failed; }

char **arguments(char **words) {
    int fd;
    words++;
    if (*words && strcmp(*words, "--anyway") == 0)
        return words + 1;
    if ((fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC)) < 0) {
        printf("skipped: no NVIDIA kernel driver behind /dev/nvidiactl (%s)\n", strerror(errno));
        exit(SKIPPED);
    }
    close(fd);
    return words;
}

/* ---- the child ---- */

void mark(unsigned int step) { (void)ioctl(-1, MARK | step, NULL); }

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

void watch_only(const unsigned int *requests, unsigned int count) {
    for (only_count = 0; only_count < count && only_count < ONLY; only_count++)
        only[only_count] = requests[only_count];
}

static int install(struct sock_filter *rules, size_t count, unsigned long flags) {
    struct sock_fprog program = {(unsigned short)count, rules};
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER | flags,
                        &program);
}

/* Asks for every ioctl, or for marks and those of watch_only. */
static int filter_that_asks(void) {
    struct sock_filter rules[16 + 2 * ONLY];
    size_t count = 0;
#define RULE(...) rules[count++] = (struct sock_filter)__VA_ARGS__
#define ASK_IF(value)                                                                                        \
    RULE(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));                                                  \
    RULE(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF))
    RULE(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    RULE(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_ioctl, 1, 0));
    RULE(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    if (only_count) {
        /* The lower half of the second argument: the driver ignores the upper half, too. */
        RULE(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])));
        RULE(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~0xffu));
        ASK_IF(MARK);
        RULE(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])));
        RULE(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, LOOKED_AT));
        for (unsigned int i = 0; i < only_count; i++) {
            ASK_IF(only[i] & LOOKED_AT);
        }
        RULE(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    } else {
        RULE(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF));
    }
#undef ASK_IF
#undef RULE
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -1;
    /* A signal would repeat a call that is already answered, so that it is made twice. */
    int listener = only_count ? install(rules, count, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) : -1;
    return listener >= 0 ? listener : install(rules, count, 0);
}

static void be_child(void (*run)(void), char **command, int told) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int listener = filter_that_asks();
    if (write(told, &listener, sizeof listener) != sizeof listener || listener < 0)
        _exit(1);
    /* An exec closes it, so the parent takes a copy first. */
    if (read(told, &listener, 1) != 1)
        _exit(1);
    if (command && *command) {
        execvp(*command, command);
        _exit(127);
    }
    run();
    fflush(stdout);
    _exit(status_of_checks());
}

static void too_late(int signal) {
    static const char text[] = "FAILED: no end in time\n";
    (void)signal;
    if (child > 0)
        kill(child, SIGKILL);
    _exit(write(STDOUT_FILENO, text, sizeof text - 1) < 0 ? 2 : 1);
}

static int copied(pid_t pid, int fd) {
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int copy = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, fd, 0);
    int error = errno;
    if (process >= 0)
        close(process);
    errno = error;
    return copy;
}

static void have(unsigned int seconds) {
    signal(SIGALRM, too_late);
    alarm(seconds);
}

int watch_none(void (*run)(void), unsigned int seconds) {
    fflush(stdout);
    if ((child = fork()) == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run();
        fflush(stdout);
        _exit(status_of_checks());
    }
    if (child < 0)
        stop("fork");
    have(seconds);
    struct watched watched = {child, -1};
    return watch_end(&watched);
}

struct watched watch_start(void (*run)(void), char **command, unsigned int seconds) {
    int told[2], number = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, told))
        stop("socketpair");
    fflush(stdout);
    if ((child = fork()) == 0)
        be_child(run, command, told[1]);
    close(told[1]);
    if (child < 0 || read(told[0], &number, sizeof number) != sizeof number || number < 0)
        stop("a filter that asks (seccomp, user notification)");
    struct watched watched = {child, copied(child, number)};
    if (watched.listener < 0 || write(told[0], "", 1) != 1)
        stop("pidfd_getfd of the filter's listener");
    close(told[0]);
    have(seconds);
    return watched;
}

/* ---- the watching process ---- */

bool watch_read(pid_t pid, uint64_t address, void *into, size_t size) {
    struct iovec here = {into, size}, there = {(void *)address, size};
    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)size;
}

bool watch_write(const struct watched *watched, const struct ioctl *one, uint64_t address, const void *from,
                 size_t size) {
    uint64_t id = one->id;
    struct iovec here = {(void *)from, size}, there = {(void *)address, size};
    /* Its number may be another thread's by now. */
    return ioctl(watched->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0 &&
           process_vm_writev(one->thread, &here, 1, &there, 1, 0) == (ssize_t)size;
}

int watch_copy(const struct watched *watched, int fd) { return copied(watched->pid, fd); }

static void look(struct ioctl *next) {
    char path[64], target[256];
    struct {
        uint32_t command, size;
        uint64_t argument;
    } inner;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)next->thread, next->fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = 0;
    const char *name = strrchr(target, '/');
    if (name && strncmp(name + 1, "nvidia", 6) == 0)
        snprintf(next->node, sizeof next->node, "%.31s", name + 1);
    if (next->nr == XFER && next->size == sizeof inner && *next->node &&
        watch_read(next->thread, next->argument, &inner, sizeof inner)) {
        next->nr = inner.command;
        next->size = inner.size;
        next->argument = inner.argument;
    }
}

bool watch_next(const struct watched *watched, struct ioctl *next, int ms, bool *ended) {
    struct pollfd wait = {watched->listener, POLLIN, 0};
    struct seccomp_notif asked;
    *ended = false;
    for (;;) {
        int ready = poll(&wait, 1, ms);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0 || !(wait.revents & POLLIN)) {
            *ended = ready > 0;
            return false;
        }
        memset(&asked, 0, sizeof asked);
        if (ioctl(watched->listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) == 0)
            break;
        if (errno != ENOENT && errno != EINTR) /* a thread may be killed meanwhile */
            stop("SECCOMP_IOCTL_NOTIF_RECV");
    }
    unsigned int number = (unsigned int)asked.data.args[1];
    memset(next, 0, sizeof *next);
    next->id = asked.id;
    next->thread = (pid_t)asked.pid;
    next->fd = (int)asked.data.args[0];
    next->nr = number & 0xff;
    next->size = number >> 16 & 0x3fff;
    next->argument = asked.data.args[2];
    next->is_mark = next->fd == -1 && (number & ~0xffu) == MARK;
    next->step = next->is_mark ? next->nr : 0;
    if (!next->is_mark)
        look(next);
    return true;
}

static void answer(const struct watched *watched, struct seccomp_notif_resp *response) {
    if (ioctl(watched->listener, SECCOMP_IOCTL_NOTIF_SEND, response) && errno != ENOENT)
        stop("SECCOMP_IOCTL_NOTIF_SEND");
}

void watch_let(const struct watched *watched, const struct ioctl *one) {
    struct seccomp_notif_resp response = {.id = one->id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    answer(watched, &response);
}

void watch_answer(const struct watched *watched, const struct ioctl *one, int error) {
    struct seccomp_notif_resp response = {.id = one->id, .error = -error};
    answer(watched, &response);
}

int watch_end(const struct watched *watched) {
    int status;
    while (waitpid(watched->pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    child = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
