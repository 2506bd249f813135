/*
 * The account's clock: the host's CLOCK_MONOTONIC, whatever a program has done to its own.
 */
#ifndef XPU_ACCOUNT_CLOCK_H
#define XPU_ACCOUNT_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC of the host, ns. */
uint64_t xpu_now(void);

#endif
