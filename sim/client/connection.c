/*
 * The libraries' end of the socket to xpu-sim-driver: one connection for each process, made at the first
 * request and made anew in a child of fork. It knows the protocol, and nothing of CUDA or NVML.
 */
#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

struct waiter {
    uint64_t seq;
    struct sim_reply *reply;
    void *payload;
    size_t capacity;
    int fd; /* that came with the reply, or -1 */
    bool done;
    enum sim_status status;
    struct waiter *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static int fd = -1;
static bool broken, reading;
static uint64_t last_seq;
static struct waiter *waiters;
static void (*forget_hook)(void);

void sim_close_after_fork(int number) { syscall(SYS_close, number); }

static void after_fork(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    arrived = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    if (fd >= 0)
        sim_close_after_fork(fd);
    fd = -1;
    broken = reading = false;
    waiters = NULL;
    if (forget_hook)
        forget_hook();
}

void sim_on_fork(void (*forget)(void)) { forget_hook = forget; }

/* dl_iterate_phdr, because dladdr was in libdl before glibc 2.34. */
static int find_self(struct dl_phdr_info *object, size_t size, void *path) {
    (void)size;
    uintptr_t here = (uintptr_t)&last_seq;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        uintptr_t start = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        if (object->dlpi_phdr[i].p_type == PT_LOAD && here >= start &&
            here - start < object->dlpi_phdr[i].p_memsz) {
            if (!realpath(object->dlpi_name, path))
                *(char *)path = 0;
            return 1;
        }
    }
    return 0;
}

/* The part of this library's path before /usr/lib: the driver root on the host, and empty in a container. */
static char driver_root[PATH_MAX];

/* This runs when the library is loaded, because a forked child must not ask: it hangs in dl_iterate_phdr if
 * another thread of its parent was there at the fork (glibc 2.36 renews another lock of the loader in the
 * child). */
static void find_root(void) {
    char *prefix_end = NULL;
    dl_iterate_phdr(find_self, driver_root);
    for (char *at = strstr(driver_root, "/usr/lib"); at; at = strstr(at + 1, "/usr/lib"))
        prefix_end = at;
    *(prefix_end ? prefix_end : driver_root) = 0;
}

/* The lock is free then. Taking it shows sanitizers that connecting threads come later: they do not know the
 * loader's locks. */
__attribute__((constructor)) static void prepare(void) {
    pthread_mutex_lock(&lock);
    find_root();
    pthread_mutex_unlock(&lock);
    pthread_atfork(NULL, NULL, after_fork);
}

/* With the lock held, so that data too large for a small stack can be static. */
static int open_socket(void) {
    static char folder[PATH_MAX + 32];
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(folder, sizeof folder, "%s%s", driver_root, SIM_SOCKET_DIR);
    int directory = -1;
    int length = snprintf(name.sun_path, sizeof name.sun_path, "%s/%s", folder, SIM_SOCKET_NAME);
    if ((size_t)length >= sizeof name.sun_path) { /* too long for a socket's name: uses a descriptor */
        directory = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
        snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/%s", directory, SIM_SOCKET_NAME);
    }
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (made >= 0 && connect(made, (struct sockaddr *)&name, sizeof name) < 0) {
        close(made);
        made = -1;
    }
    if (directory >= 0)
        close(directory);
    return made;
}

enum sim_status sim_connect(void) {
    pthread_mutex_lock(&lock);
    if (fd >= 0 && broken && !waiters) { /* the driver may be back */
        close(fd);
        fd = -1;
    }
    if (fd < 0) {
        fd = open_socket();
        broken = false;
    }
    enum sim_status status = fd >= 0 && !broken ? SIM_OK : SIM_GONE;
    pthread_mutex_unlock(&lock);
    return status;
}

void sim_disconnect(void) {
    pthread_mutex_lock(&lock);
    if (fd >= 0 && !waiters) {
        close(fd);
        fd = -1;
    }
    pthread_mutex_unlock(&lock);
}

bool sim_connected(void) {
    pthread_mutex_lock(&lock);
    bool is = fd >= 0 && !broken;
    pthread_mutex_unlock(&lock);
    return is;
}

