/*
 * A clock that a program cannot change: the host's CLOCK_MONOTONIC. For the account, and for the simulated
 * device.
 */
#pragma once

#include <stdint.h>

/* CLOCK_MONOTONIC of the host, ns. */
uint64_t xpu_now(void);
