/*
 * A reserve: memory that the driver keeps for a pool, or for the graphs of a device, used or not.
 *
 * The account holds the driver's latest figure, and what calls under way have been let in for as far as that
 * may not be in the figure yet: never both. Readings of the figure are numbered when they begin, and an older
 * one never replaces a newer one: so each call that is complete is in the figure that stands. No lock is held
 * over a call of the driver.
 */
#ifndef XPU_CUDA_RESERVE_H
#define XPU_CUDA_RESERVE_H

#include "claim.h"

struct xpu_reserve {
    struct xpu_reserve *next; /* never freed; those of destroyed pools are used again */
    CUmemoryPool pool;        /* NULL: of graphs */
    CUdevice device;
    bool counted;       /* else it is of the host, or another process's */
    int index;          /* of the device in the pages; -1: it is not the container's */
    enum xpu_kind kind; /* XPU_POOL, XPU_GRAPH */
    uint64_t read;      /* number of the reading that was begun last; atomic */
    uint64_t moved;     /* how often memory was, or may have been, taken from graphs that had it; atomic */
    uint64_t shared, stream; /* needs.c's own */

    /* Under the lock: */
    uint64_t settled, applied; /* bytes, and the number of the reading that they are from */
    uint64_t seen;          /* all figures, or'ed: its lowest bit tells the steps in which it grows; atomic */
    uint64_t held;          /* bytes of it in the account */
    uint64_t pending;       /* bytes charged for calls under way */
    uint64_t promised;      /* bytes of unused room that calls under way were let in for */
    uint64_t draws;         /* calls ever let in, or asked for */
    uint32_t calls;         /* under way */
    uint32_t readers;       /* that may be asking the driver about it */
    uint32_t pointers;      /* handed out and not freed */
    bool closed, destroyed; /* closed: being destroyed, or destroyed */
    bool exported;
};

/* The reserve of a pool (NULL: of the device's graphs); NULL: not known. */
struct xpu_reserve *xpu_reserve_find(CUmemoryPool pool, CUdevice device);
/* The same, made if it is not known; NULL: no memory. */
struct xpu_reserve *xpu_reserve_of(CUmemoryPool pool, CUdevice device, bool counted);

/* A call that draws on a reserve, and may make it grow. */
struct xpu_drawing {
    struct xpu_reserve *reserve;
    uint64_t charged, promised;
    uint64_t before; /* the figure, before the call */
    uint64_t number; /* of the call; 0: others were under way */
};

/* Before the call: lets it in if the reserve has room for `bytes`, or may grow by them; else
 * CUDA_ERROR_OUT_OF_MEMORY, after trimming. What is let in must end with xpu_drawn. A launch of a graph
 * cannot be undone, and is never let in on what looks like room while the account has more. */
CUresult xpu_draw(struct xpu_drawing *drawing, struct xpu_reserve *reserve, uint64_t bytes);
/* After it: sets the account to the driver's figure. False: it took more than it was let in for, and that is
 * beyond the limit. */
bool xpu_drawn(struct xpu_drawing *drawing);
/* After that: bytes by which the reserve has grown for this call alone; 0 if there were others. */
uint64_t xpu_drawn_anew(const struct xpu_drawing *drawing);

/* Sets the account to the driver's figure of one reserve. */
void xpu_reserve_refresh(struct xpu_reserve *reserve);
/* Of each reserve: of one device of the pages, or -1: all. */
void xpu_reserves_refresh(int device);
bool xpu_reserves_trim(int device);
/* Some pool has more than it uses and is told to keep: a synchronisation yet to come may give that back. */
bool xpu_reserves_have_spare(void);

/* A pointer of the pool is handed out, or given back. */
void xpu_reserve_pointer(struct xpu_reserve *reserve, int change);
/* Other processes may have the pool's memory open. */
void xpu_reserve_exported(struct xpu_reserve *reserve);
/* No one asks the driver about the reserve any more, from return on. */
void xpu_reserve_close(struct xpu_reserve *reserve);
/* The end: destroyed at the driver, or (not destroyed) open again. */
void xpu_reserve_closed(struct xpu_reserve *reserve, bool destroyed);

#endif
