/* See memory.h. */
#include "memory.h"

#include <string.h>
#include <time.h>

_Static_assert(sizeof(struct rm_alloc_whole) == WHOLE, "NVOS64");
_Static_assert(offsetof(struct rm_alloc_whole, status) == 40, "NVOS64's status");
_Static_assert(sizeof(struct memory_parameters) == PARAMETERS, "NV_MEMORY_ALLOCATION_PARAMS");
_Static_assert(offsetof(struct memory_parameters, size) == 64, "NV_MEMORY_ALLOCATION_PARAMS' size");
_Static_assert(sizeof(struct rm_free) == 16, "NVOS00");

#define REQUEST(nr, size) (3u << 30 | (size) << 16 | 'F' << 8 | (nr))
const unsigned int memory_requests[5] = {
    REQUEST(RM_ALLOC, 48u), REQUEST(RM_ALLOC, 40u), REQUEST(RM_ALLOC, 32u),
    REQUEST(RM_FREE, 16u),  REQUEST(XFER, 16u),
};

double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

size_t status_at(size_t size) { return size == 48 ? 40 : size == 40 ? 36 : size == 32 ? 28 : 0; }

bool is_rm(const struct ioctl *one, unsigned int nr) {
    return one->nr == nr && *one->node && strncmp(one->node, "nvidia-", strlen("nvidia-")) != 0;
}

bool alloc_read(const struct ioctl *one, struct rm_alloc *alloc) {
    return is_rm(one, RM_ALLOC) && status_at(one->size) &&
           watch_read(one->thread, one->argument, alloc, sizeof *alloc);
}

bool memory_read(const struct ioctl *one, struct memory_call *call) {
    memset(call, 0, sizeof *call);
    /* One read: two reads may differ. */
    if (!is_rm(one, RM_ALLOC) || !status_at(one->size) ||
        !watch_read(one->thread, one->argument, call->bytes, one->size) || call->head.class != CLASS_MEMORY)
        return false;
    for (size_t size = PARAMETERS; size >= PARAMETERS_BEFORE_545; size -= PARAMETERS - PARAMETERS_BEFORE_545)
        if (watch_read(one->thread, call->head.parameters, &call->parameters, size)) {
            /* An older driver knows only 120 bytes, and sends its size at most. */
            bool is_short = one->size == WHOLE && call->whole.parameters_size == PARAMETERS_BEFORE_545;
            call->parameters_size = is_short ? PARAMETERS_BEFORE_545 : size;
            return true;
        }
    return false;
}

bool memory_refuse(const struct watched *watched, const struct ioctl *one, uint32_t status) {
    if (!watch_write(watched, one, one->argument + status_at(one->size), &status, sizeof status))
        return false;
    watch_answer(watched, one, 0);
    return true;
}
