/*
 * The state itself: its objects by number, the watched descriptors, and the log.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>

struct state state;

struct unit *unit_of(uint32_t device, uint32_t mig) {
    return &state.devices[device].units[mig == SIM_NO_MIG ? 0 : 1 + mig];
}

struct context *context_of(struct client *client, uint32_t id) {
    struct context *context = client->contexts[id % SIM_MAX_CONTEXTS];
    return context && context->id == id ? context : NULL;
}

struct context *context_behind(struct reference reference) {
    struct context *context = state.contexts[reference.place];
    return context && context->self.serial == reference.serial ? context : NULL;
}

bool watch(int fd, void *what, unsigned kind) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = (char *)what + kind};
    return epoll_ctl(state.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void say(const char *format, ...) {
    char when[32];
    time_t now = time(NULL);
    struct tm parts;
    va_list arguments;
    strftime(when, sizeof when, "%FT%TZ", gmtime_r(&now, &parts));
    fprintf(stderr, "%s xpu-sim-driver: ", when);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}
