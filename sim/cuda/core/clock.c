/*
 * When a command was given is for the device to know, whatever the program's own clock shows: a library in
 * the place of clock_gettime, or a time namespace, changes nothing of a real card.
 */
#define _GNU_SOURCE
#include "../../../native/clock/clock.c"
