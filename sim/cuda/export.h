/*
 * Inside libcuda: the private tables that libcudart asks for by cuGetExportTable.
 */
#ifndef XPU_SIM_CUDA_EXPORT_H
#define XPU_SIM_CUDA_EXPORT_H

#include "library.h"

/* export.c. The first entry of a table is its size in bytes. */
extern const void *const cuda_runtime_table[], *const cuda_validity_table[];

/* Calls what the runtime left behind for a context that ends. */
void cuda_drop_kept(CUcontext context);
void cuda_forget_kept(void); /* in a forked child */

/* ../cudart/validity.c: 16 bytes that libcudart compares with its own. */
CUresult cuda_validity(uint32_t version, uint64_t seconds, unsigned char answer[16]);

#endif
