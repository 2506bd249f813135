/*
 * What the files of the account share with each other: this process's own state, the places of the slots in
 * the usage page, the locks on them, and the one way in which a total changes. account.h is what everyone
 * else uses. All of it needs open pages (xpu_pages_open), except the process's lock.
 */
#ifndef XPU_SLOT_H
#define XPU_SLOT_H

#include "account.h"

/* ---- own.c: the state that a forked child must not inherit ---- */

/* The lock of this process's slot; false, without waiting, if this very thread holds it already: then a
 * signal handler has interrupted a call of ours. False too where another holds it for half a minute: then it
 * may have been killed (own.c). */
bool xpu_lock(void);
void xpu_unlock(void);
#define XPU_NO_LOCK                                                                                          \
    "this program's first call is not over: a signal handler has interrupted it, or it was killed in vfork"
/* This process's slot, or -1. Set it with the lock held. */
int xpu_own_slot(void);
void xpu_own_slot_set(unsigned slot);
/* What a signal handler gives back while its thread holds the lock: remembered, and given back by the holder
 * once it is done. xpu_owing tells, once, that there is something. */
void xpu_owe(int device, enum xpu_kind kind, uint64_t bytes);
bool xpu_owing(void);
uint64_t xpu_owed_take(int device, enum xpu_kind kind);

/* ---- pages.c, slot.c ---- */

/* The open pages; only after xpu_pages_open has given them. */
const struct xpu_pages *xpu_pages(void);
/* An open description of the usage page, which the caller closes; -1 where the path does not lead to it any
 * more. */
int xpu_usage_descriptor(void);
void xpu_close(int fd);

uint8_t *xpu_mark(unsigned slot);
struct xpu_slot *xpu_slot_at(unsigned slot);
struct xpu_slot_device *xpu_slot_device_at(unsigned slot, int device);
/* This process's place for the device; only with the lock held and a slot taken. */
static inline struct xpu_slot_device *xpu_own_at(int device) {
    return xpu_slot_device_at((unsigned)xpu_own_slot(), device);
}

/* Locks a slot that is free, the first from `start` on; -1 if there is none. A marked one is not free, dead
 * or not: it is for xpu_reap. */
int xpu_slot_find(int fd, unsigned start);

/* The inode number of this process's pid namespace; 0: not known. */
uint32_t xpu_pid_namespace(void);

/* Locks on bytes of the usage page: a slot's, or the cleaner's (byte slot_count). Taken without waiting;
 * held as long as the open file description that `fd` refers to. */
bool xpu_byte_lock(int fd, unsigned byte);
void xpu_byte_unlock(int fd, unsigned byte, unsigned count);
/* Whether another open file description has it. */
bool xpu_byte_held(int fd, unsigned byte);

/* ---- total.c ---- */

enum xpu_bound { XPU_WITHIN_LIMIT, XPU_WHATEVER };

/* Adds up to `grains` (a negative number takes off) to slot's bytes and to the device's total. The caller
 * owns the slot: it has its OFD lock, and no thread beside it makes changes there. Returns the grains that
 * were added or taken: all, or 0 where the limit forbids, or less where the slot or the total have no more.
 */
uint64_t xpu_total_add(unsigned slot, int device, uint64_t grains, enum xpu_bound bound);
uint64_t xpu_total_take(unsigned slot, int device, uint64_t grains);
/* Completes or forgets the change that slot's last owner was killed in. The caller owns the slot. */
void xpu_total_recover(unsigned slot, int device);
uint64_t xpu_total(int device); /* grains */

/* ---- account.c ---- */

bool xpu_is_device(int device);
/* A change of this process's own figures: takes its lock, and its slot at the first; false where it has none,
 * or where the lock is not to be had. The end does what signal handlers have left to do. */
bool xpu_begin(void);
void xpu_end(void);
void xpu_give_back_locked(int device, enum xpu_kind kind, uint64_t bytes);

/* ---- orphan.c ---- */

/* Gives back what this process freed while others had it open, if nobody has any more. */
void xpu_settle_orphans(int device);

/* ---- reap.c ---- */

/* The cleaner's byte; false if it was not to be had in some 20 ms: who holds it may be stopped. */
bool xpu_cleaner_lock(int fd);
/* Gives back what dead processes held. If another process is at it, waits for it, as long as that. */
void xpu_reap(void);
/* Whether any process has memory of another's open. */
bool xpu_any_imports(void);
/* Brings a slot that the caller owns back to nothing, but for `keep` of what it exported. */
void xpu_slot_clean(unsigned slot, bool keep_exported);

/* ---- log.c ---- */
void xpu_log_open(void);

/* Loads and stores of the shared pages. Each store is a release: a process may be killed after any of them,
 * and the others must find them made in the order of the program. */
#define XPU_LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define XPU_STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)

#endif
