/*
 * How this process takes its slot, and changes it.
 *
 * A forked child must not keep its parent's slot alive. The slot's lock lasts as long as a mapping of the
 * usage page that a child does not inherit (MADV_DONTFORK). It depends on no descriptor: the one that took it
 * is closed at once, because programs close any number.
 */
#define _GNU_SOURCE
#include "process_slot.h"
#include "atomic.h"
#include "log.h"
#include "reap.h"
#include "total.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ONE_PAGE = 4096 };

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
    /* nothing is left there, unless a program wrote it to do harm */
    xpu_slot_clean(slot, false);
    struct xpu_slot *place = xpu_slot_at(slot);
    char name[sizeof place->name] = "";
    prctl(PR_GET_NAME, name);
    memcpy(place->name, name, sizeof place->name);
    XPU_STORE(place->pid, (uint32_t)syscall(SYS_getpid));
    XPU_STORE(place->pid_namespace, xpu_pid_namespace());
    XPU_STORE(place->listed, 0);
    XPU_STORE(*xpu_mark(slot), 1);
    xpu_process_slot_set(slot);
    XPU_DEBUG("slot %u", slot);
    return true;
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
    /* Processes of one container begin their search at different slots. */
    unsigned start = (unsigned)syscall(SYS_getpid);
    int slot = xpu_slot_find(fd, start);
    if (slot < 0) {
        xpu_reap();
        slot = xpu_slot_find(fd, start);
    }
    bool taken = slot >= 0 && set_up(fd, (unsigned)slot);
    if (!taken)
        *why = slot < 0 ? "too many processes of this container use its devices at once: end some of them"
                        : "there is no address space left for a page of 4096 bytes";
    xpu_close(fd);
    return taken;
}

bool xpu_slot_take(const char **why) {
    if (!xpu_pages_open(why))
        return false;
    if (xpu_process_slot() >= 0)
        return true;
    if (!xpu_lock()) {
        *why = XPU_NO_LOCK;
        return false;
    }
    bool taken = xpu_process_slot() >= 0 || take(why);
    xpu_unlock();
    return taken;
}

bool xpu_change_begin(void) {
    const char *why;
    return xpu_slot_take(&why) && xpu_lock();
}

void xpu_uncharge_locked(int device, enum xpu_kind kind, uint64_t bytes) {
    uint64_t *held = &xpu_process_device(device)->kinds[kind];
    uint64_t most = XPU_LOAD(*held) / XPU_GRAIN, grains = xpu_grains(bytes);
    grains = xpu_total_take((unsigned)xpu_process_slot(), device, grains < most ? grains : most);
    XPU_STORE(*held, XPU_LOAD(*held) - grains * XPU_GRAIN);
}

static void free_deferred(void) {
    for (unsigned device = 0; device < xpu_pages()->quota->device_count; device++)
        for (int kind = 0; kind < XPU_KINDS; kind++) {
            uint64_t bytes = xpu_deferred_take((int)device, (enum xpu_kind)kind);
            if (bytes)
                xpu_uncharge_locked((int)device, (enum xpu_kind)kind, bytes);
        }
}

void xpu_change_end(void) {
    xpu_unlock();
    /* This check comes after the unlock: a handler that found the lock taken has left its free before. */
    while (xpu_deferred_frees()) {
        if (!xpu_lock())
            return;
        free_deferred();
        xpu_unlock();
    }
}
