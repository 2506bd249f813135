/*
 * xpu-sim-driver: the "kernel driver" of the simulated device.
 *
 * It is a daemon and not shared memory, because only another process can know a client's true pid and cgroup,
 * and see its end. The peer's credentials and a pidfd come with each connection, and all memory of a process
 * is freed when either end of it is gone. It has one thread, one epoll, and only libc.
 *
 *     xpu-sim-driver --config FILE [--ready-fd N] [--foreground]
 *
 * When it listens it writes "ok\n" on the ready descriptor; if it cannot, a line with the reason.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static int timer_fd, signal_fd, listen_fd;
static uint32_t connection_limit = MAX_CONNECTIONS;

/* Binds with the folder as working directory: its path may be too long for a socket's address. */
static void listen_at(const char *folder) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = SIM_SOCKET_NAME};
    listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listen_fd < 0 || chdir(folder) < 0)
        give_up("cannot listen in", folder);
    (void)unlink(SIM_SOCKET_NAME); /* a killed driver left it: none runs, by the pid file's lock */
    if (bind(listen_fd, (struct sockaddr *)&name, sizeof name) < 0 || chmod(SIM_SOCKET_NAME, 0666) < 0 ||
        listen(listen_fd, 128) < 0)
        give_up("cannot listen in", folder);
    if (chdir("/") < 0)
        give_up("cannot go to", "/");
}

static int pidfd_of(int socket, pid_t pid) {
    int fd = -1;
    socklen_t size = sizeof fd;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0)
        return fd;
    /* Linux before 6.5. Any other error means that the peer is dead, and that another process may have its
     * pid. */
    return errno == ENOPROTOOPT ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static void accept_one(void) {
    static bool turned_away;
    int socket = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (socket < 0)
        return;
    uint32_t of_process = 0;
    bool known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0;
    for (struct client *other = state.clients; known && other; other = other->next)
        of_process += other->pid == peer.pid;
    struct client *client = NULL;
    if (known && state.client_count < connection_limit && of_process < MAX_CONNECTIONS_PER_PROCESS)
        client = calloc(1, sizeof *client);
    int pidfd = client ? pidfd_of(socket, peer.pid) : -1;
    if (pidfd < 0 || !watch(socket, client, WATCH_CLIENT) || !watch(pidfd, client, WATCH_DEATH)) {
        if (!turned_away)
            say("a client was turned away, pid %d", known ? (int)peer.pid : 0);
        turned_away = true; /* logged once in a row, so that clients cannot fill the disk */
        free(client);
        if (pidfd >= 0)
            close(pidfd);
        close(socket);
        return;
    }
    turned_away = false;
    client->socket = socket;
    client->pidfd = pidfd;
    client->pid = peer.pid;
    client->uid = peer.uid;
    client->since = clock_now();
    client->next = state.clients;
    state.clients = client;
    state.client_count++;
}

/* Frees a client's memory at once, so that a process that has seen its end finds the memory free. The struct
 * itself is freed at the end of the round, because events of this round may still point to it. */
static void let_go(struct client *client) {
    mps_leave(client);
    waits_drop_client(client); /* dooms it */
    for (uint32_t i = 0; i < SIM_MAX_CONTEXTS; i++)
        if (client->contexts[i])
            context_destroy(client, client->contexts[i]->id);
    memory_free_client(client);
    share_forget_client(client);
}

static void drop(struct client *client) {
    let_go(client);
    cgroup_release(client->cgroup);
    free(client->cgroup_path);
    free(client->slots);
    close(client->socket);
    close(client->pidfd);
    state.client_count--;
    free(client);
}

/* The descriptor that came with a message, or -1. Of several, none is kept. */
static int received(struct msghdr *message) {
    int fd = -1, count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + CMSG_LEN(sizeof fd) <= part->cmsg_len; at += sizeof fd, count++) {
            if (fd >= 0)
                close(fd);
            memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
        }
    }
    if (count > 1) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Reads one message, so that no client keeps the others waiting. */
