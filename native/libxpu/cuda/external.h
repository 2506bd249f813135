/*
 * External memory, as other files need it.
 */
#ifndef XPU_CUDA_EXTERNAL_H
#define XPU_CUDA_EXTERNAL_H

#include "table.h"

/* After the end of something that held external memory: its handle, or what was mapped of it (an entry of the
 * kind XPU_EXTERNAL, without bytes of its own). */
void xpu_external_dropped(const struct xpu_entry *entry);

#endif
