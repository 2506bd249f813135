/*
 * The timeline: the completed CUevents of a tracker since the last look, in the order of the device's clock.
 */
#pragma once

#include "tracker.h"

enum {
    XPU_MOST_TIME_POINTS = XPU_TRACKER_EVENTS + XPU_TRACKER_STREAMS + XPU_TRACKER_PROBES,
    /* The device's shortest reaction to a call, ns; and the longest pause in a stream's work that does not
     * count. */
    XPU_IDLE_NS = 8000,
};

enum xpu_happening {
    XPU_BEGINS,      /* a stream's work, by its marker */
    XPU_RESUMES,     /* the same without a marker, by its launch */
    XPU_ENDS,        /* work, by its marker */
    XPU_ASSUMED_END, /* the same, without a marker: by predictions */
    XPU_PROBE,
};

struct xpu_time_point {
    int64_t at; /* ns of the device's clock */
    enum xpu_happening what;
    struct xpu_tracked_stream *on;
    int64_t completed; /* for a probe that took its time; 0: it did not wait */
};

/* A probe that becomes the next reference, and its completion; at 0: none. */
struct xpu_reference {
    unsigned probe;
    int64_t at;
};

struct xpu_timeline {
    struct xpu_time_point points[XPU_MOST_TIME_POINTS];
    unsigned count;
    int64_t until; /* later ones are not known yet */
    struct xpu_reference reference;
};

/* Records a probe while there is work, if its random time has come, and reads completed ones. */
void xpu_timeline_begin(struct xpu_timeline *timeline, struct xpu_tracker *tracker, bool probes);
/* Reads a stream's markers. */
void xpu_timeline_markers(struct xpu_timeline *timeline, struct xpu_tracker *tracker,
                          struct xpu_tracked_stream *on);
/* All completed markers are read: later ones are compared with a newer reference. */
void xpu_timeline_end(struct xpu_timeline *timeline, struct xpu_tracker *tracker);
/* Puts it in its place by time. */
void xpu_timeline_add(struct xpu_timeline *timeline, struct xpu_time_point point);
/* Whether a probe waited for another context's time slice. */
bool xpu_probe_waited(const struct xpu_tracker *tracker, const struct xpu_time_point *probe);
