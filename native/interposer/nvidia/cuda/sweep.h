/*
 * What has happened in a lane since the last look, in the order of the device's clock.
 */
#ifndef XPU_INTERPOSER_SWEEP_H
#define XPU_INTERPOSER_SWEEP_H

#include "lane.h"

enum {
    XPU_MOST_INSTANTS = XPU_LANE_EVENTS + XPU_LANE_STREAMS + XPU_LANE_PROBES,
    /* What the device makes of a call so soon after it was waiting for nothing else, ns; and a pause in a
     * stream's work that is none. */
    XPU_IDLE_NS = 8000,
};

enum xpu_happening {
    XPU_BEGINS,      /* a stream's work, by its marker */
    XPU_RESUMES,     /* the same, without a marker: by when it was launched */
    XPU_ENDS,        /* work, by its marker */
    XPU_ASSUMED_END, /* the same, without a marker: by what was predicted */
    XPU_PROBE,
};

struct xpu_instant {
    int64_t at; /* ns of the device's clock */
    enum xpu_happening what;
    struct xpu_lane_stream *on;
    int64_t completed; /* of a probe that took its time; 0: it was at its turn */
};

/* A probe that is to be the next reference, and when it completed; at 0: none. */
struct xpu_reference {
    unsigned probe;
    int64_t at;
};

struct xpu_sweep {
    struct xpu_instant instants[XPU_MOST_INSTANTS];
    unsigned count;
    int64_t until; /* what is later is not known yet */
    struct xpu_reference reference;
};

/* Records a probe while there is work, if this is a time for it that nobody chose, and reads those that have
 * completed. */
void xpu_sweep_begin(struct xpu_sweep *sweep, struct xpu_lane *lane, bool probes);
/* Reads a stream's markers. */
void xpu_sweep_markers(struct xpu_sweep *sweep, struct xpu_lane *lane, struct xpu_lane_stream *on);
/* All markers that have completed are read: what comes later is compared with a newer reference. */
void xpu_sweep_end(struct xpu_sweep *sweep, struct xpu_lane *lane);
/* In its place, by its time. */
void xpu_sweep_add(struct xpu_sweep *sweep, struct xpu_instant instant);
/* Whether a probe waited for another context's turn. */
bool xpu_probe_waited(const struct xpu_lane *lane, const struct xpu_instant *probe);

#endif
