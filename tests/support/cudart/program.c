/*
 * What programs do with the CUDA runtime API. `program CHECK` does one thing and says "ok", or what was
 * otherwise than it must be, and ends with 1.
 */
#include "runtime.h"

enum { MIB = 1 << 20 };

static size_t free_bytes(void) {
    size_t now, total;
    MUST(cudaMemGetInfo(&now, &total));
    return now;
}

static void check_devices(void) {
    static struct properties properties;
    int count, device = -1, runtime, driver, sms, cooperative;
    MUST(cudaGetDeviceCount(&count));
    HOLDS(count >= 1);
    MUST(cudaRuntimeGetVersion(&runtime));
    MUST(cudaDriverGetVersion(&driver));
    HOLDS(runtime >= 11000 && driver >= 11000);
    for (int i = 0; i < count; i++) {
        size_t now, total;
        MUST(cudaSetDevice(i));
        MUST(cudaGetDevice(&device));
        EXPECT(i, device);
        MUST(cudaGetDeviceProperties(&properties, i));
        MUST(cudaDeviceGetAttribute(&sms, 16, i));
        MUST(cudaDeviceGetAttribute(&cooperative, 95, i));
        EXPECT(1, cooperative);
        MUST(cudaMemGetInfo(&now, &total));
        EXPECT(total, properties.total);
        HOLDS(strlen(properties.name) > 2 && sms > 0);
        printf("%s %zu\n", properties.name, properties.total);
    }
    EXPECT(101, cudaSetDevice(count));
    EXPECT(101, cudaGetLastError());
    EXPECT(SUCCESS, cudaGetLastError());
}

static void check_linear(void) {
    char *first, *second, text[64] = "";
    MUST(cudaMalloc((void **)&first, 64 * MIB));
    size_t before = free_bytes();
    MUST(cudaMalloc((void **)&second, 64 * MIB));
    EXPECT(64 * MIB, before - free_bytes());
    MUST(cudaMemset(first, 'x', 100));
    MUST(cudaMemcpy(first + 5, "a round trip", 12, HOST_TO_DEVICE));
    MUST(cudaMemcpy(second, first, 64, DEVICE_TO_DEVICE));
    MUST(cudaMemcpy(text, second, 20, BY_ADDRESS));
    EXPECT(0, memcmp(text, "xxxxxa round tripxxx", 20));
    MUST(cudaFree(second));
    EXPECT(before, free_bytes());
    EXPECT(INVALID_VALUE, cudaFree(second));
    MUST(cudaFree(first));
    MUST(cudaFree(NULL));
}

static void check_shapes(void) {
    const struct channels channels = {8, 0, 0, 0, 1};
    char *plane, text[4][8] = {{0}}, rows[4][8] = {"one", "two", "three", "four"};
    size_t pitch, before;
    struct pitched volume;
    array_t array;
    MUST(cudaFree(NULL));
    before = free_bytes();
    MUST(cudaMallocPitch((void **)&plane, &pitch, 1000, 4000));
    HOLDS(pitch >= 1000 && before - free_bytes() >= pitch * 4000);
    MUST(cudaMemset2D(plane, pitch, 0, 1000, 4000));
    MUST(cudaMemcpy2D(plane, pitch, rows, 8, 8, 4, HOST_TO_DEVICE));
    MUST(cudaMemcpy2D(text, 8, plane, pitch, 8, 4, DEVICE_TO_HOST));
    EXPECT(0, memcmp(text, rows, sizeof rows));
    MUST(cudaMalloc3D(&volume, (struct extent){100, 10, 10}));
    HOLDS(volume.pitch >= 100 && volume.width == 100 && volume.height == 10);
    MUST(cudaMallocArray(&array, &channels, 2048, 2048, 0));
    HOLDS(before - free_bytes() >= pitch * 4000 + 2048 * 2048);
    MUST(cudaMemcpy2DToArray(array, 0, 0, rows, 8, 8, 4, HOST_TO_DEVICE));
    memset(text, 0, sizeof text);
    MUST(cudaMemcpy2DFromArray(text, 8, array, 0, 0, 8, 4, DEVICE_TO_HOST));
    EXPECT(0, memcmp(text, rows, sizeof rows));
    MUST(cudaFreeArray(array));
    MUST(cudaFree(volume.pointer));
    MUST(cudaFree(plane));
    EXPECT(before, free_bytes());
}

