/*
 * Threads that take and free memory that lives on its own: pools, mappable memory, graphs. Run it as
 * `memory_races THREADS ROUNDS [wait]`. After a refusal a thread frees its memory and goes on. Last it prints
 * how many calls succeeded and how many were refused.
 */
#include "../../../native/headers/cuda/cuda_api.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1 << 20, PIECES = 8 };

static CUcontext context;
static unsigned rounds;
static unsigned given, refused; /* atomic */

static void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: %d\n", what, (int)result);
    exit(1);
}

#define CHECK(call) check(call, #call)

static int may(CUresult result, const char *what) {
    int fits = result == CUDA_SUCCESS;
    if (!fits && result != CUDA_ERROR_OUT_OF_MEMORY)
        check(result, what);
    __atomic_add_fetch(fits ? &given : &refused, 1, __ATOMIC_RELAXED);
    return fits;
}

#define MAY(call) may(call, #call)

static void pieces_of_a_pool(CUstream stream, unsigned *seed) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr pointers[PIECES];
    CUmemoryPool pool;
    int count = 0, own = rand_r(seed) % 2;
    if (own)
        CHECK(cuMemPoolCreate(&pool, &properties));
    for (int i = 0; i < PIECES; i++) {
        size_t size = (size_t)(1 + rand_r(seed) % 40) * MIB;
        count += MAY(own ? cuMemAllocFromPoolAsync(&pointers[count], size, pool, stream)
                         : cuMemAllocAsync(&pointers[count], size, stream));
    }
    if (own)
        CHECK(cuMemPoolDestroy(pool));
    while (count)
        CHECK(rand_r(seed) % 2 ? cuMemFree_v2(pointers[--count]) : cuMemFreeAsync(pointers[--count], stream));
}

static void mapped(unsigned *seed) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle, again;
    size_t size = (size_t)(1 + rand_r(seed) % 32) * 2 * MIB;
    CUdeviceptr place;
    if (!MAY(cuMemCreate(&handle, size, &properties, 0)))
        return;
    CHECK(cuMemAddressReserve(&place, size, 0, 0, 0));
    CHECK(cuMemMap(place, size, 0, handle, 0));
    CHECK(cuMemRelease(handle));
    if (rand_r(seed) % 2) {
        CHECK(cuMemRetainAllocationHandle(&again, (void *)place));
        CHECK(cuMemUnmap(place, size));
        CHECK(cuMemRelease(again));
    } else {
        CHECK(cuMemUnmap(place, size));
    }
    CHECK(cuMemAddressFree(place, size));
}

static void launched(CUstream stream, unsigned *seed) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                                         .bytesize = (size_t)(1 + rand_r(seed) % 64) * MIB};
    CUgraph graph;
    CUgraphNode node, end;
    CUgraphExec exec;
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    CHECK(cuGraphAddMemFreeNode(&end, graph, &node, 1, params.dptr));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        MAY(cuGraphLaunch(exec, stream));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

static void *run(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    CUstream stream;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, 1));
    for (unsigned i = 0; i < rounds; i++) {
        switch (rand_r(&seed) % 5) {
        case 0:
            mapped(&seed);
            break;
        case 1:
            launched(stream, &seed);
            break;
        case 2:
            CHECK(cuStreamSynchronize(stream));
            CHECK(cuDeviceGraphMemTrim(0));
            break;
        default:
            pieces_of_a_pool(stream, &seed);
        }
    }
    CHECK(cuStreamDestroy_v2(stream));
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[64];
    size_t bytes;
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
    rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    if (argc > 3) { /* all processes make their contexts before the memory is gone */
        puts("ready");
        fflush(stdout);
        getchar();
    }
    for (uintptr_t i = 0; i < count && i < 64; i++)
        pthread_create(&threads[i], NULL, run, (void *)(i + 1));
    for (uintptr_t i = 0; i < count && i < 64; i++)
        pthread_join(threads[i], NULL);
    CHECK(cuCtxSynchronize());
    CHECK(cuDeviceGraphMemTrim(0));
    CHECK(cuMemGetInfo_v2(&bytes, &bytes)); /* a look cleans up after the dead */
    printf("%u %u\n", given, refused);
    fflush(stdout);
    getchar();
    return 0;
}
