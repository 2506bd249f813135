/*
 * The daemon: its files, its connections, and the messages on them.
 */
#define _GNU_SOURCE
#include "control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* R580's status without a libcuda.so.1. This one looks only by LD_LIBRARY_PATH. */
enum { NO_LIBCUDA = 244 };
/* Removes all that it has made. */
static void remove_all(void) {
    if (server)
        end_server();
    server_remove();
    for (const char *const *name = (const char *const[]){"control", "control_privileged", "control_lock",
                                                         "log", "nvidia-cuda-mps-control.pid", NULL};
         *name; name++) {
        char path[PATH_MAX];
        place(*name, path);
        unlink(path);
    }
}

/* Quits once its clients have gone, or after that many seconds. */
static void quit(int grace) {
    note("Quitting, with clients", clients());
    for (int i = 0; clients() && i < grace * 100; i++)
        usleep(10000);
    remove_all();
    exit(0);
}

static void take(int at) {
    int fd = accept4(polled[at].fd, NULL, NULL, SOCK_CLOEXEC);
    struct ucred who;
    socklen_t size = sizeof who;
    if (fd < 0)
        return;
    int made = add(fd, UI);
    if (made < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0)
        return;
    connections[made].namespace = connections[at].namespace;
    connections[made].pid = who.pid;
    connections[made].uid = who.uid;
    connections[made].privileged =
        options.protocol == 3 ? who.uid == geteuid() : connections[at].kind == LISTEN_UI;
}

static void serve2(const struct connection *client, struct mps_reply *reply) {
    bool others = server && !options.multiuser && server_uid != client->uid;
    if (others && clients() == 1) /* this one */
        end_server();
    if (!server)
        start_server(options.multiuser ? 0 : client->uid);
    struct mps_report told = ask_server();
    if (told.status == MPS_FAULT || (others && clients() > 1)) /* the real one makes it wait */
        reply->answer = MPS_NOT_READY;
    else if (told.status == MPS_ACTIVE)
        *reply = (struct mps_reply){.answer = MPS_SERVED, .percent = 100, .key = told.key};
}

/* Under protocol 3 a client's namespace sets its part, for any user's client. Without a namespace it gets a
 * server of its user, which is made for it. */
static void serve3(const struct connection *client, struct mps_reply *reply) {
    const struct namespace *namespace =
        &named_server.namespaces[client->namespace < 0 ? 0 : client->namespace];
    *reply = (struct mps_reply){.answer = MPS_FAILED};
    if (!named_server.there || !namespace->there)
        return;
    if (!server)
        start_server(0);
    if (!options.multiuser && client->uid != 0)
        return;
    struct mps_report told = ask_server();
    reply->answer = told.status == MPS_FAULT ? MPS_NOT_READY : told.status ? MPS_SERVED : MPS_FAILED;
    reply->percent = namespace->percent > 0 ? (uint32_t) namespace->percent : 100;
    reply->decides = namespace->percent > 0;
    reply->pinned = namespace->pinned;
    reply->key = told.key;
}

/* A client's first message. */
static void serve(int at) {
    struct mps_reply reply = {.answer = MPS_FAILED};
    note("NEW CLIENT from user", connections[at].uid);
    connections[at].kind = CLIENT;
    if (options.protocol == 3)
        serve3(&connections[at], &reply);
    else
        serve2(&connections[at], &reply);
    tell(at, &reply, sizeof reply);
}

static void hear(int at) {
    char text[MAX_COMMAND + 1];
    int grace;
    ssize_t size = recv(polled[at].fd, text, MAX_COMMAND, 0);
    if (connections[at].kind == SERVER) {
        if (size <= 0)
            end_server();
        return;
    }
    if (size <= 0 || connections[at].kind == CLIENT) {
        drop(at);
        return;
    }
    text[size] = 0;
    if (strcmp(text, MPS_CLIENT) == 0) {
        serve(at);
        return;
    }
    answer[0] = 0;
    if (connections[at].namespace != BY_USER)
        say("A namespace's socket takes no commands\n");
    else if ((grace = (options.protocol == 3 ? carry_out3 : carry_out2)(text, connections[at].privileged)) >=
             0)
        quit(grace);
    tell(at, answer, strlen(answer) + 1);
}

static void lock_folder(void) {
    char path[PATH_MAX];
    mkdir(pipe_folder, 0755);
    place("control_lock", path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK)
            fprintf(stderr, "An instance of this daemon is already running\n");
        else
            perror(path);
        exit(1);
    }
    fchmod(fd, 0666); /* the lock belongs to the descriptor */
}

static void write_pid(void) {
    char path[PATH_MAX];
    place("nvidia-cuda-mps-control.pid", path);
    FILE *file = fopen(path, "w");
    if (file) {
        fprintf(file, "%d\n", getpid());
        fclose(file);
        chmod(path, 0666);
    }
}

/* Whether one of the folders, a list as in PATH, has the file. */
static bool is_in(const char *name, const char *folders) {
    char path[PATH_MAX];
    while (folders && *folders) {
        size_t length = strcspn(folders, ":");
        if (snprintf(path, sizeof path, "%.*s/%s", (int)length, folders, name) < (int)sizeof path &&
            access(path, R_OK) == 0)
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

void run_daemon(bool background, const char *configuration) {
    char path[PATH_MAX];
    int ready[2];
    const char *logs = getenv("CUDA_MPS_LOG_DIRECTORY");
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(ready, O_CLOEXEC) < 0)
        exit(1);
    pid_t made = background ? fork() : 0;
    if (made > 0) {
        char byte;
        int status;
        close(ready[1]);
        if (read(ready[0], &byte, 1) == 1)
            exit(0);
        exit(waitpid(made, &status, 0) == made && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    setsid();
    if (!is_in("libcuda.so.1", getenv("LD_LIBRARY_PATH")))
        exit(NO_LIBCUDA);
    lock_folder();
    snprintf(log_folder, sizeof log_folder, "%s", logs && *logs ? logs : MPS_DEFAULT_LOG);
    mkdir(log_folder, 0755);
    if (snprintf(path, sizeof path, "%s/control.log", log_folder) >= (int)sizeof path)
        exit(1);
    journal = fopen(path, "ae");
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        polled[i].fd = -1;
    if (options.protocol == 2)
        listen_at("control_privileged", 0755, LISTEN_UI);
    listen_at("control", 0666, LISTEN_CLIENT);
    place("log", path);
    mkfifo(path, 0777);
    chmod(path, 0777);
    write_pid();
    if (configuration && !configuration_apply(configuration)) {
        fputs(answer, stderr);
        remove_all();
        exit(1);
    }
    note("Start", getpid());
    int nothing = background ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    for (int fd = 0; background && fd < 3; fd++)
        dup2(nothing, fd); /* a reader may wait for the end of its output */
    if (write(ready[1], "", 1) < 0)
        exit(1);
    close(ready[1]);
    for (;;) {
        if (poll(polled, MAX_CONNECTIONS, -1) < 0 && errno != EINTR)
            exit(1);
        for (int i = 0; i < MAX_CONNECTIONS; i++) {
            if (connections[i].kind == FREE || !polled[i].revents)
                continue;
            polled[i].revents = 0;
            if (connections[i].kind == LISTEN_CLIENT || connections[i].kind == LISTEN_UI)
                take(i);
            else
                hear(i);
        }
    }
}
