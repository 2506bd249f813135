/*
 * A program that launches. Run it in a sandbox as `paced_work WHAT [ARGUMENT]`. It is linked to libcuda, as
 * most are.
 *
 *   ways
 *       for each line `WAY FOUND SECONDS` of stdin, launches of 1 ms by that way, for that long; FOUND:
 *       symbol or lookup. Prints `COUNT MICROSECONDS` after all of them have ended
 *   elsewhere
 *       the same, in a stream of device 0, while device 1 is current
 *   both HOW
 *       launches of 1 ms on devices 0 and 1 for a second: at once, or of 10 us alternately. Prints both
 *       counts
 *   grows
 *       a graph of 200 us becomes one of 50 ms after a while. It is launched again and again behind a short
 *       kernel, and the program waits for the context. Prints `COUNT MICROSECONDS` of the last 1.5 s of 2.5
 *   outgrows
 *       a graph of 20 us becomes one of 250 us after a while; the program waits for nothing. Prints the same
 *   shrinks
 *       the same with a graph of 8 ms that becomes one of 10 us
 *   varies WAY
 *       a graph takes 10 us five times, then 1.5 ms. The program waits for the longer one by WAY (context,
 *       event, event-query, stream-query, copy, sleep). Prints `COUNT MICROSECONDS` of the last 1 s of 1.6.
 *       default-WAY: in the legacy stream beside one that blocks; thread-WAY: in the thread's default stream;
 *       threadless-WAY: no thread can be started
 *   hides STREAMS-MICROSECONDS-SHORTS
 *       in each stream a graph takes 10 us SHORTS times, and is waited for; then MICROSECONDS, and is waited
 *       for by the clock. Prints `COUNT MICROSECONDS` of the last 1.5 s of 2
 *   mixes
 *       a graph takes 320 us three times, then 700 us. Prints `COUNT MICROSECONDS` of the last 2 s of 2.8
 *   slices
 *       launches of 10 us. Prints how many a second were held back
 *   exhausts
 *       kernels of 100 ms, while short ones in other streams wait for device 1, each with a marker. Prints
 *       `COUNT MICROSECONDS`
 *   stalls
 *       the same with kernels of 200 ms, while one launch waits in another stream
 *   rewrites
 *       while a launch waits, another thread writes another stream into its configuration
 *   threadless WAY
 *       launches of 20 ms where no thread can be started; WAY: waits (for each) or not. Prints `COUNT
 *       MICROSECONDS`
 *   at-exit
 *       kernels of 20 ms while the program ends. Prints `COUNT MICROSECONDS`
 *   once WAY
 *       one kernel of 4 ms, which is waited for. Then the program ends by WAY: exit, _exit, destroy (the
 *       context)
 *   forever
 *       launches of 1 ms until the program is killed. Prints `ready` before the first
 *   long
 *       prints `ready`, and runs one kernel of an hour
 *   capture MODE
 *       captures launches again and again, while another thread launches
 *   spin-behind N
 *       a kernel spins until a kernel of another stream has run, which follows N more in its own stream
 *   spin
 *       a kernel waits for a later one in another stream
 *   signals
 *       signals come while launches wait
 *   interrupted US
 *       launches, until a signal's handler ends the program after that many microseconds
 *   forks
 *       one thread forks children that launch, while others launch
 *   ends WAY
 *       a context ends by WAY (destroy, reset, release) while other threads' launches wait in it
 *   threads N
 *       N threads launch in four streams
 *   streams
 *       streams are made, launched in, captured and destroyed with work in them
 *   leave WAY
 *       the program ends by WAY while kernels run and threads launch: return, exit, thread and main (another
 *       thread exits; the first waits or has ended), fault, atexit (its handler launches too)
 *
 * Exits 0 if every call did what it must.
 */
#include "paced.h"

#include <pthread.h>
#include <time.h>

enum { MAX_THREADS = 64, NODES = 5, HIGHEST = -5 };

CUcontext context;
CUmodule module;
CUstream streams[STREAMS];
bool stop;

long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void pause_ms(int ms) {
    long long until = now_us() + ms * 1000LL;
    while (now_us() < until)
        usleep(1000);
}

