/*
 * What paced_work.c and paced_costs.c share: one program, whose first words say what it does.
 */
#ifndef PACED_H
#define PACED_H

#define _GNU_SOURCE
#include "../../native/headers/cuda/cuda_api.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAMS = 4 };

#define NEED(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
#define MUST(call)                                                                                           \
    do {                                                                                                     \
        CUresult must_result = (call);                                                                       \
        if (must_result != CUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, (int)must_result);                         \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

extern CUstream streams[STREAMS];

long long now_us(void);
CUfunction function_of(const char *kernel);
CUresult launch(CUfunction function, CUstream stream);
CUgraph graph_of(CUfunction function, CUstream stream);
CUgraphExec captured(CUfunction function, CUstream stream);

/* In paced_costs.c. */
void check_grows(void);
void check_outgrows(void);
void check_varies(const char *way);
void check_turns(void);

#endif
