/*
 * Each process's memory, by the slots.
 */
#define _GNU_SOURCE
#include "processes.h"
#include "atomic.h"
#include "process_slot.h"
#include "reap.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void xpu_driver_id_set(uint32_t id) {
    int slot = xpu_process_slot();
    if (slot >= 0)
        XPU_STORE(xpu_slot_at((unsigned)slot)->listed, id);
}

bool xpu_other_instances(int device, uint64_t *bytes) {
    const uint32_t pid = (uint32_t)syscall(SYS_getpid);
    int fd = -1;
    bool any = false;
    *bytes = 0;
    for (unsigned slot = xpu_next_marked(0); slot < xpu_pages()->quota->slot_count;
         slot = xpu_next_marked(slot + 1)) {
        if (XPU_LOAD(xpu_slot_at(slot)->pid) != pid)
            continue;
        /* A dead process may have had this pid, or one in another pid namespace may have it. */
        uint32_t of = xpu_pid_namespace();
        if (fd < 0)
            fd = xpu_usage_descriptor();
        if (fd >= 0 && of && XPU_LOAD(xpu_slot_at(slot)->pid_namespace) == of && xpu_byte_held(fd, slot)) {
            *bytes += XPU_LOAD(xpu_slot_device_at(slot, device)->used);
            any = true;
        }
    }
    if (fd >= 0)
        xpu_close(fd);
    return any;
}

void xpu_each_process(void (*each)(const struct xpu_process *process, void *data), void *data) {
    const char *why;
    if (!xpu_pages_open(&why))
        return;
    xpu_reap();
    int fd = xpu_usage_descriptor(), own = xpu_process_slot();
    for (unsigned slot = 0; slot < xpu_pages()->quota->slot_count; slot++) {
        /* Marked and free: it keeps memory that a dead process exported. */
        if (!XPU_LOAD(*xpu_mark(slot)) || ((int)slot != own && fd >= 0 && !xpu_byte_held(fd, slot)))
            continue;
        const struct xpu_slot *found = xpu_slot_at(slot);
        char name[sizeof found->name + 1] = "";
        memcpy(name, found->name, sizeof found->name);
        for (char *letter = name; *letter; letter++)
            if (*letter < ' ' || *letter > '~')
                *letter = '?';
        uint64_t used[XPU_DEVICES] = {0};
        for (unsigned device = 0; device < xpu_pages()->quota->device_count; device++)
            used[device] = XPU_LOAD(xpu_slot_device_at(slot, (int)device)->used);
        each(&(struct xpu_process){XPU_LOAD(found->pid), XPU_LOAD(found->listed), name, used}, data);
    }
    if (fd >= 0)
        xpu_close(fd);
}
