/*
 * The device itself knows the time of a command, independent of the program's own clock: a library in the
 * place of clock_gettime, or a time namespace, does not change a real card either.
 */
#define _GNU_SOURCE
#include "../../../native/clock/clock.c"
