/*
 * The part of a device's time that a context has used itself, from points on the device's clock: a stream's
 * work began, it ended, and a probe did, or did not, wait for its time slice.
 *
 * While several contexts have work, the device gives each a slice of its time in turn. So the time from the
 * begin to the end of some work has the others' slices too. Therefore the time before each probe counts as
 * used if the probe found the context running, and otherwise as waited for. Probes come at random times, so
 * the average is right, however short others' slices are. Neighbours need not be known or trusted. Pure
 * arithmetic: no driver, no clock, no lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Work that counts as predicted, ns: its recent amount, and the surplus by probes. These are right over some
 * time. */
struct xpu_doubt {
    double counted, more;
};
/* Adds such work and its surplus. Returns the part of the doubts that counts now, because they have become
 * too large. */
double xpu_doubt_add(struct xpu_doubt *doubt, double predicted, double more);

struct xpu_measure {
    int64_t at;           /* all is counted up to here, ns of the device's clock */
    unsigned active;      /* streams with work then */
    int64_t away_until;   /* the last probe waited until then */
    uint64_t unprobed;    /* ns with work since the last probe, or since work began */
    double used, waited;  /* ns */
    double used_at_begin; /* of the work under way */
    struct xpu_doubt doubt;
    double scheduled;   /* the part of recent time with work in which the context had the device */
    double used_each;   /* ns used, divided among the streams with work */
    double passed_each; /* the same of all the time with work, with the device or without */
};

void xpu_measure_reset(struct xpu_measure *measure, int64_t at);
/* These come in the order of time. One that is earlier than the last counts as of the last one's time. */
void xpu_measure_begins(struct xpu_measure *measure, int64_t at);
/* `work`: the predicted use of all work since the context was idle, ns; 0: unknown, or no other context uses
 * the device. */
void xpu_measure_ends(struct xpu_measure *measure, int64_t at, double work);
/* A probe came at `at`, and waited until `waited_until`; 0: it did not wait. */
void xpu_measure_probe(struct xpu_measure *measure, int64_t at, int64_t waited_until);
/* Nothing happened until then. */
void xpu_measure_reaches(struct xpu_measure *measure, int64_t at);
/* Part of the time that counted as used was not. */
void xpu_measure_take_back(struct xpu_measure *measure, double ns);
/* The use so far, with the time since the last probe estimated from recent ones. */
double xpu_measure_used(const struct xpu_measure *measure);
