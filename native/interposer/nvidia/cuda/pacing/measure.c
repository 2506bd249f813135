#include "measure.h"

/* `scheduled` is a mean over this time, ns, and over at most this many probes, which may be rare. */
static const double OF_LATE_NS = 20000000;
static const double OF_LATE = 32;

/* The usual length of others' time slices, ns. */
static const double TIME_SLICE_NS = 1000000;
/* Work of all streams together without a pause counts as predicted if it is no longer than this, ns: others'
 * slices are longer, and probes are as far apart. */
static const double SHORT_NS = 500000;
/* Doubts are of this much work, ns. They count once they are this large, and this part of it: without reason
 * they are less than a quarter. */
static const double COUNTED_NS = 50000000, DOUBTED_NS = 5000000, DOUBTED = 0.4;

double xpu_doubt_add(struct xpu_doubt *doubt, double predicted, double more) {
    double counts = 0;
    doubt->counted += predicted;
    doubt->more += more;
    if (doubt->more > DOUBTED_NS && doubt->more > DOUBTED * doubt->counted)
        counts = doubt->more;
    if (counts > 0 || doubt->counted > COUNTED_NS)
        *doubt = (struct xpu_doubt){0};
    return counts;
}

void xpu_measure_reset(struct xpu_measure *measure, int64_t at) {
    *measure = (struct xpu_measure){.at = at, .scheduled = 1};
}

void xpu_measure_reaches(struct xpu_measure *measure, int64_t at) {
    if (at <= measure->at)
        return;
    if (measure->active) {
        measure->unprobed += (uint64_t)(at - measure->at);
        measure->used_each += (double)(at - measure->at) / measure->active;
        measure->passed_each += (double)(at - measure->at) / measure->active;
    }
    measure->at = at;
}

/* Of the time since the last probe, others had `away`. */
static void count(struct xpu_measure *measure, double away) {
    measure->used += (double)measure->unprobed - away;
    measure->waited += away;
    if (measure->active)
        measure->used_each -= away / measure->active;
    measure->unprobed = 0;
}

/* The same, and it is known. */
static void split(struct xpu_measure *measure, double away) {
    double passed = (double)measure->unprobed, weight = passed / OF_LATE_NS;
    if (measure->unprobed == 0)
        return;
    count(measure, away);
    if (weight < 1 / OF_LATE)
        weight = 1 / OF_LATE;
    measure->scheduled += (1 - away / passed - measure->scheduled) * (weight < 1 ? weight : 1);
}

void xpu_measure_begins(struct xpu_measure *measure, int64_t at) {
    xpu_measure_reaches(measure, at);
    if (!measure->active)
        measure->used_at_begin = measure->used;
    measure->active++;
}

/* After the last work no probe shows the time since the last one, only the end of that one's wait. `own` at
 * its end was the context's. The rest was its own in the proportion of recent probes. */
static double away_before_end(const struct xpu_measure *measure, double own) {
    int64_t since = measure->at - (int64_t)measure->unprobed, until = since;
    if (measure->away_until > since)
        until = measure->away_until < measure->at ? measure->away_until : measure->at;
    double rest = (double)(measure->at - until) - own;
    return (double)(until - since) + (rest > 0 ? rest * (1 - measure->scheduled) : 0);
}

/* Work that is shorter than others' time slices meets a probe by chance, and on a busy host seldom. */
static void counts_as(struct xpu_measure *measure, double work) {
    double used = measure->used - measure->used_at_begin;
    double more = xpu_doubt_add(&measure->doubt, work, used - work);
    xpu_measure_take_back(measure, used - work - more);
}

void xpu_measure_ends(struct xpu_measure *measure, int64_t at, double work) {
    xpu_measure_reaches(measure, at);
    if (measure->active == 1) {
        bool is_short = work > 0 && work <= SHORT_NS;
        count(measure, away_before_end(measure, is_short ? 0 : TIME_SLICE_NS));
        if (is_short)
            counts_as(measure, work);
    }
    if (measure->active)
        measure->active--;
}

void xpu_measure_probe(struct xpu_measure *measure, int64_t at, int64_t waited_until) {
    xpu_measure_reaches(measure, at);
    split(measure, waited_until ? (double)measure->unprobed : 0);
    measure->away_until = waited_until;
}

void xpu_measure_take_back(struct xpu_measure *measure, double ns) {
    measure->used -= ns;
    measure->used_each -= ns;
}

double xpu_measure_used(const struct xpu_measure *measure) {
    return measure->used + (double)measure->unprobed * measure->scheduled;
}
