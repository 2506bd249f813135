/*
 * NVML's start: with valid pages, or not at all.
 */
#define _GNU_SOURCE
#include "view.h"

bool view_allowed(void) {
    const char *why = "";
    if (xpu_pages_open(&why))
        return true;
    xpu_device_refused(why);
    return false;
}

static bool start(void) {
    if (!view_allowed())
        return false;
    xpu_nvml_forget_handles();
    return true;
}

/* The real library's own calls from one of these to another pass here too, and do no harm. */
nvmlReturn_t nvmlInit(void) { return start() ? ASK(nvmlInit) : NVML_ERROR_NO_PERMISSION; }

nvmlReturn_t nvmlInit_v2(void) { return start() ? ASK(nvmlInit_v2) : NVML_ERROR_NO_PERMISSION; }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    return start() ? ASK(nvmlInitWithFlags, flags) : NVML_ERROR_NO_PERMISSION;
}
