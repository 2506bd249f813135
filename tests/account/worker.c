/*
 * A process that uses the account on demand. It reads a command a line and answers a line. It is linked with
 * the account's own sources. Tests may make it fork, exec, change its root or user, close descriptors and
 * lose system calls, as programs do.
 */
#define _GNU_SOURCE
#include "account.h"
#include "budget.h"
#include "part.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE = 4096, WORDS = 8 };

static char answer[LINE];
static bool answered; /* a child has answered */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(answer, sizeof answer - 1, format, values);
    va_end(values);
}

/* By write alone, so that it works without any other system call. */
static void send_answer(void) {
    size_t length = strlen(answer);
    answer[length] = '\n';
    if (write(STDOUT_FILENO, answer, length + 1) != (ssize_t)length + 1)
        _exit(9);
}

static bool read_line(char *line) {
    for (size_t at = 0; at < LINE - 1 && read(STDIN_FILENO, line + at, 1) == 1; at++)
        if (line[at] == '\n') {
            line[at] = 0;
            return true;
        }
    return false;
}

/* ---- many threads, and signals ---- */

struct share {
    int rounds;
    unsigned seed;
    int refused;
};

static void *charge_and_give_back(void *argument) {
    struct share *share = argument;
    for (int round = 0; round < share->rounds; round++) {
        uint64_t bytes = (uint64_t)(rand_r(&share->seed) % 4096) + 1;
        enum xpu_kind kind = (enum xpu_kind)(rand_r(&share->seed) % XPU_KIND_RESERVED);
        if (xpu_charge(0, kind, bytes))
            xpu_uncharge(0, kind, bytes);
        else
            share->refused++;
    }
    return NULL;
}

static pthread_t running[64];
static struct share shares[64];

static void begin_threads(int count, int rounds) {
    for (int at = 0; at < count; at++) {
        shares[at] = (struct share){rounds, (unsigned)at + 1, 0};
        pthread_create(&running[at], NULL, charge_and_give_back, &shares[at]);
    }
}

/* The number of refused charges. */
static int join_threads(int count) {
    int refused = 0;
    for (int at = 0; at < count; at++) {
        pthread_join(running[at], NULL);
        refused += shares[at].refused;
    }
    return refused;
}

static void threads(int count, int rounds) {
    begin_threads(count, rounds);
    say("%d", join_threads(count));
}

/* Forks while other threads charge. Each child charges too. */
static void forks(int count, int times) {
    int failed = 0;
    begin_threads(count, times * 2000);
    for (int time = 0; time < times; time++) {
        pid_t child = fork();
        if (child == 0)
            _exit(!(xpu_charge(0, XPU_VMM, 8192) && xpu_process_used(0) == 8192));
        int status = -1;
        waitpid(child, &status, 0);
        failed += status != 0;
    }
    say("%d", failed + join_threads(count));
}

static volatile sig_atomic_t handled, charged;

/* A handler charges and the next one gives back, often while a call of the program is interrupted. */
static void on_signal(int number) {
    (void)number;
    handled++;
    if (charged) {
        xpu_uncharge(0, XPU_ARRAY, 512);
        charged = 0;
    } else if (xpu_charge(0, XPU_ARRAY, 512)) {
        charged = 1;
    }
}

static void signals(int wanted) {
    signal(SIGPROF, on_signal);
    signal(SIGUSR1, on_signal);
    pid_t self = getpid(), sender = fork();
    if (sender == 0)
        for (;;)
            if (kill(self, SIGUSR1) != 0)
                _exit(0);
    while (handled < wanted) {
        xpu_charge(0, XPU_LINEAR, 1024);
        xpu_uncharge(0, XPU_LINEAR, 1024);
    }
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
    signal(SIGUSR1, SIG_IGN);
    if (charged)
        xpu_uncharge(0, XPU_ARRAY, 512);
    say("%d", (int)handled);
}

/* ---- changes that programs make to themselves ---- */

static void close_from(int first) {
    for (int fd = first; fd < 1024; fd++)
        close(fd);
    say("ok");
}

