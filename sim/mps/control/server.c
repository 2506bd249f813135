/*
 * The server: a process of its own, which reports its state; and its clients.
 */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVER_PROGRAM "nvidia-cuda-mps-server"
enum { SERVER_S = 20 };

pid_t server;
uid_t server_uid;
static int server_fd = -1;

int clients(void) {
    int count = 0;
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        count += connections[i].kind == CLIENT;
    return count;
}

/* It has ended, or must end. So have all objects of its clients. */
void end_server(void) {
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    note("Server exited", server);
    server = 0;
    server_fd = -1;
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (connections[i].kind == CLIENT || connections[i].kind == SERVER)
            drop(i);
}

static bool report(struct mps_report *told) {
    struct pollfd one = {server_fd, POLLIN, 0};
    return poll(&one, 1, SERVER_S * 1000) == 1 && recv(server_fd, told, sizeof *told, 0) == sizeof *told;
}

void start_server(uid_t uid) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0)
        return;
    server = fork();
    if (server == 0) {
        int nothing = open("/dev/null", O_RDWR);
        for (int fd = 0; fd < 3; fd++)
            dup2(nothing, fd); /* a reader may wait for the end of the daemon's output */
        dup2(pair[1], MPS_SERVER_FD);
        for (int fd = MPS_SERVER_FD + 1; fd < 1024; fd++)
            close(fd);
        if (uid && !options.multiuser && (setgid(uid) < 0 || setuid(uid) < 0))
            _exit(1);
        execlp(SERVER_PROGRAM, SERVER_PROGRAM, (char *)NULL); /* by PATH, as NVIDIA's does */
        _exit(1);
    }
    close(pair[1]);
    server_fd = pair[0];
    fcntl(server_fd, F_SETFD, FD_CLOEXEC);
    server_uid = uid;
    add(server_fd, SERVER);
    struct mps_report told;
    note("Starting new server", server);
    if (!report(&told))
        end_server();
}

struct mps_report ask_server(void) {
    struct mps_report told = {0};
    if (!server || send(server_fd, MPS_STATUS, sizeof MPS_STATUS, MSG_NOSIGNAL) < 0 || !report(&told))
        told.status = 0;
    return told;
}
