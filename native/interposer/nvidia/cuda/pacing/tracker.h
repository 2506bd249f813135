/*
 * A tracker: the pacer's state in one CUcontext of this process. It has CUevents for markers and probes, a
 * CUstream of its own for the probes, and the unmeasured launches of each CUstream of the program.
 *
 * Threads of the program place markers; the sampler (sampler.h: one thread at a time) reads them. No thread
 * waits for another: the thread that takes a stream's flag changes the stream's state, and one that finds it
 * taken leaves a note and goes on.
 */
#pragma once

#include "clocks.h"
#include "costs.h"
#include "headers/cuda/cuda_api.h"
#include "measure.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    XPU_TRACKERS = 32,
    XPU_TRACKER_EVENTS = 256,     /* for markers; at most 256, as a byte names one */
    XPU_TRACKER_STREAMS_BITS = 7, /* 128 places; a stream whose 8 next places are busy shares one */
    XPU_TRACKER_STREAMS = 1 << XPU_TRACKER_STREAMS_BITS,
    XPU_TRACKER_PENDING = 64,         /* markers of one stream; a power of two */
    XPU_TRACKER_PROBES = 16,          /* under way at once; a power of two */
    XPU_TRACKER_ENDED = 64,           /* remembered ends of work */
    XPU_TRACKER_CALM = 64,            /* probes in a row that did not wait: there is no other context */
    XPU_MARKER_MIX = 4,               /* kinds of launches that one marker tells apart */
    XPU_TRACKER_UNKNOWN_NS = 9000000, /* at most: `unknown_ns` */
};

enum xpu_marker_kind {
    XPU_MARKER_BEGIN, /* before the first launch of an idle stream */
    XPU_MARKER_END,   /* after launches */
};

struct xpu_marker {
    enum xpu_marker_kind kind;
    bool stamped;     /* `at` is known */
    bool pauses;      /* the stream should have been idle between some of the launches */
    bool last_alone;  /* or before the last of them */
    bool gathered;    /* the begin of some of these launches is unknown */
    int64_t first;    /* before the first launch, CLOCK_MONOTONIC */
    int64_t last;     /* and the last */
    int64_t expected; /* its end, by the predictions */
    int64_t recorded; /* before the call that recorded it */
    int64_t at;       /* ns of the device's clock */
    bool past;        /* the work had ended when the marker was recorded */
    int64_t ended;    /* its end, if it is known; otherwise `at` */
    uint64_t ns;      /* predicted, of the launches since the marker before */
    uint64_t depth;   /* ns; more for unmeasured launches, of which a few at a time may go */
    uint64_t last_ns;
    uint32_t count, mixed;
    uint32_t unknown; /* launches of unmeasured kinds */
    xpu_cost last_cost, costs[XPU_MARKER_MIX];
    uint32_t counts[XPU_MARKER_MIX];
};

struct xpu_tracked_stream {
    uint64_t key;            /* 0: free; atomic */
    uint32_t flag;           /* taken to change the following fields; atomic */
    uint32_t launching;      /* threads between the begin and the end of a launch; atomic */
    uint32_t missed;         /* launches that found the flag taken; atomic */
    uint64_t missed_ns;      /* their predicted time; atomic */
    uint32_t tick;           /* the tick of the last marker */
    int64_t busy_until;      /* by the predictions, CLOCK_MONOTONIC; atomic */
    bool open;               /* it has, or may have, work: a marker of its begin was placed; atomic */
    CUstream stream;         /* the stream of the last launch, if any thread may record in it now; atomic */
    struct xpu_marker since; /* launches after the last marker */
    uint32_t prepared;       /* launches of `since` before `next` was recorded; 0: none */
    uint16_t next;           /* the number of an event for the next marker, and 1; 0: none yet */
    uint32_t placed, read;   /* counts of markers; atomic */
    uint8_t pending[XPU_TRACKER_PENDING]; /* numbers of their events, by count */
    /* Of the sampler: */
    bool active;     /* its work has begun; others read it, too: atomic */
    int64_t stamped; /* the time of the last marker that was read, or will be; of the device's clock */
    double used_before, each_before, passed_before, waited_before; /* the measure's, at the last marker */
    int64_t resumes; /* the begin of work without a marker; 0: none */
    bool guessed;    /* the work under way began so */
    int64_t from;    /* the measure's time at the last marker */
    bool predicted;  /* the work before the last marker counted as predicted */
    struct xpu_doubt doubt;
    int64_t assumed_end; /* of launches that no marker follows; 0: none */
    uint64_t assumed_ns; /* their predicted cost, and their number */
    uint32_t assumed_count;
};

