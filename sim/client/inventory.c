/*
 * Asks the driver for its devices, and leaves out those that this process may not open.
 */
#define _GNU_SOURCE
#include "inventory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The nodes have no driver: ENXIO means that the node exists and the device cgroup lets us open it. */
static bool can_open(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == ENXIO;
}

static bool cap_visible(uint32_t minor) {
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%u", minor);
    return can_open(path, O_RDONLY);
}

static bool gpu_visible(uint32_t minor) {
    char path[64];
    snprintf(path, sizeof path, "/dev/nvidia%u", minor);
    return can_open(path, O_RDWR);
}

enum sim_status sim_inventory(struct sim_inventory *inventory) {
    struct sim_request request = {.operation = SIM_HELLO};
    struct sim_hello *hello = &inventory->hello;
    enum sim_status status = sim_call(&request, NULL, NULL, hello, sizeof *hello);
    inventory->count = 0;
    if (status != SIM_OK)
        return status;
    if (!hello->host && !can_open("/dev/nvidiactl", O_RDWR))
        return SIM_GONE;
    for (uint32_t id = 0; id < hello->device_count && id < SIM_MAX_DEVICES; id++) {
        struct sim_gpu *gpu = &inventory->gpus[inventory->count];
        request = (struct sim_request){.operation = SIM_DEVICE, .device = id, .mig = SIM_NO_MIG};
        status = sim_call(&request, NULL, NULL, &gpu->info, sizeof gpu->info);
        if (status != SIM_OK)
            return status;
        if (!hello->host && !gpu_visible(gpu->info.minor))
            continue;
        gpu->id = id;
        gpu->mig_count = 0;
        for (uint32_t i = 0; i < gpu->info.mig_count && i < SIM_MAX_MIG; i++) {
            const struct sim_mig *mig = &gpu->info.mig[i];
            if (hello->host || (cap_visible(mig->gi_minor) && cap_visible(mig->ci_minor)))
                gpu->mig_id[gpu->mig_count++] = i;
        }
        inventory->count++;
    }
    return SIM_OK;
}
