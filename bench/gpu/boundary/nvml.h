/* NVML's figures of the first card, as the process that asks sees them. */
#ifndef XPU_BOUNDARY_NVML_H
#define XPU_BOUNDARY_NVML_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* False: no NVML, or it has no card. */
bool nvml_begin(void);
/* What the card has of all and of used memory, its reserved memory included. */
bool nvml_card(uint64_t *total, uint64_t *used);
/* Bytes of the process; 0: it is not listed. Where `others` is given, each other process is named there. */
uint64_t nvml_process(pid_t pid, char *others, size_t size);
/* The same, when it is no longer `before`, or half a second later: the figure comes some ms behind. */
uint64_t nvml_settled(pid_t pid, uint64_t before);

#endif