CUfunction function_of(const char *kernel) {
    CUfunction function;
    MUST(cuModuleGetFunction(&function, module, kernel));
    return function;
}

CUresult launch(CUfunction function, CUstream stream) {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void load(void) {
    MUST(cuModuleLoadData(&module, ".version 8.0\n"));
    for (int i = 0; i < STREAMS; i++)
        MUST(cuStreamCreate(&streams[i], i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
}

void use(CUdevice device) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    load();
}

pthread_t thread(void *(*run)(void *), long number) {
    pthread_t started;
    NEED(pthread_create(&started, NULL, run, (void *)number) == 0);
    return started;
}

CUgraph graph_of(CUfunction function, CUstream stream) {
    CUgraph graph;
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(launch(function, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    return graph;
}

CUgraphExec captured(CUfunction function, CUstream stream) {
    CUgraphExec exec;
    MUST(cuGraphInstantiateWithFlags(&exec, graph_of(function, stream), 0));
    return exec;
}

/* ---- others meanwhile ---- */

void *launches(void *number) {
    CUfunction function = function_of("busy_500us");
    MUST(cuCtxSetCurrent(context));
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        MUST(launch(function, streams[(long)number % STREAMS]));
    return NULL;
}

static void check_capture(const char *mode) {
    CUstreamCaptureMode wanted = strcmp(mode, "global") == 0   ? CU_STREAM_CAPTURE_MODE_GLOBAL
                                 : strcmp(mode, "thread") == 0 ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                                                               : CU_STREAM_CAPTURE_MODE_RELAXED;
    CUfunction function = function_of("busy_200us");
    CUstream own;
    pthread_t other = 0;
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 30; round++) {
        CUgraph graph;
        CUgraphExec exec;
        size_t count = 0;
        MUST(cuStreamBeginCapture_v2(own, wanted));
        if (!round) { /* its first launch is the first of all, during a capture */
            other = thread(launches, 1);
            pause_ms(20);
        }
        for (int i = 0; i < NODES; i++)
            MUST(launch(function, own));
        pause_ms(4);
        MUST(cuStreamEndCapture(own, &graph));
        MUST(cuGraphGetNodes(graph, NULL, &count));
        NEED(count == NODES);
        MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
        MUST(cuGraphLaunch(exec, own));
        MUST(launch(function, own));
        MUST(cuStreamSynchronize(own));
        MUST(cuGraphExecDestroy(exec));
        MUST(cuGraphDestroy(graph));
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    NEED(pthread_join(other, NULL) == 0);
}

static void check_spin(void) {
    CUstream high;
    CUfunction spins = function_of("spin_until_3"), raises = function_of("raise_3_1ms");
    MUST(cuStreamCreateWithPriority(&high, CU_STREAM_NON_BLOCKING, HIGHEST));
    for (int round = 0; round < 4; round++) {
        /* Debt comes first, so that both wait for budget. The running kernel is known to be long then. */
        for (int i = 0; i < 10; i++)
            MUST(launch(function_of("busy_2ms"), streams[1]));
        MUST(launch(spins, streams[1]));
        MUST(launch(raises, high));
        MUST(cuStreamSynchronize(streams[1]));
    }
}

/* A kernel waits until all later ones are launched too. */
static void check_spin_behind(const char *count) {
    CUfunction spins = function_of("spin_until_3"), raises = function_of("raise_3"),
               busy = function_of("busy_100us");
    for (int i = 0; i < 20; i++)
        MUST(launch(busy, streams[1]));
    MUST(cuStreamSynchronize(streams[1]));
    for (int round = 0; round < 3; round++) {
        MUST(launch(spins, streams[1]));
        for (int i = 0; i < atoi(count); i++)
            MUST(launch(busy, streams[1]));
        MUST(launch(raises, streams[3]));
        MUST(cuStreamSynchronize(streams[1]));
    }
}

/* ---- many ---- */

static int each;
static void *launches_some(void *number) {
    CUfunction function = function_of((long)number % 2 ? "busy_100us" : "busy_50us");
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; i < each; i++) {
        CUstream stream = (long)number % 5 == 4 ? CU_STREAM_PER_THREAD : streams[(long)number % STREAMS];
        MUST(launch(function, stream));
        if (i % 16 == 15)
            MUST(cuStreamSynchronize(stream));
    }
    return NULL;
}

static void check_threads(int count) {
    pthread_t others[MAX_THREADS];
    long long began = now_us();
    NEED(count <= MAX_THREADS);
    each = 64;
    for (int i = 0; i < count; i++)
        others[i] = thread(launches_some, i);
    for (int i = 0; i < count; i++)
        NEED(pthread_join(others[i], NULL) == 0);
    MUST(cuCtxSynchronize());
    printf("%d %lld\n", count * each * 75, now_us() - began);
}

/* The last launch of a stream is marked on another thread, while the stream may end or be captured. */
static void *makes_streams(void *number) {
    CUfunction function = function_of((long)number % 2 ? "busy_10us" : "busy_300us");
    MUST(cuCtxSetCurrent(context));
    for (long i = (long)number; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); i++) {
        CUstream stream;
        CUgraph graph;
        size_t count = 0;
        MUST(cuStreamCreate(&stream, i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
        for (int launched = 0; launched < 3; launched++)
            MUST(launch(function, stream));
        usleep((unsigned)(i * 7919 % 2500));
        if (i % 3) {
            MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            for (int node = 0; node < NODES; node++)
                MUST(launch(function, stream));
            usleep((unsigned)(i * 7919 % 2500));
            MUST(cuStreamEndCapture(stream, &graph));
            MUST(cuGraphGetNodes(graph, NULL, &count));
            NEED(count == NODES);
            MUST(cuGraphDestroy(graph));
        }
        MUST(cuStreamDestroy_v2(stream));
    }
    return NULL;
}

static void check_streams(void) {
    pthread_t others[4];
    for (int i = 0; i < 4; i++)
        others[i] = thread(makes_streams, i);
    pause_ms(1200);
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i < 4; i++)
        NEED(pthread_join(others[i], NULL) == 0);
}

static void check_forever(void) {
    CUfunction function = function_of("busy_1ms");
    puts("ready");
    for (;;)
        MUST(launch(function, streams[1]));
}

static void check_long(void) {
    puts("ready");
    MUST(launch(function_of("busy_3600s"), streams[1]));
    pause();
}

static void check_threads_of(const char *count) { check_threads(atoi(count)); }

static const struct {
    const char *name;
    void (*run)(void);
    void (*run_with)(const char *argument);
} all[] = {
    {"ways", check_ways, NULL},
    {"elsewhere", check_elsewhere, NULL},
    {"both", NULL, check_both},
    {"grows", check_grows, NULL},
    {"outgrows", check_outgrows, NULL},
    {"shrinks", check_shrinks, NULL},
    {"varies", NULL, check_varies},
    {"hides", NULL, check_hides},
    {"mixes", check_mixes, NULL},
    {"stalls", check_stalls, NULL},
    {"exhausts", check_exhausts, NULL},
    {"slices", check_slices, NULL},
    {"threadless", NULL, check_threadless},
    {"at-exit", check_at_exit, NULL},
    {"once", NULL, check_once},
    {"forever", check_forever, NULL},
    {"long", check_long, NULL},
    {"capture", NULL, check_capture},
    {"spin", check_spin, NULL},
    {"spin-behind", NULL, check_spin_behind},
    {"signals", check_signals, NULL},
    {"forks", check_forks, NULL},
    {"ends", NULL, check_ends},
    {"threads", NULL, check_threads_of},
    {"streams", check_streams, NULL},
    {"interrupted", NULL, check_interrupted},
    {"leave", NULL, check_leave},
    {"rewrites", check_rewrites, NULL},
};

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "", *argument = count > 2 ? words[2] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(what, "leave") == 0 && strcmp(argument, "atexit") == 0)
        NEED(atexit(launches_at_exit) == 0); /* before CUDA's own */
    if (strcmp(what, "ends") != 0)
        use(0);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].name, what) == 0) {
            if (all[i].run)
                all[i].run();
            else
                all[i].run_with(argument);
            return 0;
        }
    return 2;
}
