/*
 * The slots of the usage page: their places, and the locks on them.
 *
 * A slot belongs to a process as long as the process holds an OFD lock on the slot's byte (fcntl(2),
 * F_OFD_SETLK). The lock is on the open file description, and not on the process: docs/concepts/memory.md
 * says how that makes it last exactly as long as the process's address space.
 */
#define _GNU_SOURCE
#include "slot.h"
#include "atomic.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

uint8_t *xpu_mark(unsigned slot) { return (uint8_t *)xpu_pages()->usage + XPU_USAGE_HEADER + slot; }

struct xpu_slot *xpu_slot_at(unsigned slot) {
    const struct xpu_quota *quota = xpu_pages()->quota;
    size_t stride = sizeof(struct xpu_slot) + quota->device_count * sizeof(struct xpu_slot_device);
    size_t first = XPU_USAGE_HEADER + (quota->slot_count + 63) / 64 * 64;
    return (struct xpu_slot *)((uint8_t *)xpu_pages()->usage + first + slot * stride);
}

struct xpu_slot_device *xpu_slot_device_at(unsigned slot, int device) {
    return (struct xpu_slot_device *)(xpu_slot_at(slot) + 1) + device;
}

static bool lock_call(int fd, int command, struct flock *lock) {
    return syscall(SYS_fcntl, fd, command, lock) == 0;
}

bool xpu_byte_lock(int fd, unsigned byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return lock_call(fd, F_OFD_SETLK, &lock);
}

void xpu_byte_unlock(int fd, unsigned byte, unsigned count) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = count};
    lock_call(fd, F_OFD_SETLK, &lock);
}

bool xpu_byte_held(int fd, unsigned byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    /* If the kernel does not answer, every process counts as alive. */
    return !lock_call(fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

unsigned xpu_slot_marked(unsigned slot) {
    unsigned count = xpu_pages()->quota->slot_count;
    while (slot < count) {
        /* Marks begin at a multiple of 64: eight unmarked ones are skipped together. */
        if (slot % 8 == 0 && __atomic_load_n((uint64_t *)(void *)xpu_mark(slot), __ATOMIC_ACQUIRE) == 0)
            slot += 8;
        else if (XPU_LOAD(*xpu_mark(slot)))
            return slot;
        else
            slot++;
    }
    return count;
}

int xpu_slot_find(int fd, unsigned start) {
    unsigned count = xpu_pages()->quota->slot_count;
    for (unsigned step = 0; step < count; step++) {
        unsigned slot = (start % count + step) % count;
        if (XPU_LOAD(*xpu_mark(slot)) || !xpu_byte_lock(fd, slot))
            continue;
        if (!XPU_LOAD(*xpu_mark(slot)))
            return (int)slot;
        xpu_byte_unlock(fd, slot, 1);
    }
    return -1;
}
