/*
 * The pacer: launches wait here for budget if the container has a cap on a device's time.
 *
 *     struct xpu_pace pace;
 *     xpu_pace_admit(&pace, stream, per_thread, function, shape);   waits
 *     xpu_pace_begin(&pace);
 *     result = REAL(cuLaunchKernel)(…);
 *     xpu_pace_end(&pace, result);
 *
 * docs/developers/pacing.md describes its measurements and decisions.
 */
#pragma once

#include "costs.h"
#include "cuda/driver/mps.h"
#include "headers/cuda/cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

enum { XPU_PACING_UNKNOWN, XPU_PACING_OFF, XPU_PACING_ON };
extern int xpu_pacing_state __attribute__((visibility("hidden"))); /* atomic */
bool xpu_pacing_look(void);

/* Whether any device of this container has a cap. */
static inline bool xpu_pacing(void) {
    int state = __atomic_load_n(&xpu_pacing_state, __ATOMIC_RELAXED);
    return __builtin_expect(state != XPU_PACING_OFF, 0) && (state == XPU_PACING_ON || xpu_pacing_look());
}

struct xpu_tracker;
struct xpu_tracked_stream;

struct xpu_pace {
    struct xpu_tracker *tracker; /* NULL: this launch is not paced */
    struct xpu_tracked_stream *on;
    CUstream stream;
    uint64_t ns; /* predicted */
    int64_t at;  /* before the launch, CLOCK_MONOTONIC */
    xpu_cost cost;
    bool known;
    bool waited; /* for budget */
};

/* Waits until the container may launch on the stream's device. */
void xpu_pace_admit(struct xpu_pace *pace, CUstream stream, bool per_thread, const void *what,
                    uint32_t shape);
/* The launch comes now, without a wait in between, which would count as its work. */
void xpu_pace_begin(struct xpu_pace *pace);
void xpu_pace_end(struct xpu_pace *pace, CUresult result);
/* A whole interposed function: a launch, once the pacer allows it. Without a cap it is one branch. */
#define XPU_PACED(stream_, per_thread_, what_, shape_, call_)                                                \
    do {                                                                                                     \
        struct xpu_pace pace_;                                                                               \
        if (__builtin_expect(!xpu_pacing(), 1))                                                              \
            return xpu_mps_explained(call_);                                                                 \
        xpu_pace_admit(&pace_, stream_, per_thread_, what_, shape_);                                         \
        xpu_pace_begin(&pace_);                                                                              \
        CUresult result_ = call_;                                                                            \
        xpu_pace_end(&pace_, result_);                                                                       \
        return xpu_mps_explained(result_);                                                                   \
    } while (0)

/* The program is about to wait for a stream. Its last launch is marked, because nothing may come after it. */
void xpu_pace_waits(CUstream stream, bool per_thread);
/* The same for all streams of a context; NULL: the current one. */
void xpu_pace_waits_for_all(CUcontext context);
/* It has waited. Unmeasured launches are measured at once, because the process may end now. */
void xpu_pace_has_waited(void);

/* Around a call that may end a context: from the first call on the pacer does not touch its objects there. */
void xpu_pace_context_begin(CUcontext context);
void xpu_pace_context_end(CUcontext context, bool alive);
