/*
 * nvidia-cuda-mps-control: the stand-in. With -d or -f it is the control daemon; without, it sends the
 * commands on its standard input to the daemon, and prints what that answers.
 *
 * Files, commands and their effects are as NVIDIA documents them (docs.nvidia.com/deploy/mps, "Legacy MPS v2
 * Interface"); what the daemon and its clients say to each other is our own (mps.h). One server at a time.
 */
#define _GNU_SOURCE
#include "../mps_protocol.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 256, MAX_COMMAND = 4096, MAX_LIMITS = 32, SERVER_S = 20 };

enum kind { FREE, LISTEN_CLIENT, LISTEN_UI, UI, CLIENT, SERVER };

struct connection {
    enum kind kind;
    bool privileged; /* it came by the socket that may change something */
    pid_t pid;
    uid_t uid;
};

/* A device's limit of pinned memory, by the name that was given: an ordinal or a UUID. */
struct pinned {
    char device[64];
    char text[24];
    uint64_t bytes;
};

static struct connection connections[MAX_CONNECTIONS];
static struct pollfd polled[MAX_CONNECTIONS];
static char pipe_folder[PATH_MAX];
static bool multiuser;
static double default_percent = 100, server_percent;
static struct pinned default_pinned[MAX_LIMITS], server_pinned[MAX_LIMITS];
static pid_t server;
static uid_t server_uid;
static int server_fd = -1;
static FILE *journal;

static char answer[1 << 16];

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    size_t length = strlen(answer);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(answer + length, sizeof answer - length, format, arguments);
    va_end(arguments);
}

static void note(const char *text, long number) {
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

/* A path in the pipe folder, as a socket's name; by way of a descriptor, since names are short. */
static int named(struct sockaddr_un *address, const char *name) {
    int directory = open(pipe_folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof address->sun_path, "/proc/self/fd/%d/%.32s", directory, name);
    return directory;
}

static void place(const char *name, char *path) {
    if (snprintf(path, PATH_MAX, "%s/%s", pipe_folder, name) >= PATH_MAX)
        exit(1);
}

static int add(int fd, enum kind kind) {
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (connections[i].kind == FREE) {
            connections[i] = (struct connection){.kind = kind};
            polled[i] = (struct pollfd){fd, POLLIN, 0};
            return i;
        }
    close(fd);
    return -1;
}

static void drop(int at) {
    close(polled[at].fd);
    polled[at].fd = -1;
    connections[at].kind = FREE;
}

static void listen_at(const char *name, mode_t mode, enum kind kind) {
    struct sockaddr_un address;
    char path[PATH_MAX];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    place(name, path);
    unlink(path);
    int directory = named(&address, name);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || chmod(path, mode) < 0 ||
        listen(fd, 64) < 0) {
        perror(path);
        exit(1);
    }
    close(directory);
    add(fd, kind);
}

/* ---- the server ---- */

static int clients(void) {
    int count = 0;
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        count += connections[i].kind == CLIENT;
    return count;
}

