/*
 * Mappable memory (cuMemCreate), as other files need it.
 */
#ifndef XPU_CUDA_VMM_WRAPPER_H
#define XPU_CUDA_VMM_WRAPPER_H

#include "claim.h"

/* After an array or a mipmapped array has ended: what its tiles were mapped to is mapped there no more. */
void xpu_tiles_gone(const void *array);
/* After a multicast object has ended: what was bound to it is so no more. */
void xpu_bindings_gone(CUmemGenericAllocationHandle object);

#endif
