/*
 * Memory that the driver keeps in reserve: stream-ordered pools, and what graphs' memory nodes take.
 *
 * The account holds what each pool has reserved on the device, used or not, as the driver says. What is freed
 * goes back to its pool, and from there to the device when the driver sees fit: at a synchronisation, at a
 * trim. So the account is set to the driver's figure after each call that may have changed it, and wherever
 * the answer matters.
 */
#ifndef XPU_CUDA_POOL_H
#define XPU_CUDA_POOL_H

#include "table.h"

/* Sets the account to what pools and graphs of this process now have on a device (index in the pages). Called
 * where the total is looked at: reconciling, views. Cheap where there are none. */
void xpu_pools_refresh(int device);
/* Has the driver give back what pools and graphs keep unused, and refreshes; true if that brought something.
 * Called before memory is refused. */
bool xpu_pools_trim(int device);

/* After cuMemFree, in any of its versions, has freed a pointer whose entry is of the kind XPU_POOL
 * (xpu_free_end calls it) or a pointer that the table does not know (then it may be a graph's). */
void xpu_pool_freed(const struct xpu_entry *entry);
void xpu_unknown_freed(void);

/* Memory has gone back to a pool: at the next synchronisation the driver may give it back to the device, and
 * then xpu_pools_synchronized is called. Atomic. */
extern bool xpu_pools_stale;
void xpu_pools_synchronized(void);

#endif