/* It is gone, or to go: so is all that its clients had. */
static void end_server(void) {
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

static void start_server(uid_t uid) {
    char path[PATH_MAX];
    int pair[2];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    char *end = length > 0 ? (path[length] = 0, strrchr(path, '/')) : NULL;
    if (!end || (size_t)(end - path) + 32 > sizeof path || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0)
        return;
    strcpy(end, "/nvidia-cuda-mps-server");
    server = fork();
    if (server == 0) {
        dup2(pair[1], MPS_SERVER_FD);
        for (int fd = MPS_SERVER_FD + 1; fd < 1024; fd++)
            close(fd);
        if (uid && !multiuser && (setgid(uid) < 0 || setuid(uid) < 0))
            _exit(1);
        execl(path, path, (char *)NULL);
        _exit(127);
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

static struct mps_report ask_server(enum mps_order order, pid_t pid) {
    struct mps_order_message message = {order, (uint32_t)pid};
    struct mps_report told = {0};
    if (!server || send(server_fd, &message, sizeof message, MSG_NOSIGNAL) < 0 || !report(&told))
        told.status = 0;
    return told;
}

/* ---- clients ---- */

static uint64_t pinned_of(const struct pinned *limits) {
    for (int i = 0; i < MAX_LIMITS; i++)
        if (limits[i].device[0])
            return limits[i].bytes; /* the daemon has one device, whatever its name */
    return 0;
}

static void serve(int at) {
    struct mps_reply reply = {.answer = MPS_FAILED};
    note("NEW CLIENT from user", connections[at].uid);
    bool others = server && !multiuser && server_uid != connections[at].uid;
    if (others && clients() == 0)
        end_server();
    if (!server)
        start_server(multiuser ? 0 : connections[at].uid);
    connections[at].kind = CLIENT;
    struct mps_report told = ask_server(MPS_STATUS, 0);
    if (told.status == MPS_FAULT || (others && clients() > 1)) /* the real one has it wait */
        reply.answer = MPS_NOT_READY;
    else if (told.status == MPS_ACTIVE)
        reply = (struct mps_reply){MPS_SERVED, (uint32_t)server_percent, pinned_of(server_pinned), told.key};
    send(polled[at].fd, &reply, sizeof reply, MSG_NOSIGNAL);
}

/* ---- commands ---- */

static bool is_server(const char *word) {
    if (word && server && atol(word) == server)
        return true;
    say("Server %s not found\n", word ? word : "");
    return false;
}

static bool read_percent(const char *word, double *value) {
    char *end;
    double read = word ? strtod(word, &end) : 0;
    if (!word || *end || read <= 0 || read > 100) {
        say("Invalid percentage\n");
        return false;
    }
    *value = read;
    return true;
}

static bool read_size(const char *word, uint64_t *bytes) {
    char *end;
    unsigned long long read = word ? strtoull(word, &end, 10) : 0;
    if (!word || end == word ||
        (toupper((unsigned char)*end) != 'G' && toupper((unsigned char)*end) != 'M')) {
        say("Invalid memory limit\n");
        return false;
    }
    *bytes = read << (toupper((unsigned char)*end) == 'G' ? 30 : 20);
    return true;
}

static void set_pinned(struct pinned *limits, const char *device, const char *text) {
    uint64_t bytes;
    if (!device || !read_size(text, &bytes))
        return;
    for (int i = 0; i < MAX_LIMITS; i++)
        if (!limits[i].device[0] || strcmp(limits[i].device, device) == 0) {
            snprintf(limits[i].device, sizeof limits[i].device, "%s", device);
            snprintf(limits[i].text, sizeof limits[i].text, "%s", text);
            limits[i].bytes = bytes;
            return;
        }
}

static void get_pinned(const struct pinned *limits, const char *device) {
    for (int i = 0; device && i < MAX_LIMITS; i++)
        if (strcmp(limits[i].device, device) == 0) {
            say("%s\n", limits[i].text);
            return;
        }
    say("Not set\n");
}

static void list_clients(void) {
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (connections[i].kind == CLIENT)
            say("%d\n", connections[i].pid);
}

static void quit(int grace) {
    note("Quitting, with clients", clients());
    for (int i = 0; clients() && i < grace * 100; i++)
        usleep(10000);
    if (server)
        kill(server, SIGKILL), waitpid(server, NULL, 0);
    for (const char *const *name = (const char *const[]){"control", "control_privileged", "control_lock",
                                                         "log", "nvidia-cuda-mps-control.pid", NULL};
         *name; name++) {
        char path[PATH_MAX];
        place(*name, path);
        unlink(path);
    }
    exit(0);
}

static const char *word(char **rest) { return strtok_r(NULL, " \t\r\n", rest); }

static void carry_out(char *text, bool privileged) {
    char *rest = NULL;
    const char *command = strtok_r(text, " \t\r\n", &rest), *first, *second;
    answer[0] = 0;
    if (!command)
        return;
    if (!privileged && strncmp(command, "get_", 4) != 0 && strcmp(command, "ps") != 0) {
        say("Insufficient permissions\n");
    } else if (strcmp(command, "get_server_list") == 0) {
        if (server)
            say("%d\n", server);
    } else if (strcmp(command, "get_server_status") == 0) {
        static const char *const names[] = {"INITIALIZING", "INITIALIZING", "ACTIVE", "FAULT"};
        if (is_server(word(&rest)))
            say("%s\n", names[ask_server(MPS_STATUS, 0).status & 3]);
    } else if (strcmp(command, "start_server") == 0) {
        first = word(&rest);
        second = word(&rest);
        if (!first || strcmp(first, "-uid") != 0 || !second)
            say("usage: start_server -uid <user id>\n");
        else if (!server)
            start_server((uid_t)atol(second));
    } else if (strcmp(command, "get_client_list") == 0) {
        if (is_server(word(&rest)))
            list_clients();
    } else if (strcmp(command, "ps") == 0) {
        list_clients();
    } else if (strcmp(command, "set_default_active_thread_percentage") == 0) {
        if (read_percent(word(&rest), &default_percent))
            say("%.1f\n", default_percent);
    } else if (strcmp(command, "get_default_active_thread_percentage") == 0) {
        say("%.1f\n", default_percent);
    } else if (strcmp(command, "set_active_thread_percentage") == 0) {
        if (is_server(word(&rest)) && read_percent(word(&rest), &server_percent))
            say("%.1f\n", server_percent);
    } else if (strcmp(command, "get_active_thread_percentage") == 0) {
        if (is_server(word(&rest)))
            say("%.1f\n", server_percent);
    } else if (strcmp(command, "set_default_device_pinned_mem_limit") == 0) {
        first = word(&rest);
        set_pinned(default_pinned, first, word(&rest));
    } else if (strcmp(command, "get_default_device_pinned_mem_limit") == 0) {
        get_pinned(default_pinned, word(&rest));
    } else if (strcmp(command, "set_device_pinned_mem_limit") == 0) {
        if (is_server(word(&rest))) {
            first = word(&rest);
            set_pinned(server_pinned, first, word(&rest));
        }
    } else if (strcmp(command, "get_device_pinned_mem_limit") == 0) {
        if (is_server(word(&rest)))
            get_pinned(server_pinned, word(&rest));
    } else if (strcmp(command, "terminate_client") == 0) {
        if (is_server(word(&rest)) && (first = word(&rest)))
            say("%d\n", ask_server(MPS_TERMINATE, (pid_t)atol(first)).status ? 0 : 1);
    } else if (strcmp(command, "quit") == 0) {
        first = word(&rest);
        second = word(&rest);
        quit(first && strcmp(first, "-t") == 0 && second ? atoi(second) : 0);
    } else {
        say("Unrecognized command: %s\n", command);
    }
}

/* ---- the daemon ---- */

static void take(int at) {
    int fd = accept4(polled[at].fd, NULL, NULL, SOCK_CLOEXEC);
    struct ucred who;
    socklen_t size = sizeof who;
    if (fd < 0)
        return;
    int made = add(fd, UI);
    if (made < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0)
        return;
    connections[made].pid = who.pid;
    connections[made].uid = who.uid;
    connections[made].privileged = connections[at].kind == LISTEN_UI;
}

static void hear(int at) {
    char text[MAX_COMMAND + 1];
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
    carry_out(text, connections[at].privileged);
    send(polled[at].fd, answer, strlen(answer) + 1, MSG_NOSIGNAL);
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
    fchmod(fd, 0666); /* the lock goes with the descriptor */
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

static void run_daemon(bool background) {
    char path[PATH_MAX];
    int ready[2];
    const char *logs = getenv("CUDA_MPS_LOG_DIRECTORY");
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(ready, O_CLOEXEC) < 0)
        exit(1);
    if (background && fork() > 0) {
        char byte;
        close(ready[1]);
        exit(read(ready[0], &byte, 1) == 1 ? 0 : 1);
    }
    setsid();
    lock_folder();
    logs = logs && *logs ? logs : MPS_DEFAULT_LOG;
    mkdir(logs, 0755);
    snprintf(path, sizeof path, "%s/control.log", logs);
    journal = fopen(path, "ae");
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        polled[i].fd = -1;
    listen_at("control_privileged", 0755, LISTEN_UI);
    listen_at("control", 0666, LISTEN_CLIENT);
    place("log", path);
    mkfifo(path, 0777);
    chmod(path, 0777);
    write_pid();
    note("Start", getpid());
    int nothing = background ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    for (int fd = 0; background && fd < 3; fd++)
        dup2(nothing, fd); /* whoever waits for the end of what it says */
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

/* ---- the front end ---- */

static int run_commands(void) {
    struct sockaddr_un address;
    char line[MAX_COMMAND];
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int directory = named(&address, geteuid() == 0 ? "control_privileged" : "control");
    if (fd < 0 || directory < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        printf("Cannot find MPS control daemon process\n");
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        if (send(fd, line, strlen(line), MSG_NOSIGNAL) < 0)
            return 1;
        ssize_t size = recv(fd, answer, sizeof answer - 1, 0);
        if (size <= 0)
            return strncmp(line, "quit", 4) != 0;
        answer[size] = 0;
        fputs(answer, stdout);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    bool as_daemon = false, background = false;
    snprintf(pipe_folder, sizeof pipe_folder, "%s", folder && *folder ? folder : MPS_DEFAULT_PIPE);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-d") == 0)
            as_daemon = background = true;
        else if (strcmp(argv[i], "-f") == 0)
            as_daemon = true;
        else if (strcmp(argv[i], "-multiuser-server") == 0)
            multiuser = true;
        else {
            fprintf(stderr, "usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]\n");
            return 1;
        }
    }
    if (as_daemon)
        run_daemon(background);
    return run_commands();
}