static void serve(struct client *client) {
    static char message[sizeof(struct sim_request) + SIM_MAX_PATH];
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    struct iovec part = {message, sizeof message};
    struct msghdr head = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(client->socket, &head, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int fd = size < 0 ? -1 : received(&head);
    if (size > 0 && (size_t)size <= sizeof message) {
        request_handle(client, message, (size_t)size, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    let_go(client);
}

static void drop_doomed(void) {
    struct client **link = &state.clients;
    while (*link) {
        struct client *client = *link;
        if (client->doomed) {
            *link = client->next;
            drop(client);
        } else {
            link = &client->next;
        }
    }
}

static void arm_timer(uint64_t due, uint64_t now) {
    struct itimerspec when = {0};
    if (due) {
        /* A wait's due time moves while other contexts get their slices: look again, but not too often. */
        uint64_t soonest = now + 20000;
        due = due < soonest ? soonest : due;
        when.it_value.tv_sec = (time_t)(due / 1000000000ull);
        when.it_value.tv_nsec = (long)(due % 1000000000ull);
    }
    (void)timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* A process with the descriptor may write into the pipe. These bytes are dropped. */
static void handle_event(struct handle *handle, uint32_t events) {
    char text[4096];
    if (read(handle->fd, text, sizeof text) <= 0 && (events & EPOLLHUP))
        share_hangup(handle);
}

enum { KINDS = 3 }; /* the low bits of an event's pointer */

static unsigned kind_of(const struct epoll_event *event) { return (uintptr_t)event->data.ptr & KINDS; }

static void *watched(const struct epoll_event *event) { return (char *)event->data.ptr - kind_of(event); }

/*
 * Takes back memory that no process has any more, before any request of the same round. Otherwise a request
 * could find memory of a process that was dead when it was sent. The driver closes its own copy of a
 * descriptor only after the reply with the descriptor. If it loses its processor in between, the receiving
 * process may die, and another one ask, before the last copy is closed. Then the request comes first here.
 */
static void take_back(const struct epoll_event *events, int count) {
    for (int i = 0; i < count; i++)
        if (kind_of(&events[i]) == WATCH_HANDLE)
            handle_event(watched(&events[i]), events[i].events);
        else if (kind_of(&events[i]) == WATCH_DEATH)
            let_go(watched(&events[i]));
}

/* Returns when a signal asks for the end. */
static void serve_all(void) {
    struct epoll_event events[64];
    for (;;) {
        int count = epoll_wait(state.epoll_fd, events, 64, -1);
        take_back(events, count);
        for (int i = 0; i < count; i++) {
            void *what = watched(&events[i]);
            uint64_t ticks;
            if (what == &signal_fd)
                return;
            if (kind_of(&events[i]) == WATCH_HANDLE || kind_of(&events[i]) == WATCH_DEATH)
                continue;
            if (what == &listen_fd)
                accept_one();
            else if (what == &timer_fd)
                (void)!read(timer_fd, &ticks, sizeof ticks);
            else if (!((struct client *)what)->doomed)
                serve(what);
        }
        drop_doomed();
        uint64_t now = clock_now();
        arm_timer(waits_resolve(now), now);
        drop_doomed();
    }
}

static void set_up(void) {
    struct rlimit files;
    sigset_t ending;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
        /* Three descriptors for each connection (socket, pidfd, data), one for each handle. */
        if (files.rlim_cur < 3 * MAX_CONNECTIONS + MAX_HANDLES + 64)
            connection_limit = files.rlim_cur > 256 ? (uint32_t)(files.rlim_cur - 128) / 4 : 32;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, NULL);
    state.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    signal_fd = signalfd(-1, &ending, SFD_CLOEXEC);
    if (state.epoll_fd < 0 || timer_fd < 0 || signal_fd < 0)
        give_up("cannot set up", "events");
    if (!watch(timer_fd, &timer_fd, 0) || !watch(signal_fd, &signal_fd, 0))
        give_up("cannot watch", "events");
}

int main(int argc, char **argv) {
    const char *config = NULL;
    bool foreground = false;
    char problem[SIM_MAX_PATH + 256];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--foreground") == 0)
            foreground = true;
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            config = argv[++i];
        else if (strcmp(argv[i], "--ready-fd") == 0 && i + 1 < argc)
            ready_fd = atoi(argv[++i]);
        else
            config = NULL, i = argc;
    }
    if (!config) {
        fputs("usage: xpu-sim-driver --config FILE [--ready-fd N] [--foreground]\n", stderr);
        return 2;
    }
    if (!config_read(config, problem, sizeof problem)) {
        say("%s", problem);
        report(problem);
        return 1;
    }
    if (!foreground)
        become_daemon();
    umask(022);
    write_pid_file(state.pid_file);
    set_up();
    cgroup_setup();
    for (uint32_t i = 0; i < state.device_count; i++)
        for (uint32_t j = 0; j < UNITS_PER_DEVICE; j++)
            state.devices[i].units[j].clock = clock_now();
    listen_at(state.socket_dir);
    if (!watch(listen_fd, &listen_fd, 0))
        give_up("cannot watch", "the socket");
    say("driver %s with %u devices listens in %s", state.driver_version, state.device_count,
        state.socket_dir);
    report("ok\n");
    serve_all();
    if (chdir(state.socket_dir) == 0)
        (void)unlink(SIM_SOCKET_NAME);
    (void)unlink(state.pid_file);
    say("ended");
    while (state.clients) {
        state.clients->doomed = true;
        drop_doomed();
    }
    return 0;
}
