/*
 * The devices that this process may use, as the real libraries find them: on the host all; elsewhere those
 * whose device node is in the process's own /dev and may be opened.
 */
#pragma once

#include "connection.h"

struct sim_gpu {
    struct sim_device info;
    uint32_t id;                  /* the driver's number for it */
    uint32_t mig_count;           /* number of the MIG devices below, which are the visible ones */
    uint32_t mig_id[SIM_MAX_MIG]; /* index into info.mig */
};

struct sim_inventory {
    struct sim_hello hello;
    uint32_t count;
    struct sim_gpu gpus[SIM_MAX_DEVICES];
};

/* SIM_GONE: no driver, or no /dev/nvidiactl. It needs the connection. */
enum sim_status sim_inventory(struct sim_inventory *inventory);
