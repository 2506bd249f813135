/*
 * libcuda under MPS: at cuInit it looks for a control daemon at CUDA_MPS_PIPE_DIRECTORY, or at the default
 * place. Without one the program runs without MPS, as with the real library, and without an error.
 */
#define _GNU_SOURCE
#include "../../mps_protocol.h"
#include "library.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int control = -1; /* kept: the control daemon lists us while it is open */
static uint32_t percent = 100;

static int open_control(void) {
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int directory = open(folder && *folder ? folder : MPS_DEFAULT_PIPE, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return -1;
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/control", directory);
    int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (made >= 0 && connect(made, (struct sockaddr *)&name, sizeof name) < 0) {
        close(made);
        made = -1;
    }
    close(directory);
    return made;
}

static uint32_t own_percent(uint32_t server) {
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double own = text ? strtod(text, NULL) : 0;
    return own > 0 && own < server ? (uint32_t)own : server;
}

/* The first entry of the list: "0=4096M,1=2G". */
static uint64_t own_pinned(uint64_t server) {
    const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *at = text ? strchr(text, '=') : NULL;
    char *end;
    if (!at)
        return server;
    uint64_t own = strtoull(at + 1, &end, 10) << (toupper((unsigned char)*end) == 'G' ? 30 : 20);
    return own && (!server || own < server) ? own : server;
}

CUresult cuda_mps_join(void) {
    struct mps_reply reply;
    int made = open_control();
    if (made < 0)
        return CUDA_SUCCESS;
    CUresult result = CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (send(made, MPS_CLIENT, sizeof MPS_CLIENT, MSG_NOSIGNAL) > 0 &&
        recv(made, &reply, sizeof reply, 0) == sizeof reply) {
        uint32_t limit = reply.decides ? reply.percent : own_percent(reply.percent);
        struct sim_request request = {.operation = SIM_MPS_JOIN,
                                      .argument = {reply.key, own_pinned(reply.pinned) >> 20 << 32 | limit}};
        if (reply.answer == MPS_NOT_READY)
            result = CUDA_ERROR_MPS_SERVER_NOT_READY;
        else if (reply.answer == MPS_SERVED && sim_call(&request, NULL, NULL, NULL, 0) == SIM_OK)
            result = CUDA_SUCCESS;
        percent = limit;
    }
    if (result == CUDA_SUCCESS)
        control = made;
    else
        close(made);
    return result;
}

void cuda_mps_forget(void) {
    if (control >= 0)
        close(control);
    control = -1;
    percent = 100;
}

bool cuda_mps_enabled(void) { return control >= 0; }

/* The number of the device's multiprocessors that this process may use. */
uint32_t cuda_mps_multiprocessors(uint32_t all) {
    return cuda_mps_enabled() ? (all * percent + 99) / 100 : all;
}
