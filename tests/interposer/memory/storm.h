/*
 * What the parts of the storm share: its threads, and the things that they make and end.
 *
 * A way makes a thing, or NULL where it made none or was refused. Things lie in one table of the process: who
 * puts one there ends the one that was there, so that what one thread made another ends. What goes wrong, but
 * a refusal for want of memory, ends the process with the line and the seed.
 */
#ifndef STORM_H
#define STORM_H

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
    CUdeviceptr address, pointers[PIECES]; /* reserved; of a pool or a graph */
    CUgraph graph;
    size_t size;
    int count, fd; /* pointers or handles; a descriptor that was exported, or -1 */
    bool mapped;
};

/* Of the whole process. */
extern unsigned first_seed;
extern bool alone;                        /* nobody else uses the card */
extern uint64_t limit;                    /* bytes */
extern unsigned given, refused, mistaken; /* atomic; mistaken: refused though there was room */

unsigned below(struct worker *worker, unsigned number);
struct thing *thing(void (*end)(struct thing *, struct worker *));
CUstream stream_of(struct worker *worker);
/* Some bytes; `most`: MiB. */
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
/* True: given. False: refused for want of memory, which is the answer that there may be; `bytes`: what the
 * driver would have taken at most. */
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
/* `process`: its number on the board, another one for each process that runs meanwhile. */
void board_open(const char *path, unsigned process);
/* Every operation on the card is between these two. The first waits while the observer wants none under way.
 */
void operation_begins(void);
void operation_ended(void);
/* Within an operation: the other threads of this process end theirs and begin none, until it says so. */
void others_wait(bool wait);
struct thing *way_export(struct worker *worker);
struct thing *way_open(struct worker *worker);

#endif
