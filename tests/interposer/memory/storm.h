/*
 * The parts of the storm share this: its threads, and the things that they make and end.
 *
 * Each `way_` function makes a thing. It returns NULL if it made none or was refused. Things lie in one table
 * of the process. A thread that puts a thing into a place ends the thing that was there, so one thread's
 * thing is ended by another. Any error but a refusal for lack of memory ends the process and prints the line
 * and the seed.
 */
#pragma once

#define _GNU_SOURCE
#include "../../../native/headers/cuda/cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

enum { MIB = 1 << 20, PIECES = 6 };

struct worker {
    unsigned seed;
    int number;
    CUcontext context;
    CUstream streams[2];
};

struct thing {
    void (*end)(struct thing *, struct worker *);
    union {
        CUdeviceptr pointer;
        CUarray array;
        CUmipmappedArray mipmap;
        CUmodule module;
        CUlibrary library;
        CUexternalMemory external;
        CUmemoryPool pool;
        CUgraphExec exec;
    };
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address, pointers[PIECES]; /* reserved addresses; pointers of a pool or a graph */
    CUgraph graph;
    size_t size;
    int count, fd; /* pointers or handles; an exported descriptor, or -1 */
    bool mapped;
};

/* The process's own. */
extern unsigned first_seed;
extern bool alone;                        /* no other process uses the card */
extern uint64_t limit;                    /* bytes */
extern unsigned given, refused, mistaken; /* atomic; mistaken: refused although there was memory */

unsigned below(struct worker *worker, unsigned number);
struct thing *thing(void (*end)(struct thing *, struct worker *));
CUstream stream_of(struct worker *worker);
/* A random size up to `most` MiB. */
size_t some(struct worker *worker, unsigned most);

_Noreturn void wrong(const char *file, int line, const char *what, int result);
#define NEED(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            wrong(__FILE__, __LINE__, #condition, -1);                                                       \
    } while (0)
#define MUST(call)                                                                                           \
    do {                                                                                                     \
        CUresult must_result = (call);                                                                       \
        if (must_result != CUDA_SUCCESS)                                                                     \
            wrong(__FILE__, __LINE__, #call, (int)must_result);                                              \
    } while (0)
/* True: given. False: refused for lack of memory. `bytes`: the most that the driver would have taken. */
bool may(CUresult result, uint64_t bytes, const char *file, int line, const char *what);
#define MAY(call, bytes) may(call, bytes, __FILE__, __LINE__, #call)

/* storm_memory.c */
struct thing *way_linear(struct worker *worker);
struct thing *way_array(struct worker *worker);
struct thing *way_sparse(struct worker *worker);
struct thing *way_default_pool(struct worker *worker);
struct thing *way_own_pool(struct worker *worker);
struct thing *way_vmm(struct worker *worker);
/* storm_work.c */
struct thing *way_graph(struct worker *worker);
struct thing *way_captured(struct worker *worker);
struct thing *way_context(struct worker *worker);
struct thing *way_module(struct worker *worker);
struct thing *way_limits(struct worker *worker);
struct thing *way_calm(struct worker *worker);
struct thing *way_wrong(struct worker *worker);
/* storm_share.c */
/* `process`: its number on the board. No other running process has it. */
void board_open(const char *path, unsigned process);
/* Every operation on the card is between these two. The first waits while operations are paused. */
void operation_begins(void);
void operation_ended(void);
/* Within an operation: the other threads of this process end theirs and begin none until it allows that. */
void others_wait(bool wait);
struct thing *way_export(struct worker *worker);
struct thing *way_open(struct worker *worker);
