/*
 * Memory pools (CUmemoryPool, cuMemAllocAsync): notices for synchronising calls.
 */
#pragma once

#include <stdbool.h>

/* Memory has gone back to a pool: at the next synchronisation the driver may give it back to the device, and
 * then xpu_pools_synchronized is called. Atomic. */
extern bool xpu_pools_stale;
void xpu_pools_synchronized(void);