struct xpu_probe {
    int64_t before, after; /* around the call, CLOCK_MONOTONIC */
};

struct xpu_tracker {
    CUcontext context; /* NULL: free; atomic */
    uint32_t using;    /* the sampler is in a call of the driver for it; atomic */
    uint32_t ending;   /* the number of calls under way that may end the context; atomic */
    /* Read from here on only if there is a context. */
    int device;            /* index in the pages */
    uint32_t broken;       /* the driver refuses the times: nothing can be measured; atomic */
    uint32_t contended;    /* others have recently had the device while it had work; atomic */
    uint32_t is_shared;    /* others use the device: a probe waited, and not many since did not; atomic */
    uint64_t inflight;     /* ns, the depth of marked and unmeasured work; atomic */
    uint32_t per_thread;   /* something was launched in a thread's default stream; atomic */
    uint32_t unknown;      /* launches of unmeasured kinds that are marked; atomic */
    uint32_t unknown_seen; /* the value of `unknown` at the program's last wait; atomic */
    uint64_t unknown_ns;   /* the cost of unmeasured launches, by the last ones; atomic */
    uint32_t let_go;       /* launches that waited in vain for less to be under way; atomic */
    uint32_t let_go_at;    /* `ended_count` then; atomic */
    uint64_t exhausted_at; /* since then no event is free; 0: not seen; atomic */
    uint64_t stall;        /* ns: the next launch's wait for one that ends; 0: the usual; atomic */
    uint64_t behind_at;    /* `ended_count` and 1 at a launch let go behind its own stream's work; atomic */
    CUstream probes;       /* the pacer's own stream */
    CUevent events[XPU_TRACKER_EVENTS];
    uint64_t free[XPU_TRACKER_EVENTS / 64]; /* bits; atomic */
    struct xpu_marker markers[XPU_TRACKER_EVENTS];
    uint64_t taken[XPU_TRACKER_STREAMS / 64]; /* bits: places that have been a stream's; atomic */
    struct xpu_tracked_stream streams[XPU_TRACKER_STREAMS];
    /* Of the sampler: */
    CUevent probe_events[XPU_TRACKER_PROBES], reference;
    struct xpu_probe probed[XPU_TRACKER_PROBES];
    uint32_t probes_placed, probes_read;
    int64_t reference_at; /* the completion of `reference`, ns of the device's clock */
    struct xpu_clocks clocks;
    double delay;                     /* of a call until the device sees it, beyond the quickest; ns */
    int64_t latest;                   /* the completion of the last probe */
    uint32_t undisturbed;             /* probes in a row that did not wait */
    uint32_t waits;                   /* probes that did, since others were last gone */
    double wait, longest_wait;        /* their recent waits: mean and maximum; ns */
    int64_t ended[XPU_TRACKER_ENDED]; /* the last ends of work */
    uint32_t ended_count;             /* atomic */
    struct xpu_measure measure;
    double retired;                  /* predicted ns of measured or given-up work */
    double retired_before;           /* at the begin of the work under way */
    bool all_known;                  /* all of that was measured before */
    double settled, corrected, kept; /* the part that the budget knows */
};

/* The tracker of the stream's context. NULL with *broken false: its device has no cap. NULL with *broken
 * true: it has one, and nothing can be measured there. */
struct xpu_tracker *xpu_tracker_for(CUstream stream, bool *broken);
/* The same, if it exists; none is made. */
struct xpu_tracker *xpu_tracker_known(CUstream stream);
/* A tracker by number; NULL: there is none with that number. */
struct xpu_tracker *xpu_tracker_at(unsigned number);
/* The first place from `from` on that has been a stream's; XPU_TRACKER_STREAMS: none. */
static inline unsigned xpu_tracker_next(const struct xpu_tracker *tracker, unsigned from) {
    for (; from < XPU_TRACKER_STREAMS; from = (from / 64 + 1) * 64) {
        uint64_t taken = __atomic_load_n(&tracker->taken[from / 64], __ATOMIC_ACQUIRE) >> from % 64;
        if (taken)
            return from + (unsigned)__builtin_ctzll(taken);
    }
    return XPU_TRACKER_STREAMS;
}
#define XPU_EACH_STREAM(i, tracker)                                                                          \
    for (unsigned i = xpu_tracker_next(tracker, 0); i < XPU_TRACKER_STREAMS;                                 \
         i = xpu_tracker_next(tracker, i + 1))
