/*
 * cuda-probe: a program's view of its GPU in a container, through the driver API alone.
 *
 *   cuda-probe info                   devices, free and total memory
 *   cuda-probe alloc MIB... [--hold | --watch]
 *                                     allocates that many MiB one after the other, prints each result, and
 * with
 *                                     --hold keeps the memory until it is killed; with --watch it also prints
 *                                     each change of free or total memory
 *   cuda-probe busy [SECONDS]         keeps the device busy, for that long or until it is killed, and prints
 * the number of kernels done in each second: of a millisecond on a simulated card, of about that on a real
 * one cuda-probe mps                    whether it is under MPS, and the number of multiprocessors it may use
 *
 * For the demo and the tests. It runs on a real driver as on the simulated one. It opens the library at run
 * time, as most programs do, so that building it needs no driver. Exit status 0: every allocation succeeded;
 * 3: one did not; 1: no usable device.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*function)();

static void *library;

static function find(const char *name) {
    function found = (function)dlsym(library, name);
    if (!found) {
        fprintf(stderr, "cuda-probe: libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return found;
}

static const char *name_of(int status) {
    const char *name = NULL;
    if (find("cuGetErrorName")(status, &name) != 0 || !name)
        return "unknown error";
    return name;
}

static void must(const char *what, int status) {
    if (status != 0) {
        fprintf(stderr, "cuda-probe: %s: %s (%d)\n", what, name_of(status), status);
        exit(1);
    }
}

static void print_memory(int device) {
    size_t free_bytes = 0, total = 0;
    must("cuMemGetInfo", find("cuMemGetInfo_v2")(&free_bytes, &total));
    printf("device %d: %zu MiB free of %zu MiB\n", device, free_bytes >> 20, total >> 20);
}

/* Prints free and total memory at each change, until it is killed. */
static void watch_memory(int device) {
    size_t free_bytes = 0, total = 0, free_before = 0, total_before = 0;
    for (;;) {
        must("cuMemGetInfo", find("cuMemGetInfo_v2")(&free_bytes, &total));
        if (free_bytes != free_before || total != total_before)
            printf("device %d: %zu MiB free of %zu MiB\n", device, free_bytes >> 20, total >> 20);
        free_before = free_bytes;
        total_before = total;
        usleep(1000);
    }
}

static int attribute(int number, int device) {
    int value = 0;
    must("cuDeviceGetAttribute", find("cuDeviceGetAttribute")(&value, number, device));
    return value;
}

static void print_mps(int device) {
    const int enabled = 133, multiprocessors = 16; /* CU_DEVICE_ATTRIBUTE_... */
    printf("device %d: %s MPS, %d\n", device, attribute(enabled, device) ? "under" : "without",
           attribute(multiprocessors, device));
}

static void open_context(int device) {
    void *context = NULL;
    int handle = 0;
    must("cuDeviceGet", find("cuDeviceGet")(&handle, device));
    must("cuDevicePrimaryCtxRetain", find("cuDevicePrimaryCtxRetain")(&context, handle));
    must("cuCtxSetCurrent", find("cuCtxSetCurrent")(context));
}

/* A simulated card takes the time from the name. A real one counts: with a clock, the kernel would count
 * others' time on the card as its own work. */
static const char ptx[] = ".version 6.3\n.target sm_50\n.address_size 64\n"
                          ".visible .entry busy_1ms(.param .u64 iterations, .param .u64 out) {\n"
                          "    .reg .pred %p; .reg .b64 %d<4>;\n"
                          "    ld.param.u64 %d1, [iterations];\n"
                          "    mov.u64 %d2, %d1;\n"
                          "again:\n"
                          "    mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;\n"
                          "    add.u64 %d1, %d1, -1;\n"
                          "    setp.ne.u64 %p, %d1, 0;\n"
                          "    @%p bra again;\n"
                          "    ld.param.u64 %d3, [out];\n"
                          "    setp.ne.u64 %p, %d3, 0;\n"
                          "    @%p st.global.u64 [%d3], %d2;\n"
                          "    ret;\n"
                          "}\n";

/* As the first process of a container it would otherwise not end at ^C or `docker stop`: a signal ends such a
 * process only if it is handled. */
static void end(int number) {
    signal(number, SIG_DFL);
    raise(number);
    _exit(128 + number);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void be_busy(int device, double seconds) {
    enum { AT_ONCE = 20, BLOCKS = 64, THREADS = 32 };
    void *module = NULL, *kernel = NULL;
    unsigned long long iterations = 100000, out = 0;
    void *arguments[] = {&iterations, &out};
    must("cuModuleLoadData", find("cuModuleLoadData")(&module, ptx));
    must("cuModuleGetFunction", find("cuModuleGetFunction")(&kernel, module, "busy_1ms"));
    function launch = find("cuLaunchKernel"), synchronize = find("cuCtxSynchronize");
    double began = now(), second = began;
    for (int done = 0; seconds == 0 || second - began < seconds;) {
        for (int i = 0; i < AT_ONCE; i++)
            must("cuLaunchKernel", launch(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL));
        must("cuCtxSynchronize", synchronize());
        done += AT_ONCE;
        double passed = now() - second;
        if (passed >= 1) {
            printf("device %d: %.0f kernels a second\n", device, done / passed);
            second += passed;
            done = 0;
        }
    }
}

static double seconds_of(const char *text) {
    char *end;
    double seconds = strtod(text, &end);
    if (*end || !(seconds > 0)) {
        fprintf(stderr, "cuda-probe: %s is no number of seconds\n", text);
        exit(2);
    }
    return seconds;
}

static int allocate(const char *text) {
    char *end;
    unsigned long long pointer = 0, amount = strtoull(text, &end, 10);
    if (*end || !amount) {
        fprintf(stderr, "cuda-probe: %s is no number of MiB\n", text);
        exit(2);
    }
    int status = find("cuMemAlloc_v2")(&pointer, (size_t)amount << 20);
    printf("allocating %llu MiB: %s\n", amount, status ? name_of(status) : "CUDA_SUCCESS");
    return status != 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGINT, end);
    signal(SIGTERM, end);
    if (argc < 2 || (strcmp(argv[1], "info") != 0 && strcmp(argv[1], "alloc") != 0 &&
                     strcmp(argv[1], "busy") != 0 && strcmp(argv[1], "mps") != 0)) {
        fprintf(stderr, "usage: cuda-probe info | mps | busy [SECONDS] | alloc MIB... [--hold | --watch]\n");
        return 2;
    }
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "cuda-probe: %s\n", dlerror());
        return 1;
    }
    must("cuInit", find("cuInit")(0));
    int devices = 0;
    must("cuDeviceGetCount", find("cuDeviceGetCount")(&devices));
    if (strcmp(argv[1], "mps") == 0) {
        for (int device = 0; device < devices; device++)
            print_mps(device);
        return 0;
    }
    if (strcmp(argv[1], "info") == 0) {
        for (int device = 0; device < devices; device++) {
            open_context(device);
            print_memory(device);
        }
        return 0;
    }
    open_context(0);
    if (strcmp(argv[1], "busy") == 0) {
        be_busy(0, argc > 2 ? seconds_of(argv[2]) : 0);
        return 0;
    }
    int failed = 0, hold = 0, watch = 0;
    for (int at = 2; at < argc; at++) {
        if (strcmp(argv[at], "--hold") == 0)
            hold = 1;
        else if (strcmp(argv[at], "--watch") == 0)
            watch = 1;
        else
            failed |= allocate(argv[at]);
    }
    if (watch)
        watch_memory(0);
    print_memory(0);
    while (hold)
        pause();
    return failed ? 3 : 0;
}
