/*
 * The pipe folder's sockets, their connections, and the messages to them and to the log.
 */
#define _GNU_SOURCE
#include "control.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct options options = {false, 2};
struct connection connections[MAX_CONNECTIONS];
char pipe_folder[PATH_MAX], log_folder[PATH_MAX];
struct pollfd polled[MAX_CONNECTIONS];
FILE *journal;
char answer[1 << 16];

void say(const char *format, ...) {
    size_t length = strlen(answer);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(answer + length, sizeof answer - length, format, arguments);
    va_end(arguments);
}

void note(const char *text, long number) {
    if (!journal)
        return;
    struct timespec now;
    struct tm parts;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &parts);
    fprintf(journal, "[%s.%03ld Control %5d] %s %ld\n", stamp, now.tv_nsec / 1000000, getpid(), text, number);
    fflush(journal);
}

/* As in R555, which takes a byte less than bind(2). */
bool named(struct sockaddr_un *address, const char *name) {
    char path[PATH_MAX];
    place(name, path);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length + 1 >= sizeof address->sun_path)
        return false;
    memcpy(address->sun_path, path, length + 1);
    return true;
}

void place(const char *name, char *path) {
    if (snprintf(path, PATH_MAX, "%s/%s", pipe_folder, name) >= PATH_MAX)
        exit(1);
}

int add(int fd, enum kind kind) {
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (connections[i].kind == FREE) {
            connections[i] = (struct connection){.kind = kind, .namespace = BY_USER};
            polled[i] = (struct pollfd){fd, POLLIN, 0};
            return i;
        }
    close(fd);
    return -1;
}

void drop(int at) {
    close(polled[at].fd);
    polled[at].fd = -1;
    connections[at].kind = FREE;
}

void tell(int at, const void *data, size_t size) { (void)!send(polled[at].fd, data, size, MSG_NOSIGNAL); }

int listen_at(const char *name, mode_t mode, enum kind kind) {
    struct sockaddr_un address;
    char path[PATH_MAX];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    place(name, path);
    unlink(path);
    if (!named(&address, name))
        exit(1); /* without a message, as in R555 */
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || chmod(path, mode) < 0 ||
        listen(fd, 64) < 0) {
        perror(path);
        exit(1);
    }
    return add(fd, kind);
}