/* The place of a stream. */
struct xpu_tracked_stream *xpu_tracked_stream(struct xpu_tracker *tracker, CUstream stream, bool per_thread);
/* The same if something was launched in that stream already, and no other stream has the place; or NULL. */
struct xpu_tracked_stream *xpu_tracked_stream_known(struct xpu_tracker *tracker, CUstream stream,
                                                    bool per_thread);
/* The same stream as a handle for calls without the default stream of each thread. */
static inline CUstream xpu_handle_of(CUstream stream, bool per_thread) {
    return per_thread && !stream ? CU_STREAM_PER_THREAD : stream;
}

/* Takes the flag of a stream's place. False: another thread has it. */
static inline bool xpu_stream_take(struct xpu_tracked_stream *on) {
    return !__atomic_load_n(&on->flag, __ATOMIC_RELAXED) &&
           !__atomic_exchange_n(&on->flag, 1, __ATOMIC_ACQUIRE);
}
static inline void xpu_stream_leave(struct xpu_tracked_stream *on) {
    __atomic_store_n(&on->flag, 0, __ATOMIC_RELEASE);
}

/* Written with the flag taken, and read without it. */
static inline void xpu_stream_opens(struct xpu_tracked_stream *on, bool open) {
    __atomic_store_n(&on->open, open, __ATOMIC_RELAXED);
}

/* Records a marker in the stream, with the flag taken. False: no event is free, or the driver refuses. */
bool xpu_marker_place(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, CUstream stream,
                      enum xpu_marker_kind kind);
/* The time since which there is no event to mark the begin of the stream's work, CLOCK_MONOTONIC. 0: there is
 * one, or it was marked. */
uint64_t xpu_marker_missing(struct xpu_tracker *tracker, const struct xpu_tracked_stream *on);
/* Records the event of the next marker after a launch, with the flag taken, in case no other thread can do
 * that later. It becomes a marker when one is placed, without a call of the driver, on any thread. Until then
 * it is recorded again after each launch. */
void xpu_marker_prepare(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, CUstream stream);
/* Marks the last launches, if no more come until budget has come, or the program has waited for them. */
void xpu_marker_end(struct xpu_tracker *tracker, struct xpu_tracked_stream *on, CUstream stream);
/* The same on any thread, with the flag taken. False: there is nothing to mark, or not from here. */
bool xpu_marker_late(struct xpu_tracker *tracker, struct xpu_tracked_stream *on);
/* The same in all streams of the tracker without launches since `before`, CLOCK_MONOTONIC. For a thread that
 * has not taken any flag. */
void xpu_marker_late_all(struct xpu_tracker *tracker, int64_t before);
/* From here on no other thread records in this stream until the next launch in it: it ends now, or may be
 * captured. The last launches are marked. */
void xpu_stream_withdraw(CUstream stream);
/* The program makes a stream that waits for the default stream, and that the default stream waits for. */
void xpu_stream_blocks(void);
/* With the flag taken: launches that found it taken count as launched. */
void xpu_stream_gather(struct xpu_tracked_stream *on);
/* Whether any thread may put an event there later that the program did not ask for: not in the default stream
 * of a thread, and not always in the legacy one. */
bool xpu_may_mark(struct xpu_tracker *tracker, CUstream stream);
/* Whether calls with the stream are recorded in a graph, or cannot be made. */
bool xpu_is_recorded(CUstream stream);
/* The number of unread markers, for the sampler. */
static inline struct xpu_marker *xpu_marker_first(struct xpu_tracker *tracker, struct xpu_tracked_stream *on,
                                                  uint32_t number, CUevent *event) {
    if (number == __atomic_load_n(&on->placed, __ATOMIC_ACQUIRE))
        return NULL;
    uint8_t at = on->pending[number % XPU_TRACKER_PENDING];
    *event = tracker->events[at];
    return &tracker->markers[at];
}
void xpu_marker_done(struct xpu_tracker *tracker, struct xpu_tracked_stream *on);

/* Forgets the context, if it has no tracker. */
void xpu_tracker_forget(CUcontext context);
/* The tracker of a context, or NULL. */
struct xpu_tracker *xpu_tracker_of(CUcontext context);
