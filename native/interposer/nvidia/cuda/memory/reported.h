/*
 * The usage that the driver reports, through the real NVML, of a device of the pages. It charges nothing.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Bytes that the driver counts for this process, less those of other instances of this library in it. False
 * if it does not report them (a container whose process ids it does not know, MPS, a process without a
 * context). Called with no lock held. */
bool xpu_reported(int device, uint64_t *bytes);
/* The processes that the driver lists on a device, by its ids for them. */
enum { XPU_IDS = 128 };
struct xpu_ids {
    unsigned int count, id[XPU_IDS];
    bool known; /* false: the driver does not list them, or there are more */
};
void xpu_reported_ids(int device, struct xpu_ids *ids);
/* Called after this process's first context was made, which took `taken` bytes of the card: the one id that
 * has come since is this process's, if the bytes agree. Many drivers list processes by the host's ids, which
 * a container cannot know otherwise. */
void xpu_reported_recognize(int device, const struct xpu_ids *before, uint64_t taken);
/* Whether the driver knows this process by such an id. */
bool xpu_reported_by_other_id(void);

/* Whether the driver has been asked already. The first time takes milliseconds. */
bool xpu_reported_started(void);
/* The driver means another process by this one's id: its report on that one is not used. */
void xpu_reported_distrust(void);
/* Free bytes of the device; false without NVML. */
bool xpu_card_free(int device, uint64_t *bytes);
