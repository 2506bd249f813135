/*
 * nvidia-cuda-mps-control: the stand-in. With -d or -f it is the control daemon. Otherwise it sends commands
 * to the daemon, and prints its answers.
 *
 * Files, commands and their effects are as NVIDIA documents them (docs.nvidia.com/deploy/mps): "Legacy MPS v2
 * Interface" (commands2.c), and R615's "MPS v3 Interface", "Namespaces" and "Configuration File"
 * (commands3.c, configuration.c). Commands that no program of ours gives are missing. The messages between
 * the daemon and its clients are our own (mps_protocol.h). There is one server at a time.
 */
#pragma once

#include "../../mps_protocol.h"

#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/un.h>

enum { MAX_CONNECTIONS = 256, MAX_COMMAND = 4096, MAX_NAME = 64, MAX_NAMESPACES = 64 };

/* ---- connections.c ---- */

enum kind { FREE, LISTEN_CLIENT, LISTEN_UI, UI, CLIENT, SERVER };

enum { BY_USER = -1 }; /* a connection that names no namespace */

struct connection {
    enum kind kind;
    bool privileged; /* it came by the socket that may change things, or from root under protocol 3 */
    int namespace;   /* its number, or BY_USER */
    pid_t pid;
    uid_t uid;
};

struct options {
    bool multiuser;
    int protocol;
};
extern struct options options;
extern struct connection connections[MAX_CONNECTIONS];
extern struct pollfd polled[MAX_CONNECTIONS]; /* at the same places */
extern FILE *journal;                         /* control.log; NULL: there is none */
extern char answer[1 << 16];                  /* to the present command */
extern char pipe_folder[PATH_MAX], log_folder[PATH_MAX];

/* A file of the pipe folder as a socket's name; false if its path is too long for one. */
bool named(struct sockaddr_un *address, const char *name);
void place(const char *name, char *path);
int add(int fd, enum kind kind);
void drop(int at);
/* Sends the given text to the connected process. */
void tell(int at, const void *data, size_t size);
/* Listens on `name` in the pipe folder. Returns the place of the socket. */
int listen_at(const char *name, mode_t mode, enum kind kind);
void note(const char *text, long number);
/* Adds to the answer of the present command. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* ---- server.c ---- */

extern pid_t server; /* 0: there is none */
extern uid_t server_uid;

void start_server(uid_t uid);
void end_server(void);
/* Its status is 0 without a server, or without an answer. */
struct mps_report ask_server(void);
int clients(void);

/* ---- commands2.c, commands3.c: -1; or the seconds that the daemon waits for clients before it quits ---- */

int carry_out2(char *text, bool privileged);
int carry_out3(char *text, bool privileged);

/* ---- namespaces.c: protocol 3's named server, and its namespaces' limits for their clients ---- */

struct namespace {
    bool there;
    char name[MAX_NAME + 1];
    double percent;  /* 0: not set */
    uint64_t pinned; /* bytes; 0: not set */
    char pinned_text[24], percent_text[24];
    int listens[2]; /* its connections' places; -1: none */
};

extern struct named_server {
    bool there;
    char name[MAX_NAME + 1];
    struct namespace namespaces[MAX_NAMESPACES]; /* the first is `default` */
} named_server;

void server_remove(void);
/* All return false with the reason in the answer. */
bool server_create(const char *name); /* for root, and in multiuser mode for all */
bool namespace_create(const char *name);
bool namespace_delete(const char *name, bool force);
struct namespace *namespace_named(const char *name);
bool namespace_set(struct namespace *namespace, const char *key, const char *value);

/* ---- configuration.c ---- */

/* Makes the server and namespaces of a TOML file. False with the reason in the answer. */
bool configuration_apply(const char *path);

/* ---- daemon.c ---- */

void run_daemon(bool background, const char *configuration) __attribute__((noreturn));
