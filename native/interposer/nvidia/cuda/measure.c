#include "measure.h"

/* Time over which `turn` is a mean, ns. */
static const double OF_LATE_NS = 20000000;

void xpu_measure_reset(struct xpu_measure *measure, int64_t at) {
    *measure = (struct xpu_measure){.at = at, .turn = 1};
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

/* Of the time since the last probe, `away` was others'. */
static void split(struct xpu_measure *measure, double away) {
    double passed = (double)measure->unprobed, weight = passed / OF_LATE_NS;
    if (measure->unprobed == 0)
        return;
    measure->used += passed - away;
    measure->waited += away;
    if (measure->active)
        measure->used_each -= away / measure->active;
    measure->turn += (1 - away / passed - measure->turn) * (weight < 1 ? weight : 1);
    measure->unprobed = 0;
}

void xpu_measure_begins(struct xpu_measure *measure, int64_t at) {
    xpu_measure_reaches(measure, at);
    measure->active++;
}

/* After the last work no probe tells of the time since the last one; but when that one's waiting ended. */
void xpu_measure_ends(struct xpu_measure *measure, int64_t at) {
    xpu_measure_reaches(measure, at);
    if (measure->active == 1) {
        int64_t since = measure->at - (int64_t)measure->unprobed;
        int64_t away = measure->away_until < measure->at ? measure->away_until - since : measure->at - since;
        split(measure, away > 0 ? (double)away : 0);
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
    return measure->used + (double)measure->unprobed * measure->turn;
}
