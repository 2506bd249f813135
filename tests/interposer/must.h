/*
 * What a test's program needs: CUDA's functions, and checks that end the program with 1 and name what failed.
 */
#pragma once

#include "../../native/headers/cuda/cuda_api.h"

#include <stdio.h>
#include <unistd.h>

#define NEED(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
#define MUST(call)                                                                                           \
    do {                                                                                                     \
        CUresult must_result = (call);                                                                       \
        if (must_result != CUDA_SUCCESS) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)must_result);                 \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
