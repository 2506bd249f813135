/*
 * paced_work.c and its parts share this: one program, whose first argument names its work.
 */
#pragma once

#define _GNU_SOURCE
#include "../must.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 4 };

extern CUcontext context; /* of device 0 */
extern CUmodule module;
extern CUstream streams[STREAMS];
extern bool stop; /* the launching threads end; atomic */

long long now_us(void);
void pause_ms(int ms);
/* Makes a device's context, and its objects. */
void use(CUdevice device);
pthread_t thread(void *(*run)(void *), long number);
/* A thread that launches until `stop`. */
void *launches(void *number);
CUfunction function_of(const char *kernel);
CUresult launch(CUfunction function, CUstream stream);
CUgraph graph_of(CUfunction function, CUstream stream);
CUgraphExec captured(CUfunction function, CUstream stream);

/* In paced_ways.c. */
void check_ways(void);
void check_elsewhere(void);
void check_both(const char *how);

/* In paced_costs.c. */
void check_grows(void);
void check_outgrows(void);
void check_shrinks(void);
void check_varies(const char *way);
void check_hides(const char *way);
void check_mixes(void);
void check_slices(void);
void check_threadless(const char *way);
void check_at_exit(void);
void check_exhausts(void);
void check_rewrites(void);
void check_stalls(void);
void check_once(const char *way);

/* In paced_process_events.c. */
void check_signals(void);
void check_forks(void);
void check_ends(const char *way);
void check_interrupted(const char *after_us);
void check_leave(const char *way);
void launches_at_exit(void);