static void check_managed_and_host(void) {
    char *managed, *host, *device;
    MUST(cudaFree(NULL));
    size_t before = free_bytes();
    MUST(cudaMallocManaged((void **)&managed, 32 * MIB, 1));
    strcpy(managed, "from the host");
    MUST(cudaHostAlloc((void **)&host, 32 * MIB, 0));
    HOLDS(before - free_bytes() <= 32 * MIB); /* host memory is none of the device's */
    MUST(cudaMalloc((void **)&device, 1024));
    MUST(cudaMemcpy(device, managed, 14, BY_ADDRESS));
    MUST(cudaMemcpyAsync(host, device, 14, DEVICE_TO_HOST, NULL));
    MUST(cudaDeviceSynchronize());
    EXPECT(0, strcmp(host, "from the host"));
    MUST(cudaFreeHost(host));
    MUST(cudaFree(device));
    MUST(cudaFree(managed));
    EXPECT(before, free_bytes());
}

static void check_too_much(void) {
    void *pointer = NULL;
    size_t now, total;
    MUST(cudaMemGetInfo(&now, &total));
    EXPECT(OUT_OF_MEMORY, cudaMalloc(&pointer, total + MIB));
    EXPECT(OUT_OF_MEMORY, cudaPeekAtLastError());
    EXPECT(OUT_OF_MEMORY, cudaGetLastError());
    EXPECT(SUCCESS, cudaGetLastError());
    EXPECT(0, strcmp(cudaGetErrorName(OUT_OF_MEMORY), "cudaErrorMemoryAllocation"));
    EXPECT(now, free_bytes());
    MUST(cudaMalloc(&pointer, 64 * MIB)); /* and on it goes */
    MUST(cudaMemset(pointer, 1, 64 * MIB));
    MUST(cudaFree(pointer));
    EXPECT(OUT_OF_MEMORY, cudaMallocAsync(&pointer, total + MIB, NULL));
    EXPECT(OUT_OF_MEMORY, cudaMallocManaged(&pointer, total + MIB, 1));
    (void)cudaGetLastError();
    MUST(cudaMallocAsync(&pointer, 64 * MIB, NULL));
    MUST(cudaFreeAsync(pointer, NULL));
}

static void count_up(void *number) { ++*(int *)number; }

static void check_streams(void) {
    stream_t stream, urgent;
    event_t start, end;
    float took = -1;
    int called = 0;
    char *device, text[16] = "";
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamCreateWithPriority(&urgent, 1, -1));
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&end));
    MUST(cudaMalloc((void **)&device, 1024));
    MUST(cudaEventRecord(start, stream));
    MUST(cudaMemsetAsync(device, 0, 1024, stream));
    MUST(cudaMemcpyAsync(device, "in a stream", 12, HOST_TO_DEVICE, stream));
    MUST(cudaLaunchHostFunc(stream, count_up, &called));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaStreamWaitEvent(urgent, end, 0));
    MUST(cudaMemcpyAsync(text, device, 12, DEVICE_TO_HOST, urgent));
    MUST(cudaStreamSynchronize(urgent));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventQuery(end));
    MUST(cudaStreamQuery(stream));
    MUST(cudaEventElapsedTime(&took, start, end));
    HOLDS(took >= 0 && took < 60000);
    EXPECT(1, called);
    EXPECT(0, strcmp(text, "in a stream"));
    MUST(cudaFree(device));
    MUST(cudaEventDestroy(start));
    MUST(cudaEventDestroy(end));
    MUST(cudaStreamDestroy(urgent));
    MUST(cudaStreamDestroy(stream));
}

