/* NVML's figures of the first card, as the calling process sees them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* False: there is no NVML, or no card. */
bool nvml_begin(void);
/* The card's total and used memory, with its reserved memory. */
bool nvml_card(uint64_t *total, uint64_t *used);
/* Bytes of the process; 0: it is not listed. If `others` is given, it gets each other process's name. */
uint64_t nvml_process(pid_t pid, char *others, size_t size);
/* The same, once it is no longer `before`, or after half a second: the figure comes some ms late. */
uint64_t nvml_settled(pid_t pid, uint64_t before);
