/*
 * Inside libcuda: the private tables that libcudart asks for by cuGetExportTable.
 */
#pragma once

#include "library.h"

/* export.c. The first entry of a table is its size in bytes. */
extern const void *const cuda_runtime_table[], *const cuda_validity_table[];

/* kept.c; a context of NULL is the current one */
typedef void (*kept_destructor)(CUcontext context, void *key, void *value);
CUresult cuda_keep(CUcontext context, void *key, void *value, kept_destructor destroy);
CUresult cuda_drop_one_kept(CUcontext context, void *key);
CUresult cuda_get_kept(void **value, CUcontext context, const void *key);
/* Calls the functions that the runtime left for a context that ends. */
void cuda_drop_kept(CUcontext context);
void cuda_forget_kept(void); /* in a forked child */

/* ../cudart/validity.c: 16 bytes that libcudart compares with its own. */
CUresult cuda_validity(uint32_t version, uint64_t seconds, unsigned char answer[16]);
