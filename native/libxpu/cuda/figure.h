/*
 * What the driver itself says through the real NVML of a device of the pages.
 */
#ifndef XPU_CUDA_FIGURE_H
#define XPU_CUDA_FIGURE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that the driver counts to this process; false where it does not say (a container whose process ids it
 * does not know, MPS, a process without a context). Called with no lock held. */
bool xpu_figure(int device, uint64_t *bytes);
/* Whether the driver has been asked already, which the first time takes milliseconds. */
bool xpu_figure_started(void);
/* The driver has shown that it means another process by this one's id: its figures are not asked any more. */
void xpu_figure_distrust(void);
/* Bytes of the device that nobody has; false without NVML. */
bool xpu_card_free(int device, uint64_t *bytes);

#endif
