/*
 * How much of a device's time a context has used itself, from points on the device's clock: a stream's work
 * began, it ended, and a probe had, or had not, to wait for its time slice.
 *
 * While several contexts have work the device gives each a slice of its time in turn, so that the time from
 * the begin to the end of some work is not the work's use: it holds the others' slices too. So the time
 * before each probe counts as used if the probe found the context running, and as waited for if not: probes
 * come at random times, so that the average is right, however short others' slices are. Neighbours need not
 * be known or trusted. Pure arithmetic: no driver, no clock, no lock.
 */
#ifndef XPU_INTERPOSER_MEASURE_H
#define XPU_INTERPOSER_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

/* Of work that counts as it was predicted, ns: how much did so of late, and how much more it was by probes.
 * These are right over some time. */
struct xpu_doubt {
    double counted, more;
};
/* Some more such work, and by how much it was more. Returns the part of the doubts that counts now, because
 * they have become too large. */
double xpu_doubt_adds(struct xpu_doubt *doubt, double predicted, double more);

struct xpu_measure {
    int64_t at;           /* up to when all is counted, ns of the device's clock */
    unsigned active;      /* streams with work at that time */
    int64_t away_until;   /* the last probe waited until then */
    uint64_t unprobed;    /* ns with work since the last probe, or since work began */
    double used, waited;  /* ns */
    double used_at_begin; /* of the work under way */
    struct xpu_doubt doubt;
    double scheduled;   /* of late, the part of the time with work in which the context had the device */
    double used_each;   /* ns used, divided among the streams that had work: the share of one */
    double passed_each; /* the same of all the time with work, with the device or without */
};

void xpu_measure_reset(struct xpu_measure *measure, int64_t at);
/* These come in the order of time; one that is earlier than the last counts as of that time. */
void xpu_measure_begins(struct xpu_measure *measure, int64_t at);
/* `work`: the predicted use of all work since the context was idle, ns; 0: not known, or no other context
 * uses the device. */
void xpu_measure_ends(struct xpu_measure *measure, int64_t at, double work);
/* A probe came at `at`, and waited until then; 0: it did not wait. */
void xpu_measure_probe(struct xpu_measure *measure, int64_t at, int64_t waited_until);
/* Nothing happened up to then. */
void xpu_measure_reaches(struct xpu_measure *measure, int64_t at);
/* Of the time that counted as used, so much turned out to be none. */
void xpu_measure_take_back(struct xpu_measure *measure, double ns);
/* The use so far, with the time since the last probe estimated from recent ones. */
double xpu_measure_used(const struct xpu_measure *measure);

#endif
