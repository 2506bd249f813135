/*
 * nvidia-cuda-mps-server: the stand-in. Its clients' contexts run under its connection to xpu-sim-driver, and
 * end with it. Besides it only reports its state to its control daemon.
 */
#define _GNU_SOURCE
#include "../mps_protocol.h"
#include "../protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int driver;

/* ROOT/run/nvidia-sim: ROOT is the part before /usr/bin in this program's path. */
static int open_driver(void) {
    char path[PATH_MAX], folder[PATH_MAX + 32];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0)
        return -1;
    path[length] = 0;
    char *end = strstr(path, "/usr/bin/");
    *(end ? end : path) = 0;
    snprintf(folder, sizeof folder, "%s%s", path, SIM_SOCKET_DIR);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int directory = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/%s", directory, SIM_SOCKET_NAME);
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (directory < 0 || made < 0 || connect(made, (struct sockaddr *)&name, sizeof name) < 0)
        return -1;
    close(directory);
    return made;
}

static enum sim_status call(uint32_t operation, uint64_t *value) {
    static uint64_t seq;
    struct sim_request request = {.version = SIM_VERSION, .operation = operation, .seq = ++seq};
    struct sim_reply reply = {0};
    if (send(driver, &request, sizeof request, MSG_NOSIGNAL) != sizeof request)
        return SIM_GONE;
    while (recv(driver, &reply, sizeof reply, 0) < 0)
        if (errno != EINTR)
            return SIM_GONE;
    *value = reply.value[0];
    return reply.status;
}

int main(void) {
    uint64_t key, faulted;
    char order[sizeof MPS_STATUS];
    driver = open_driver();
    if (driver < 0 || call(SIM_MPS_SERVE, &key) != SIM_OK) {
        fprintf(stderr, "nvidia-cuda-mps-server: the simulated driver is not there\n");
        return 1;
    }
    for (;;) {
        struct mps_report report = {MPS_ACTIVE, 0, key};
        if (call(SIM_MPS_STATUS, &faulted) != SIM_OK)
            return 1;
        report.status = faulted ? MPS_FAULT : MPS_ACTIVE;
        if (send(MPS_SERVER_FD, &report, sizeof report, MSG_NOSIGNAL) < 0)
            return 0;
        struct pollfd either[2] = {{MPS_SERVER_FD, POLLIN, 0}, {driver, POLLIN, 0}};
        if (poll(either, 2, -1) < 0 && errno != EINTR)
            return 1;
        if (either[1].revents)
            return 1; /* the driver is gone */
        ssize_t size = recv(MPS_SERVER_FD, order, sizeof order, 0);
        if (size == 0 || (size < 0 && errno != EINTR))
            return 0; /* the control daemon is gone */
    }
}
