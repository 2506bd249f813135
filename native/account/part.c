#define _GNU_SOURCE
#include "part.h"
#include "atomic.h"
#include "pages.h"
#include "process_state.h"
#include "slot.h"

/* The interval at which the parts of all processes are added up. */
enum { ANEW_NS = 10000000 };

/* This process's part; 0: all of the device, in turns with others. A forked child has its parent's part, as
 * it has its environment. Atomic. */
static uint32_t parts[XPU_DEVICES];
/* The sum of the container's processes, and the end of its validity; atomic. */
static struct { uint64_t sum, until; } all[XPU_DEVICES];

void xpu_part_set(int device, uint32_t part) { XPU_STORE(parts[device], part); }

bool xpu_has_part(int device) { return XPU_LOAD(parts[device]) != 0; }

uint64_t xpu_scale_to_part(int device, uint64_t ns) {
    uint32_t part = XPU_LOAD(parts[device]);
    return part ? (uint64_t)((double)ns * part / XPU_WHOLE) : ns;
}

/* A dead process counts until its slot is cleaned: its container is then held to its share, and no lower. */
static uint64_t add_up(int device) {
    unsigned count = xpu_pages()->quota->slot_count;
    int own = xpu_process_slot();
    uint64_t sum = XPU_LOAD(parts[device]);
    if (own >= 0 && XPU_LOAD(xpu_slot_device_at((unsigned)own, device)->part) != sum)
        XPU_STORE(xpu_slot_device_at((unsigned)own, device)->part, sum);
    for (unsigned slot = xpu_slot_marked(0); slot < count; slot = xpu_slot_marked(slot + 1)) {
        uint64_t part = XPU_LOAD(xpu_slot_device_at(slot, device)->part);
        if ((int)slot != own)
            sum += part < XPU_WHOLE ? part : XPU_WHOLE;
    }
    return sum;
}

bool xpu_parts_fit(int device, uint32_t share, uint64_t now) {
    if (!xpu_has_part(device))
        return false;
    if (XPU_LOAD(all[device].until) <= now) {
        XPU_STORE(all[device].sum, add_up(device));
        XPU_STORE(all[device].until, now + ANEW_NS);
    }
    return XPU_LOAD(all[device].sum) <= share;
}
