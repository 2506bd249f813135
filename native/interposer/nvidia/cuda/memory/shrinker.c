/*
 * The registered shrinkers, gathered by the linker.
 */
#include "shrinker.h"

extern const struct xpu_shrinker __start_xpu_shrinkers[] __attribute__((visibility("hidden")));
extern const struct xpu_shrinker __stop_xpu_shrinkers[] __attribute__((visibility("hidden")));

void xpu_unused_refresh(int device) {
    for (const struct xpu_shrinker *at = __start_xpu_shrinkers; at < __stop_xpu_shrinkers; at++)
        at->refresh(device);
}

bool xpu_unused_trim(int device) {
    bool brought = false;
    for (const struct xpu_shrinker *at = __start_xpu_shrinkers; at < __stop_xpu_shrinkers; at++)
        brought |= at->trim(device);
    return brought;
}

void xpu_unknown_freed(void) {
    for (const struct xpu_shrinker *at = __start_xpu_shrinkers; at < __stop_xpu_shrinkers; at++)
        at->freed_unknown();
}