/* Gives a message to the thread that waits for it. size <= 0: the driver is gone, for all waiters. */
static void deliver(const char *message, ssize_t size, int passed) {
    struct sim_reply head;
    if (size < (ssize_t)sizeof head) {
        broken = true;
        for (struct waiter *waiter = waiters; waiter; waiter = waiter->next) {
            waiter->status = SIM_GONE;
            waiter->done = true;
        }
        return;
    }
    memcpy(&head, message, sizeof head);
    for (struct waiter *waiter = waiters; waiter; waiter = waiter->next) {
        if (waiter->seq != head.seq)
            continue;
        size_t payload = (size_t)size - sizeof head;
        if (payload > waiter->capacity)
            payload = waiter->capacity;
        head.payload = (uint32_t)payload;
        *waiter->reply = head;
        if (payload)
            memcpy(waiter->payload, message + sizeof head, payload);
        waiter->fd = passed;
        waiter->status = head.status;
        waiter->done = true;
        return;
    }
    if (passed >= 0)
        close(passed);
}

/* One message, with the descriptor that came with it (or -1). */
static ssize_t receive(char *message, size_t capacity, int *passed) {
    union {
        struct cmsghdr header;
        char buffer[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {message, capacity};
    ssize_t size;
    *passed = -1;
    do {
        struct msghdr head = {.msg_iov = &part,
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof control.buffer};
        size = recvmsg(fd, &head, MSG_CMSG_CLOEXEC);
        const struct cmsghdr *found = size >= 0 ? CMSG_FIRSTHDR(&head) : NULL;
        if (found && found->cmsg_type == SCM_RIGHTS)
            memcpy(passed, CMSG_DATA(found), sizeof *passed);
    } while (size < 0 && errno == EINTR);
    return size;
}

static void await(struct waiter *waiter) {
    static char message[SIM_MAX_MESSAGE];
    while (!waiter->done) {
        if (reading) {
            pthread_cond_wait(&arrived, &lock);
            continue;
        }
        reading = true;
        pthread_mutex_unlock(&lock);
        int passed;
        ssize_t size = receive(message, sizeof message, &passed);
        pthread_mutex_lock(&lock);
        reading = false;
        deliver(message, size, passed);
        pthread_cond_broadcast(&arrived);
    }
}

/* Sends the requests that the waiter waits for; with the lock held. */
static void send_request(struct waiter *waiter, struct sim_request *request, const char *path, int passed) {
    union {
        struct cmsghdr header;
        char buffer[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec parts[2] = {{request, sizeof *request}, {(void *)path, path ? strlen(path) + 1 : 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = path ? 2 : 1};
    ssize_t sent;
    if (passed >= 0) {
        memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
        message.msg_control = &control;
        message.msg_controllen = sizeof control.buffer;
    }
    request->version = SIM_VERSION;
    request->seq = waiter->seq = ++last_seq;
    waiter->next = waiters;
    waiters = waiter;
    do
        sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        deliver(NULL, 0, -1);
}

static enum sim_status call(struct waiter *waiter, struct sim_request *request, const char *path,
                            int passed) {
    struct sim_reply unused;
    waiter->fd = -1;
    if (!waiter->reply)
        waiter->reply = &unused;
    if (path && strlen(path) >= SIM_MAX_PATH)
        return SIM_NOT_FOUND;
    pthread_mutex_lock(&lock);
    if (fd < 0 || broken) {
        pthread_mutex_unlock(&lock);
        return SIM_GONE;
    }
    send_request(waiter, request, path, passed);
    await(waiter);
    struct waiter **link = &waiters;
    while (*link != waiter)
        link = &(*link)->next;
    *link = waiter->next;
    pthread_mutex_unlock(&lock);
    return waiter->status;
}

enum sim_status sim_call(struct sim_request *request, const char *path, struct sim_reply *reply,
                         void *payload, size_t capacity) {
    struct waiter waiter = {.reply = reply, .payload = payload, .capacity = capacity};
    enum sim_status status = call(&waiter, request, path, -1);
    if (waiter.fd >= 0)
        close(waiter.fd);
    return status;
}

enum sim_status sim_call_fd(struct sim_request *request, int passed, void *payload, size_t capacity,
                            int *received) {
    struct waiter waiter = {.payload = payload, .capacity = capacity};
    enum sim_status status = call(&waiter, request, NULL, passed);
    if (received)
        *received = waiter.fd;
    else if (waiter.fd >= 0)
        close(waiter.fd);
    return status;
}
