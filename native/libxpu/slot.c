/*
 * The slots of the usage page: where they lie, the locks on them, and how this process takes one.
 *
 * A slot is its process's as long as the process holds an OFD lock on the slot's byte. The lock is on the
 * open file description, which a mapping made through it keeps open when its descriptors are closed; so it
 * lasts exactly as long as the address space, and exec and death of any kind drop it. That mapping is not
 * inherited by a forked child, who would keep its parent's slot alive.
 */
#define _GNU_SOURCE
#include "slot.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

enum { ONE_PAGE = 4096 };

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
    /* Where it cannot be told, nobody is taken for dead. */
    return !lock_call(fd, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

uint32_t xpu_pid_namespace(void) {
    struct stat found;
    return syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &found, 0) == 0 ? (uint32_t)found.st_ino
                                                                                  : 0;
}

static bool set_up(int fd, unsigned slot) {
    void *keeper = mmap(NULL, ONE_PAGE, PROT_NONE, MAP_SHARED, fd, 0);
    if (keeper == MAP_FAILED)
        return false;
    madvise(keeper, ONE_PAGE, MADV_DONTFORK);
    /* Nothing is left there, unless someone wrote it for harm. */
    xpu_slot_clean(slot, false);
    struct xpu_slot *own = xpu_slot_at(slot);
    char name[sizeof own->name] = "";
    prctl(PR_GET_NAME, name);
    memcpy(own->name, name, sizeof own->name);
    XPU_STORE(own->pid, (uint32_t)syscall(SYS_getpid));
    XPU_STORE(own->pid_namespace, xpu_pid_namespace());
    XPU_STORE(own->listed, 0);
    XPU_STORE(*xpu_mark(slot), 1);
    xpu_own_slot_set(slot);
    XPU_DEBUG("slot %u", slot);
    return true;
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

static bool take(const char **why) {
    int fd = xpu_usage_descriptor();
    if (fd < 0) {
        *why = xpu_lacks_descriptors() ? "there is no file descriptor left to open " XPU_USAGE_PATH
                                         ": close some or raise `ulimit -n`; the next call tries again"
                                       : "this process cannot open " XPU_USAGE_PATH
                                         " any more: it has changed its root, or may not open "
                                         "files; let it use the device before that";
        return false;
    }
    /* Processes of one container begin to look at different places. */
    unsigned start = (unsigned)syscall(SYS_getpid);
    int slot = xpu_slot_find(fd, start);
    if (slot < 0) {
        xpu_reap();
        slot = xpu_slot_find(fd, start);
    }
    bool taken = slot >= 0 && set_up(fd, (unsigned)slot);
    if (!taken)
        *why = slot < 0 ? "as many processes use the devices of this container as it has places for: end some"
                        : "there is no address space left for a page of 4096 bytes";
    xpu_close(fd);
    return taken;
}

bool xpu_slot_take(const char **why) {
    if (!xpu_pages_open(why))
        return false;
    if (xpu_own_slot() >= 0)
        return true;
    if (!xpu_lock()) {
        *why = XPU_NO_LOCK;
        return false;
    }
    bool taken = xpu_own_slot() >= 0 || take(why);
    xpu_unlock();
    return taken;
}