static uint64_t pool_figure(pool_t pool, int attribute) {
    uint64_t value;
    MUST(cudaMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void check_pools(void) {
    uint64_t keep = UINT64_MAX;
    pool_t pool;
    char *pointer, text[8] = "";
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    EXPECT(0, pool_figure(pool, POOL_RELEASE_THRESHOLD));
    MUST(cudaMemPoolSetAttribute(pool, POOL_RELEASE_THRESHOLD, &keep));
    size_t before = free_bytes();
    MUST(cudaMallocAsync((void **)&pointer, 40 * MIB, NULL));
    MUST(cudaMemcpyAsync(pointer, "pooled", 7, HOST_TO_DEVICE, NULL));
    MUST(cudaMemcpyAsync(text, pointer, 7, DEVICE_TO_HOST, NULL));
    MUST(cudaDeviceSynchronize());
    EXPECT(0, strcmp(text, "pooled"));
    EXPECT(40 * MIB, pool_figure(pool, POOL_USED));
    HOLDS(pool_figure(pool, POOL_RESERVED) >= 40 * MIB);
    MUST(cudaFreeAsync(pointer, NULL));
    MUST(cudaDeviceSynchronize());
    EXPECT(0, pool_figure(pool, POOL_USED));
    HOLDS(pool_figure(pool, POOL_RESERVED) >= 40 * MIB); /* kept, as the threshold says */
    HOLDS(before - free_bytes() >= 40 * MIB);
    MUST(cudaMemPoolTrimTo(pool, 0));
    EXPECT(0, pool_figure(pool, POOL_RESERVED));
    EXPECT(before, free_bytes());
}

static uint64_t graph_figure(int attribute) {
    uint64_t value;
    MUST(cudaDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

/* 24 MiB that a graph allocates and frees, by nodes that are made one by one. */
static void check_graph(void) {
    struct alloc_node alloc = {.type = 1, .location_type = 1, .bytes = 24 * MIB};
    graph_t graph;
    node_t first, second;
    exec_t exec;
    size_t count = 0;
    int type;
    MUST(cudaFree(NULL));
    size_t before = free_bytes();
    MUST(cudaGraphCreate(&graph, 0));
    MUST(cudaGraphAddMemAllocNode(&first, graph, NULL, 0, &alloc));
    HOLDS(alloc.pointer);
    MUST(cudaGraphAddMemFreeNode(&second, graph, &first, 1, alloc.pointer));
    MUST(cudaGraphGetNodes(graph, NULL, &count));
    EXPECT(2, count);
    MUST(cudaGraphNodeGetType(first, &type));
    EXPECT(10, type);
    MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT(before, free_bytes()); /* the device gives nothing before the first launch */
    MUST(cudaGraphLaunch(exec, NULL));
    MUST(cudaGraphLaunch(exec, NULL));
    MUST(cudaDeviceSynchronize());
    EXPECT(0, graph_figure(GRAPH_USED));
    EXPECT(24 * MIB, graph_figure(GRAPH_USED_HIGH));
    EXPECT(24 * MIB, graph_figure(GRAPH_RESERVED));
    EXPECT(24 * MIB, before - free_bytes());
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    EXPECT(24 * MIB, before - free_bytes()); /* the device's pool keeps it */
    MUST(cudaDeviceGraphMemTrim(0));
    EXPECT(0, graph_figure(GRAPH_RESERVED));
    EXPECT(before, free_bytes());
}

/* The same and more from a captured stream; what the graph leaves allocated is the program's to free. */
static void check_capture(void) {
    stream_t stream;
    graph_t graph;
    exec_t exec;
    int status, called = 0;
    char *scratch, *kept, text[16] = "";
    MUST(cudaStreamCreate(&stream));
    size_t before = free_bytes();
    MUST(cudaStreamBeginCapture(stream, 1));
    MUST(cudaStreamIsCapturing(stream, &status));
    EXPECT(1, status);
    MUST(cudaMallocAsync((void **)&scratch, 8 * MIB, stream));
    MUST(cudaMallocAsync((void **)&kept, 8 * MIB, stream));
    MUST(cudaMemcpyAsync(scratch, "by a graph", 11, HOST_TO_DEVICE, stream));
    MUST(cudaMemsetAsync(kept, 0, 64, stream));
    MUST(cudaMemcpyAsync(kept, scratch, 11, DEVICE_TO_DEVICE, stream));
    MUST(cudaLaunchHostFunc(stream, count_up, &called));
    MUST(cudaFreeAsync(scratch, stream));
    MUST(cudaStreamEndCapture(stream, &graph));
    EXPECT(0, called);
    EXPECT(before, free_bytes());
    MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaStreamSynchronize(stream));
    EXPECT(1, called);
    EXPECT(8 * MIB, graph_figure(GRAPH_USED));
    EXPECT(16 * MIB, before - free_bytes());
    MUST(cudaMemcpy(text, kept, 11, DEVICE_TO_HOST));
    EXPECT(0, strcmp(text, "by a graph"));
    EXPECT(INVALID_VALUE, cudaGraphLaunch(exec, stream)); /* it is allocated still */
    (void)cudaGetLastError();
    MUST(cudaFreeAsync(kept, stream));
    MUST(cudaGraphLaunch(exec, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaFree(kept));
    EXPECT(0, graph_figure(GRAPH_USED));
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaDeviceGraphMemTrim(0));
    EXPECT(before, free_bytes());
    MUST(cudaStreamDestroy(stream));
}

static void check_graph_too_much(void) {
    size_t now, total;
    MUST(cudaMemGetInfo(&now, &total));
    struct alloc_node alloc = {.type = 1, .location_type = 1, .bytes = total + MIB};
    graph_t graph;
    node_t first, second;
    exec_t exec;
    MUST(cudaGraphCreate(&graph, 0));
    MUST(cudaGraphAddMemAllocNode(&first, graph, NULL, 0, &alloc));
    MUST(cudaGraphAddMemFreeNode(&second, graph, &first, 1, alloc.pointer));
    MUST(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT(OUT_OF_MEMORY, cudaGraphLaunch(exec, NULL));
    EXPECT(OUT_OF_MEMORY, cudaGetLastError());
    EXPECT(now, free_bytes());
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
}

/* A kernel as nvcc would have registered it, from a fat binary that is nothing but a head and room. */
static void kernel_stub(void) {}

static void check_kernel(void) {
    static struct {
        uint32_t magic;
        uint16_t version, header;
        uint64_t size;
        char bytes[3 << 20];
    } binary = {0xba55ed50, 1, 16, sizeof binary - 16, ""};
    static struct {
        int magic, version;
        const void *binary;
        void *unused;
    } wrapper = {0x466243b1, 1, &binary, NULL};
    char name[] = "_Z10busy_200msv";
    stream_t stream;
    event_t start, end;
    float took;
    void **handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, (const char *)kernel_stub, name, name, -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(handle);
    MUST(cudaStreamCreate(&stream));
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&end));
    size_t before = free_bytes();
    MUST(cudaEventRecord(start, stream));
    MUST(cudaLaunchKernel((const void *)kernel_stub, (struct dim3){8, 1, 1}, (struct dim3){64, 1, 1}, NULL, 0,
                          stream));
    EXPECT(NOT_READY, cudaStreamQuery(stream));
    MUST(cudaEventRecord(end, stream));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&took, start, end));
    HOLDS(took > 199.9f);
    printf("module %zu\n", before - free_bytes());
    MUST(cudaEventDestroy(start));
    MUST(cudaEventDestroy(end));
    MUST(cudaStreamDestroy(stream));
    MUST(cudaDeviceReset());
    __cudaUnregisterFatBinary(handle);
}

static void check_reset(void) {
    void *pointer;
    MUST(cudaFree(NULL));
    size_t before = free_bytes();
    MUST(cudaMalloc(&pointer, 64 * MIB));
    MUST(cudaDeviceReset());
    EXPECT(before, free_bytes()); /* by a new context */
    EXPECT(INVALID_VALUE, cudaFree(pointer));
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*function)(void);
    } checks[] = {
        {"devices", check_devices},   {"linear", check_linear},
        {"shapes", check_shapes},     {"host", check_managed_and_host},
        {"too-much", check_too_much}, {"streams", check_streams},
        {"pools", check_pools},       {"graph", check_graph},
        {"capture", check_capture},   {"graph-too-much", check_graph_too_much},
        {"kernel", check_kernel},     {"reset", check_reset},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (count == 2 && strcmp(words[1], checks[i].name) == 0) {
            checks[i].function();
            puts("ok");
            return 0;
        }
    fprintf(stderr, "no such check\n");
    return 2;
}
