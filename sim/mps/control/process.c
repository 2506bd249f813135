/*
 * The server: a process of its own, which is asked how it is; and the clients that it has.
 */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVER_PROGRAM "nvidia-cuda-mps-server"
enum { SERVER_S = 20 };

pid_t server;
double default_percent = 100, server_percent;
struct pinned default_pinned[MAX_LIMITS], server_pinned[MAX_LIMITS];
static uid_t server_uid;
static int server_fd = -1;

int clients(void) {
    int count = 0;
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        count += connections[i].kind == CLIENT;
    return count;
}

void list_clients(void) {
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (connections[i].kind == CLIENT)
            say("%d\n", connections[i].pid);
}

/* It is gone, or to go: so is all that its clients had. */
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
            dup2(nothing, fd); /* whoever waits for the end of what the daemon says */
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
    server_percent = default_percent;
    memcpy(server_pinned, default_pinned, sizeof server_pinned);
    add(server_fd, SERVER);
    struct mps_report told;
    note("Starting new server", server);
    if (!report(&told))
        end_server();
}

struct mps_report ask_server(enum mps_order order, pid_t pid) {
    struct mps_order_message message = {order, (uint32_t)pid};
    struct mps_report told = {0};
    if (!server || send(server_fd, &message, sizeof message, MSG_NOSIGNAL) < 0 || !report(&told))
        told.status = 0;
    return told;
}

/* ---- clients ---- */

static void serve2(const struct connection *client, struct mps_reply *reply) {
    bool others = server && !options.multiuser && server_uid != client->uid;
    if (others && clients() == 1) /* this one */
        end_server();
    if (!server)
        start_server(options.multiuser ? 0 : client->uid);
    struct mps_report told = ask_server(MPS_STATUS, 0);
    if (told.status == MPS_FAULT || (others && clients() > 1)) /* the real one has it wait */
        reply->answer = MPS_NOT_READY;
    else if (told.status == MPS_ACTIVE)
        *reply = (struct mps_reply){
            MPS_SERVED, (uint32_t)server_percent, pinned_of(server_pinned), told.key, 0, 0};
}

/* Under protocol 3 its namespace says what it gets, whoever it is of; without one it is its user's server
 * that it gets, which is made for it. */
static void serve3(const struct connection *client, struct mps_reply *reply) {
    const struct namespace *namespace =
        &named_server.namespaces[client->namespace < 0 ? 0 : client->namespace];
    *reply = (struct mps_reply){.answer = MPS_FAILED};
    if (!named_server.there || !namespace->there)
        return;
    if (!server)
        start_server(named_server.uid);
    if (!options.multiuser && client->uid != named_server.uid)
        return;
    struct mps_report told = ask_server(MPS_STATUS, 0);
    reply->answer = told.status == MPS_FAULT ? MPS_NOT_READY : told.status ? MPS_SERVED : MPS_FAILED;
    reply->percent = namespace->percent > 0 ? (uint32_t) namespace->percent : 100;
    reply->decides = namespace->percent > 0;
    reply->pinned = namespace->pinned;
    reply->key = told.key;
}

void serve(int at) {
    struct mps_reply reply = {.answer = MPS_FAILED};
    note("NEW CLIENT from user", connections[at].uid);
    connections[at].kind = CLIENT;
    if (options.protocol == 3)
        serve3(&connections[at], &reply);
    else
        serve2(&connections[at], &reply);
    tell(at, &reply, sizeof reply);
}