static void seccomp(const char *how) {
    if (strcmp(how, "strict") == 0) { /* read, write, exit: any other call kills */
        say("%d", prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
        return;
    }
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    say("%d", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static void become(uid_t user) { say("%d", setresgid(user, user, user) | setresuid(user, user, user)); }

static void each_process(const struct xpu_process *process, void *data) {
    size_t *at = data;
    *at += (size_t)snprintf(answer + *at, sizeof answer - *at, "%s%u:%s:%llu", *at ? " " : "", process->pid,
                            process->name, (unsigned long long)process->used[0]);
}

static void list(void) {
    size_t at = 0;
    answer[0] = 0;
    xpu_each_process(each_process, &at);
}

static void run(char **words, int count);

/* A child that obeys `words` and answers. Then it ends, or stays until it is killed. */
static void in_child(char **words, int count, bool by_clone, bool stays) {
    pid_t child = by_clone ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
    if (child == 0) {
        run(words, count);
        if (stays)
            snprintf(answer + strlen(answer), sizeof answer - strlen(answer), " %d",
                     (int)syscall(SYS_getpid));
        send_answer();
        while (stays)
            pause();
        _exit(0);
    }
    if (!stays)
        waitpid(child, NULL, 0);
    answered = true;
}

static void in_vfork(char **words) {
    pid_t child = vfork();
    if (child == 0) {
        execv(words[0], words);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    say("%d", status);
}

static uint64_t number(const char *word) { return strtoull(word, NULL, 0); }

/* Opens a file as number 2; "append": as a log; "close-on-exec": as a log of its own. */
static void take_stderr(const char *way, const char *path) {
    close(STDERR_FILENO);
    int more = strcmp(way, "data") == 0 ? 0 : strcmp(way, "append") == 0 ? O_APPEND : O_APPEND | O_CLOEXEC;
    say("%d", open(path, O_RDWR | O_CREAT | more, 0600));
}

/* A line on stderr must not change these. */
static void refused(int device, uint64_t bytes) {
    sigset_t before, after;
    sigprocmask(SIG_SETMASK, NULL, &before);
    errno = 1234;
    xpu_memory_refused(device, bytes);
    int number = errno;
    sigprocmask(SIG_SETMASK, NULL, &after);
    say("%s", number != 1234 ? "errno" : memcmp(&before, &after, 8) != 0 ? "mask" : "1");
}

static bool of_the_account(char **words, int count) {
    int device = count > 1 ? atoi(words[1]) : 0;
    enum xpu_kind kind = (enum xpu_kind)(count > 2 ? atoi(words[2]) : 0);
    uint64_t bytes = count > 3 ? number(words[3]) : 0;
    const char *why = "";
    if (strcmp(words[0], "take") == 0)
        say("%s", xpu_slot_take(&why) ? "1" : why);
    else if (strcmp(words[0], "open") == 0)
        say("%s", xpu_pages_open(&why) ? "1" : why);
    else if (strcmp(words[0], "charge") == 0)
        say("%d", xpu_charge(device, kind, bytes));
    else if (strcmp(words[0], "anyway") == 0)
        xpu_charge_anyway(device, kind, bytes);
    else if (strcmp(words[0], "give") == 0)
        xpu_uncharge(device, kind, bytes);
    else if (strcmp(words[0], "move") == 0)
        xpu_move(device, kind, (enum xpu_kind)bytes, number(words[4]));
    else if (strcmp(words[0], "exported") == 0)
        xpu_exported(device, strtoll(words[2], NULL, 0));
    else if (strcmp(words[0], "imported") == 0)
        xpu_imported(atoi(words[1]));
    else if (strcmp(words[0], "free-exported") == 0)
        xpu_uncharge_exported(device, kind, bytes);
    else if (strcmp(words[0], "used") == 0)
        say("%llu", (unsigned long long)xpu_used(device));
    else if (strcmp(words[0], "own") == 0)
        say("%llu", (unsigned long long)xpu_process_used(device));
    else if (strcmp(words[0], "kind") == 0)
        say("%llu", (unsigned long long)xpu_process_used_of(device, kind));
    else if (strcmp(words[0], "limit") == 0)
        say("%llu", (unsigned long long)xpu_limit(device));
    else if (strcmp(words[0], "each") == 0)
        list();
    else if (strcmp(words[0], "refuse") == 0)
        xpu_device_refused(words[1]);
    else if (strcmp(words[0], "refused") == 0)
        refused(device, number(words[2]));
    else if (strcmp(words[0], "stderr") == 0)
        take_stderr(words[1], words[2]);
    else
        return false;
    return true;
}

/* The test gives the times. */
static bool of_the_budget(char **words, int count) {
    int device = count > 1 ? atoi(words[1]) : 0;
    uint64_t until = 0;
    if (strcmp(words[0], "launch") == 0 && count > 4) {
        bool may = xpu_budget_take(device, (uint32_t)number(words[2]), number(words[3]), number(words[4]), 0,
                                   &until);
        say("%d %llu", may, (unsigned long long)until);
    } else if (strcmp(words[0], "settle") == 0 && count > 5)
        xpu_budget_settle(device, strtoll(words[2], NULL, 0), number(words[3]), number(words[4]),
                          number(words[5]));
    else if (strcmp(words[0], "share") == 0 && count > 2)
        say("%lld", (long long)(int32_t)xpu_share(device, number(words[2])));
    else if (strcmp(words[0], "capped") == 0)
        say("%d", xpu_any_cap());
    else if (strcmp(words[0], "part") == 0 && count > 2)
        xpu_part_set(device, (uint32_t)number(words[2]));
    else if (strcmp(words[0], "fits") == 0 && count > 3)
        say("%d", xpu_parts_fit(device, (uint32_t)number(words[2]), number(words[3])));
    else if (strcmp(words[0], "launch-anyway") == 0 && count > 4)
        xpu_budget_take_anyway(device, (uint32_t)number(words[2]), number(words[3]), number(words[4]));
    else
        return false;
    return true;
}

static void run(char **words, int count) {
    say("ok");
    if (of_the_account(words, count) || of_the_budget(words, count))
        return;
    if (strcmp(words[0], "threads") == 0)
        threads(atoi(words[1]), atoi(words[2]));
    else if (strcmp(words[0], "forks") == 0)
        forks(atoi(words[1]), atoi(words[2]));
    else if (strcmp(words[0], "signals") == 0)
        signals(atoi(words[1]));
    else if (strcmp(words[0], "fork") == 0)
        in_child(words + 1, count - 1, false, false);
    else if (strcmp(words[0], "clone") == 0)
        in_child(words + 1, count - 1, true, false);
    else if (strcmp(words[0], "child") == 0)
        in_child(words + 1, count - 1, false, true);
    else if (strcmp(words[0], "vfork") == 0)
        in_vfork(words + 1);
    else if (strcmp(words[0], "exec") == 0)
        say("%d", execv(words[1], words + 1));
    else if (strcmp(words[0], "chroot") == 0)
        say("%d", chroot(words[1]) | chdir("/"));
    else if (strcmp(words[0], "closefrom") == 0)
        close_from(atoi(words[1]));
    else if (strcmp(words[0], "user") == 0)
        become((uid_t)atoi(words[1]));
    else if (strcmp(words[0], "seccomp") == 0)
        seccomp(words[1]);
    else if (strcmp(words[0], "pid") == 0)
        say("%d", (int)getpid());
    else if (strcmp(words[0], "secure") == 0)
        say("%d %d", (int)getuid(), (int)geteuid());
    else
        say("what is %s?", words[0]);
}

int main(void) {
    char line[LINE];
    while (read_line(line)) {
        char *words[WORDS] = {0}, *rest = line;
        int count = 0;
        while (count < WORDS - 1 && (words[count] = strtok_r(rest, " ", &rest)))
            count++;
        if (count == 0)
            continue;
        answered = false;
        run(words, count);
        if (!answered)
            send_answer();
    }
    return 0;
}
