/*
 * Lines for people: the reason why a device or an allocation is refused, and, with XPU_LOG, the library's
 * actions. It knows nothing of pages or devices; callers make the sentences.
 *
 * XPU_LOG=debug (stderr), XPU_LOG=debug:/a/file, or XPU_LOG=off: the line of xpu_log_once is left out, too. A
 * setuid program writes no file.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Reads XPU_LOG. Called once, before the first line. */
void xpu_log_open(void);

extern bool xpu_log_on; /* the debug log is wanted; atomic */
void xpu_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define XPU_DEBUG(...)                                                                                       \
    do {                                                                                                     \
        if (__atomic_load_n(&xpu_log_on, __ATOMIC_RELAXED))                                                  \
            xpu_log(__VA_ARGS__);                                                                            \
    } while (0)

/* "xpu: the device is refused: WHY" on stderr, once a process, with any XPU_LOG. */
void xpu_device_refused(const char *why);
/* Our own line on stderr, once for each process that *told_by has not seen; not with XPU_LOG=off, nor if the
 * debug log says the same on stderr. */
void xpu_log_once(int *told_by, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A size in such a line, rounded down to a tenth. */
struct xpu_mib {
    char text[32];
};
struct xpu_mib xpu_mib(uint64_t bytes);
#define XPU_MIB(bytes) xpu_mib(bytes).text
