/*
 * share-load KIND [OPTION=VALUE...]: see the table of options below, and load.h.
 *
 * It logs "ready" and waits for the file `go`. The file holds the time of CLOCK_MONOTONIC in ns at which all
 * loads begin. It ends `seconds` after that, or at SIGTERM.
 */
#define _GNU_SOURCE
#include "load.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 32, NO_DEVICE = 77, MS = 1000000 };

static struct {
    const char *log, *go, *law;
    double seconds, each, fixed;
    unsigned int processes, cap;
} options = {.log = "share.log", .law = "none", .seconds = 10, .processes = 1};
static struct pattern pattern = {
    .kernel_ns = MS, .streams = 1, .threads = 1, .graph = 20, .round_ns = 5 * MS};
static pid_t workers[PROCESSES];

uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

void sleep_until(uint64_t when) {
    struct timespec time = {(time_t)(when / 1000000000), (long)(when % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL))
        ;
}

void fail(const char *format, ...) {
    char text[256];
    va_list words;
    va_start(words, format);
    vsnprintf(text, sizeof text, format, words);
    va_end(words);
    record_failure(text);
    fprintf(stderr, "share-load: %s\n", text);
    _exit(strstr(text, "no device") || strstr(text, "NO_DEVICE") ? NO_DEVICE : 1);
}

/* The log is complete at any moment. The program does not wait for work that the device still has. */
static void end(int signal) {
    (void)signal;
    record_state(STATE_DONE);
    _exit(0);
}

static void pass_on(int signal) {
    for (unsigned int i = 0; i < options.processes; i++)
        if (workers[i] > 0)
            kill(workers[i], signal);
}

static void end_at(uint64_t when) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec time = {
        .it_value = {(time_t)(when / 1000000000), (long)(when % 1000000000)},
    };
    signal(SIGALRM, end);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, TIMER_ABSTIME, &time, NULL))
        fail("no timer could be made");
}

static uint64_t common_start(void) {
    unsigned long long begin;
    FILE *file;
    if (!options.go)
        return now();
    /* The file appears as a whole: its maker renames it. */
    while (!(file = fopen(options.go, "re")))
        sleep_until(now() + 2 * MS);
    if (fscanf(file, "%llu", &begin) != 1)
        fail("%s: no time is in it", options.go);
    fclose(file);
    return begin;
}

static void work(unsigned int number) {
    const struct calibration known = {options.each, options.fixed};
    char path[4096];
    snprintf(path, sizeof path, "%s.%u", options.log, number);
    signal(SIGTERM, end);
    record_open(path);
    device_start(0, &known);
    pattern.place = number;
    pattern_prepare(&pattern);
    if (strcmp(options.law, "tokens") == 0 && options.cap < 100)
        law_start(options.cap);
    record_state(STATE_READY);
    uint64_t begin = common_start();
    end_at(begin + (uint64_t)(options.seconds * 1e9));
    sleep_until(begin);
    record_begin(begin);
    pattern_run();
}

/* Before cuInit: a context does not survive a fork. */
static int parent_of_workers(void) {
    int status, worst = 0;
    signal(SIGTERM, pass_on);
    if (strcmp(pattern.kind, "chain") == 0)
        chain_share(options.processes);
    for (unsigned int i = 0; i < options.processes; i++) {
        workers[i] = fork();
        if (workers[i] == 0)
            work(i);
        if (workers[i] < 0)
            fail("no process could be made");
    }
    for (unsigned int i = 0; i < options.processes; i++) {
        while (waitpid(workers[i], &status, 0) < 0)
            ;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        worst = code > worst ? code : worst;
    }
    return worst;
}

/* 10us, 1ms, 2.5s */
static uint64_t duration(const char *text) {
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
    char *rest;
    double amount = strtod(text, &rest);
    for (size_t i = 0; rest != text && i < sizeof units / sizeof *units; i++)
        if (strcmp(rest, units[i].name) == 0)
            return (uint64_t)(amount * units[i].ns);
    fail("%s: no duration; one is written 10us, 1ms, 2s", text);
}

static void option(const char *name, const char *value) {
    unsigned int number = (unsigned int)atoi(value);
    if (strcmp(name, "log") == 0)
        options.log = value; /* each process's log is this name, a point and its number */
    else if (strcmp(name, "go") == 0)
        options.go = value;
    else if (strcmp(name, "seconds") == 0)
        options.seconds = atof(value);
    else if (strcmp(name, "processes") == 0 && number >= 1 && number <= PROCESSES)
        options.processes = number;
    else if (strcmp(name, "kernel") == 0)
        pattern.kernel_ns = duration(value);
    else if (strcmp(name, "blocks") == 0 && number >= 1)
        pattern.blocks = number;
    else if (strcmp(name, "streams") == 0 && number >= 1)
        pattern.streams = number;
    else if (strcmp(name, "threads") == 0 && number >= 1)
        pattern.threads = number;
    else if (strcmp(name, "priorities") == 0)
        pattern.priorities = number != 0;
    else if (strcmp(name, "legacy") == 0)
        pattern.legacy = number != 0;
    else if (strcmp(name, "dependent") == 0)
        pattern.dependent = number != 0;
    else if (strcmp(name, "graph") == 0 && number >= 1)
        pattern.graph = number; /* kernels in it */
    else if (strcmp(name, "gap") == 0)
        pattern.gap_ns = duration(value); /* of the host, after each round that it waited for */
    else if (strcmp(name, "round") == 0)
        pattern.round_ns = duration(value); /* of work, before the program waits */
    else if (strcmp(name, "on") == 0)
        pattern.on_ns = duration(value);
    else if (strcmp(name, "off") == 0)
        pattern.off_ns = duration(value);
    else if (strcmp(name, "copy") == 0)
        pattern.copy = (size_t)atol(value); /* bytes to the device after each kernel, or in each step */
    else if (strcmp(name, "each") == 0)
        options.each = atof(value); /* as `share-load calibrate` prints them */
    else if (strcmp(name, "fixed") == 0)
        options.fixed = atof(value);
    else if (strcmp(name, "law") == 0 && (strcmp(value, "none") == 0 || strcmp(value, "tokens") == 0))
        options.law = value;
    else if (strcmp(name, "cap") == 0 && number >= 1 && number <= 100)
        options.cap = number; /* percent, for the law */
    else
        fail("%s=%s: there is no such option or value; see main.c", name, value);
}

int main(int count, char **words) {
    const struct calibration none = {0, 0};
    if (count > 1 && strcmp(words[1], "calibrate") == 0) {
        device_start(0, &none);
        struct calibration found = device_calibrate();
        printf("each=%.9g fixed=%.9g\n", found.each, found.fixed);
        return 0;
    }
    if (count < 2 || !round_kind(words[1]))
        fail("which kind of load? async, sync, graph, train, decode, interleaved, captured, "
             "contexts, forks, threads, chain; or calibrate");
    pattern.kind = words[1];
    for (int i = 2; i < count; i++) {
        char *value = strchr(words[i], '=');
        if (!value)
            fail("%s: an option is NAME=VALUE", words[i]);
        *value = 0;
        option(words[i], value + 1);
    }
    if (strcmp(options.law, "tokens") == 0 && !options.cap)
        fail("law=tokens needs cap=PERCENT");
    if (options.processes > 1)
        return parent_of_workers();
    work(0);
    return 0;
}
