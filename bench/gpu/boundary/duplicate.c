/*
 * Whether the driver takes a control from another process, on a copy of a program's own descriptor: duplicate
 * [--anyway] [COMMAND...]. The program makes a control that only reads. This process repeats it with the same
 * client and object: on a copy of the descriptor (pidfd_getfd), and on a descriptor of its own.
 *
 * A way to hold memory limits below CUDA depends on the first: a supervisor would make a container's calls
 * itself, from its own copy of the arguments. The second should be refused. That shows that the open file
 * counts.
 */
#define _GNU_SOURCE
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { SECONDS = 40, MOST = 1 << 16 };
static const unsigned int RM_CONTROL_IOCTL =
    3u << 30 | (unsigned)sizeof(struct rm_control) << 16 | 'F' << 8 | RM_CONTROL;

/* Controls that only read, and have no pointer in their parameters. The first is preferred. */
static const struct {
    uint32_t command;
    const char *name;
} harmless[] = {
    {0x20801303, "FB_GET_INFO_V2"},   {0x20800102, "GPU_GET_INFO_V2"},     {0x2080014a, "GPU_GET_GID_INFO"},
    {0x20801701, "MC_GET_ARCH_INFO"}, {0x20800110, "GPU_GET_NAME_STRING"}, {0x20801801, "BUS_GET_PCI_INFO"},
};
enum { KINDS = sizeof harmless / sizeof *harmless };

static struct {
    struct rm_control control;
    int fd;
    unsigned char parameters[MOST];
} seen;
static unsigned int best = KINDS, controls;

static void program(void) {
    cuda_init();
    cuda_context();
    mark(READY);
    pause();
}

static void look(const struct ioctl *one) {
    struct rm_control control;
    if (one->nr != RM_CONTROL || one->size != sizeof control ||
        !watch_read(one->thread, one->argument, &control, sizeof control))
        return;
    controls++;
    for (unsigned int kind = 0; kind < best; kind++)
        if (control.command == harmless[kind].command && control.size <= MOST &&
            watch_read(one->thread, control.parameters, seen.parameters, control.size)) {
            seen.control = control;
            seen.fd = one->fd;
            best = kind;
        }
}

/* The driver's status, or -1 if the ioctl itself fails. */
static long again(int fd, const char *where) {
    static unsigned char parameters[MOST];
    struct rm_control control = seen.control;
    char name[128];
    memcpy(parameters, seen.parameters, control.size);
    control.parameters = (uint64_t)(uintptr_t)parameters;
    control.status = UINT32_MAX;
    int result = fd < 0 ? -1 : ioctl(fd, RM_CONTROL_IOCTL, &control);
    snprintf(name, sizeof name, "%s again on %s", harmless[best].name, where);
    if (result < 0) {
        value(name, "the ioctl fails: %s", strerror(errno));
        return -1;
    }
    value(name, "status 0x%x, %s", control.status,
          memcmp(parameters, seen.parameters, control.size) ? "parameters filled in"
                                                            : "parameters as they were");
    return control.status;
}

int main(int count, char **words) {
    (void)count;
    char **command = arguments(words);
    struct watched watched = watch_start(program, command, SECONDS);
    struct ioctl one;
    bool ended, ready = false;
    while (!ready && watch_next(&watched, &one, -1, &ended)) {
        ready = one.is_mark && one.step == READY;
        look(&one);
        watch_let(&watched, &one);
    }
    value("controls seen", "%u", controls);
    if (!check(ready, "the program has a context"))
        return 1;
    if (best == KINDS) {
        value("not reached", "no control that only reads was seen, so none could be made again");
    } else {
        int copy = watch_copy(&watched, seen.fd), own = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
        value("client, object", "0x%x, 0x%x", seen.control.client, seen.control.object);
        bool taken = again(copy, "a copy of the program's descriptor") == 0;
        bool refused = again(own, "a descriptor of its own") != 0;
        value("another process's control on a copy is taken", "%s", taken ? "yes" : "no");
        value("on a descriptor of its own it is refused", "%s", refused ? "yes" : "no");
    }
    kill(watched.pid, SIGKILL);
    return status_of_checks();
}
