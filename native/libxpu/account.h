/*
 * The account of a container's device memory: charges against a limit, shared by all of its processes.
 *
 * No call waits for another process: totals change by compare-and-swap, and what a killed process left is
 * given back by whoever looks next. A change in slot s of device d is numbered, and made in five steps:
 *
 *   1  after = used + delta; started = finished + 1
 *   2  the total's word names the last change (slot t, number n): t.seen: n - 1 → n, by compare-and-swap and
 *      only while the word is still that one, so that t's owner, or who cleans up after it, knows that it
 * took place, also once the word says otherwise; and so that no late helper sets `seen` back 3  word →
 * (grains + delta, s, started), by compare-and-swap       the change takes place here 4  used = after 5
 * finished = started
 *
 * Killed between any two of these, the change took place if and only if the word names it or seen ≥ started
 * (read in this order); then steps 4 and 5 are repeated, else started = finished, and the number is used
 * again. All of it may be done any number of times. The numbers of a slot go on under its next owner.
 */
#ifndef XPU_ACCOUNT_H
#define XPU_ACCOUNT_H

#include "page.h"

#include <stdbool.h>
#include <stddef.h>

/* The container's pages, once they are open and found valid. */
struct xpu_pages {
    const struct xpu_quota *quota;
    struct xpu_usage *usage;
};

/* Maps and checks the pages at the first call in this process; NULL with `*why` (a sentence for people: what
 * is wrong and what to do) if the container has none that this library can trust. The answer does not change,
 * unless it was that this process lacks descriptors or memory: then the next call tries again. */
const struct xpu_pages *xpu_pages_find(const char **why);
/* Whether this process can open no file at the moment. */
bool xpu_lacks_descriptors(void);
/* quota: NULL until they are open; atomic */
extern struct xpu_pages xpu_pages_opened __attribute__((visibility("hidden")));

static inline const struct xpu_pages *xpu_pages_open(const char **why) {
    return __builtin_expect(__atomic_load_n(&xpu_pages_opened.quota, __ATOMIC_ACQUIRE) != NULL, 1)
               ? &xpu_pages_opened
               : xpu_pages_find(why);
}

/* Index of a device in the pages by its 16-byte UUID; -1: not granted to this container. */
int xpu_device_index(const uint8_t uuid[16]);

/* Bytes, read now. Limit: XPU_NO_LIMIT for none. Used: of all processes, after the dead have been cleaned
 * up; it may be above the limit (after `xpu set`, or what the driver took for itself). */
static inline uint64_t xpu_limit(int device) {
    const struct xpu_quota *quota = __atomic_load_n(&xpu_pages_opened.quota, __ATOMIC_ACQUIRE);
    return quota && device >= 0 && (unsigned)device < quota->device_count
               ? __atomic_load_n(&quota->limits[device].memory, __ATOMIC_RELAXED)
               : 0;
}
uint64_t xpu_used(int device);
/* Of this process by other instances of this library (dlmopen), each of which has a slot of its own: the
 * driver counts them together. False: there are none. */
bool xpu_other_instances(int device, uint64_t *bytes);
/* Of this process alone, all kinds or one. */
uint64_t xpu_own(int device);
uint64_t xpu_own_kind(int device, enum xpu_kind kind);

/* This process's slot, taken at the first call; false with `*why` when there is none to be had. A program
 * that gives up its rights to open files (chroot, seccomp) keeps the slot that it took before. A forked child
 * has none until it takes its own. */
bool xpu_slot_take(const char **why);

/* Charges `bytes` if the container's total stays within the limit; false if not, with nothing changed. Dead
 * processes are cleaned up before the answer is no. Rounds up to XPU_GRAIN. */
bool xpu_charge(int device, enum xpu_kind kind, uint64_t bytes);
/* Charges what the driver has already taken, whatever the limit says. */
void xpu_charge_anyway(int device, enum xpu_kind kind, uint64_t bytes);
/* Gives back; never more than this process holds of the kind. */
void xpu_give_back(int device, enum xpu_kind kind, uint64_t bytes);
/* Moves bytes from one kind to another; the total stays. */
void xpu_move(int device, enum xpu_kind from, enum xpu_kind to, uint64_t bytes);

/* Bytes of this process's memory that others may have open (exported handles): while any process of the
 * container has imports, a dead exporter's are not given back, and neither are those that it freed
 * (XPU_ORPHAN). */
void xpu_exported(int device, int64_t change);
/* Allocations that this process has open of others. */
void xpu_imported(int change);
/* Frees memory that was counted by xpu_exported: gives it back now, or, while any process has imports, keeps
 * it as XPU_ORPHAN until none has; takes it off what is exported when it goes back. */
void xpu_give_back_exported(int device, enum xpu_kind kind, uint64_t bytes);

/* What each process has now, for diagnosis and for the process lists of NVML: calls `each` for every live
 * slot. `listed` is the id by which the driver lists it, 0 where that is not known to be another than `pid`.
 */
struct xpu_process {
    uint32_t pid, listed;
    const char *name;
    const uint64_t *used; /* bytes, of each device */
};
void xpu_each_process(void (*each)(const struct xpu_process *process, void *data), void *data);
/* Tells the others by which id the driver lists this process. */
void xpu_listed_as(uint32_t id);

/* log.h's twin for people: one line on stderr, once a process. Used where a call is refused for want of valid
 * pages. */
void xpu_refuse(const char *why);

/* Tells, once it is final, that `bytes` more of a device (0: not known how many) would pass the limit: in the
 * log, and on stderr once a process, for CUDA's answer is the same where the card itself is full. */
void xpu_refused(int device, uint64_t bytes);

/* XPU_LOG=debug (stderr) or XPU_LOG=debug:/a/file; XPU_LOG=off: not even xpu_refused's line. A setuid program
 * writes no file. */
extern bool xpu_log_on; /* set when the pages are opened */
void xpu_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A size in such a line, rounded down to a tenth. */
struct xpu_mib {
    char text[32];
};
struct xpu_mib xpu_mib(uint64_t bytes);
#define XPU_MIB(bytes) xpu_mib(bytes).text
#define XPU_DEBUG(...)                                                                                       \
    do {                                                                                                     \
        if (__atomic_load_n(&xpu_log_on, __ATOMIC_RELAXED))                                                  \
            xpu_log(__VA_ARGS__);                                                                            \
    } while (0)

#endif
