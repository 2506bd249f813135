/*
 * A driver that finds no control daemon runs the program without MPS, and so without its limits and without
 * an error. So this library sets the pipe folder, over the image's variables. After cuInit it asks the driver
 * whether its contexts will be under MPS (an attribute since CUDA 12.3).
 *
 * The variables are set here, since a hook comes too late for the container's environment. The driver reads
 * them in cuInit.
 */
#define _GNU_SOURCE
#include "mps.h"
#include "abi/mps.h"
#include "account/part.h"
#include "real.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

XPU_NEED(cuDeviceGet)
XPU_NEED(cuDeviceGetAttribute)
XPU_NEED(cuDeviceGetCount)

static int wanted;  /* the container has a file of limits; atomic */
static int refused; /* and this process is not under MPS; atomic */
static int told;

static void forget(void) { wanted = refused = 0; }
XPU_AT_FORK(forget)

static CUresult refuse(const char *why) {
    __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
    xpu_device_refused(why);
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
}

CUresult xpu_mps_permitted(void) {
    return __builtin_expect(__atomic_load_n(&refused, __ATOMIC_RELAXED), 0) ? CUDA_ERROR_MPS_CONNECTION_FAILED
                                                                            : CUDA_SUCCESS;
}

/* The value of the program's own environment, or 0 if that is no number of at least 1: it is unknown how the
 * driver reads such a value. */
static double percent_in_environment(void) {
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    char *end;
    double number = text ? strtod(text, &end) : 0;
    return number >= 1 && !*end ? number : 0;
}

/* A present value may be less, and is then kept. The container has one device: the first of its pages. */
static void set_percent(uint32_t percent, bool decided) {
    char text[16];
    double own = percent_in_environment();
    if (own && own <= percent && !decided) {
        xpu_part_set(0, (uint32_t)(own * (XPU_WHOLE / 100)));
        return;
    }
    snprintf(text, sizeof text, "%u", percent);
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", text, 1);
    xpu_part_set(0, percent * (XPU_WHOLE / 100));
}

static void set_pinned(uint32_t mib) {
    char text[32];
    snprintf(text, sizeof text, "0=%uM", mib); /* the container has one device */
    setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", text, 1);
}

CUresult xpu_mps_prepare(void) {
    struct xpu_mps limits;
    int fd = open(XPU_MPS_LIMITS_PATH, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return CUDA_SUCCESS; /* the container is not under MPS */
    ssize_t size = fd < 0 ? -1 : read(fd, &limits, sizeof limits);
    if (fd >= 0)
        close(fd);
    if (size == 0)
        return CUDA_SUCCESS; /* not this one: an earlier container of this root folder left it */
    if (size != sizeof limits || memcmp(limits.magic, XPU_MPS_MAGIC, sizeof limits.magic) != 0)
        return refuse("the file of its limits under MPS cannot be read: start the container again");
    __atomic_store_n(&wanted, 1, __ATOMIC_RELAXED);
    setenv("CUDA_MPS_PIPE_DIRECTORY", XPU_MPS_PIPE_PATH, 1);
    if (limits.percent)
        set_percent(limits.percent, limits.decided);
    if (limits.pinned_mib)
        set_pinned(limits.pinned_mib);
    return CUDA_SUCCESS;
}

CUresult xpu_mps_check(CUresult initialized) {
    int count, under;
    CUdevice device;
    if (!__atomic_load_n(&wanted, __ATOMIC_RELAXED))
        return initialized;
    if (initialized != CUDA_SUCCESS)
        return xpu_mps_explained(initialized);
    CUresult result = REAL(cuDeviceGetCount)(&count);
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        under = 0;
        if (REAL(cuDeviceGet)(&device, i) != CUDA_SUCCESS ||
            REAL(cuDeviceGetAttribute)(&under, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) != CUDA_SUCCESS ||
            !under)
            return refuse("the program would run without MPS, and without its limits, as the driver reaches "
                          "no MPS control daemon: `xpu ps` on the host says why");
    }
    __atomic_store_n(&refused, 0, __ATOMIC_RELAXED);
    return result;
}

void xpu_mps_explain(CUresult result) {
    bool gone = result == CUDA_ERROR_MPS_CONNECTION_FAILED || result == CUDA_ERROR_MPS_RPC_FAILURE ||
                result == CUDA_ERROR_MPS_CLIENT_TERMINATED;
    if (!(gone || result == CUDA_ERROR_MPS_SERVER_NOT_READY) || !__atomic_load_n(&wanted, __ATOMIC_RELAXED))
        return;
    xpu_log_once(
        &told,
        result == CUDA_ERROR_MPS_SERVER_NOT_READY
            ? "xpu: the device's MPS server takes no program now (CUDA error %d), as another's fatal error "
              "has stopped it: `xpu ps` on the host says more"
            : "xpu: the device's MPS server has ended, and with it what this program had there (CUDA error "
              "%d): start the program again; `xpu ps` on the host says more",
        (int)result);
}
