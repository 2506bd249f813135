/*
 * A program that launches, run in a sandbox as `paced_work WHAT [ARGUMENT]`; linked to libcuda, as most are.
 *
 *   ways
 *       for each line `WAY FOUND SECONDS` of stdin, launches of 1 ms by that way, found so (symbol or
 *       lookup), for so long; says `COUNT MICROSECONDS`, with all of it completed
 *   elsewhere
 *       the same, in a stream of device 0, while device 1 is current
 *   both HOW
 *       launches of 1 ms on devices 0 and 1 for two seconds: at once, or of 10 us in turns; says how many
 *       on each
 *   grows
 *       a graph of 200 us becomes one of 50 ms after a while; launched again and again behind a short kernel,
 *       waiting for the context. Says `COUNT MICROSECONDS` of the last two seconds of four
 *   outgrows
 *       a graph of 20 us becomes one of 250 us after a while, and nothing is waited for. Says the same
 *   varies WAY
 *       a graph of 10 us four times and once more, then 1.5 ms long; waiting for that by WAY (context, event,
 *       event-query, stream-query, copy, sleep). Says `COUNT MICROSECONDS` of the last 1.5 s of 2.5
 *   turns
 *       launches of 10 us; says how often a second they were held back
 *   forever
 *       launches of 1 ms until it is killed; says `ready` before the first
 *   long
 *       says `ready`, and runs one kernel of an hour
 *   capture MODE
 *       captures launches again and again, while another thread launches
 *   spin
 *       a kernel waits for one that is launched after it, in another stream
 *   signals
 *       signals come while launches wait
 *   forks
 *       one thread forks children that launch, while others launch
 *   ends WAY
 *       a context ends by WAY (destroy, reset, release) while other threads' launches wait in it
 *   threads N
 *       N threads launch in four streams
 *   streams
 *       streams are made, launched in, captured and destroyed with work in them
 *   leave WAY
 *       the program ends by WAY, with work under way and threads launching: return, exit, thread and main
 *       (another thread exits; the first waits or has ended), fault, atexit (which launches, too)
 *
 * Exits 0 if every call did what it must.
 */
#include "paced.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

enum { MAX_THREADS = 64, NODES = 5, HIGHEST = -5, VERSION = 13000, ROUNDS = 8 };

static CUcontext context;
static CUmodule module;
CUstream streams[STREAMS];
static bool stop; /* atomic */

long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void pause_ms(int ms) {
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

static void use(CUdevice device) {
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    load();
}

static pthread_t thread(void *(*run)(void *), long number) {
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

/* ---- ways ---- */

#define ONE_BLOCK(stream)                                                                                    \
    (CUDA_LAUNCH_PARAMS) {                                                                                   \
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,         \
        .hStream = (stream)                                                                                  \
    }

static void *find(const char *name, bool per_thread, bool lookup) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    unsigned long long flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    if (lookup) {
        MUST(cuGetProcAddress_v2(name, &found, VERSION, flags, &status));
    } else if (per_thread) {
#define FOUND(symbol)                                                                                        \
    if (strcmp(name, #symbol) == 0)                                                                          \
        found = (void *)symbol##_ptsz;
        FOUND(cuLaunchKernel)
        FOUND(cuLaunchKernelEx)
        FOUND(cuLaunchCooperativeKernel)
        FOUND(cuGraphLaunch)
#undef FOUND
    } else {
#define FOUND(symbol)                                                                                        \
    if (strcmp(name, #symbol) == 0)                                                                          \
        found = (void *)symbol;
        FOUND(cuLaunchKernel)
        FOUND(cuLaunchKernelEx)
        FOUND(cuLaunchCooperativeKernel)
        FOUND(cuGraphLaunch)
        FOUND(cuLaunch)
        FOUND(cuLaunchGrid)
        FOUND(cuLaunchGridAsync)
        FOUND(cuLaunchCooperativeKernelMultiDevice)
#undef FOUND
    }
    NEED(found);
    return found;
}

/* Launches for so long, in the default stream that the way means, or in a stream. */
static void launch_for(double seconds, const char *way, bool lookup, CUstream stream, CUgraphExec exec) {
    char name[64];
    long long began = now_us(), until = began + (long long)(seconds * 1e6);
    long count = 0;
    snprintf(name, sizeof name, "%s", way);
    char *suffix = strstr(name, "_ptsz");
    if (suffix)
        *suffix = 0;
    void *call = find(name, suffix != NULL, lookup);
    CUfunction function = function_of("busy_1ms");
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    CUDA_LAUNCH_PARAMS alone = ONE_BLOCK(streams[1]);
    alone.function = function;
    MUST(cuFuncSetBlockShape(function, 1, 1, 1));
#define IS(symbol) (strcmp(name, #symbol) == 0)
#define CALL(symbol) ((__typeof__(&(symbol)))call)
    for (; now_us() < until; count++)
        if (IS(cuLaunchKernel))
            MUST(CALL(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        else if (IS(cuLaunchKernelEx))
            MUST(CALL(cuLaunchKernelEx)(&config, function, NULL, NULL));
        else if (IS(cuLaunchCooperativeKernel))
            MUST(CALL(cuLaunchCooperativeKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL));
        else if (IS(cuLaunch))
            MUST(CALL(cuLaunch)(function));
        else if (IS(cuLaunchGrid))
            MUST(CALL(cuLaunchGrid)(function, 1, 1));
        else if (IS(cuLaunchGridAsync))
            MUST(CALL(cuLaunchGridAsync)(function, 1, 1, stream));
        else if (IS(cuLaunchCooperativeKernelMultiDevice))
            MUST(CALL(cuLaunchCooperativeKernelMultiDevice)(&alone, 1, 0));
        else
            MUST(CALL(cuGraphLaunch)(exec, stream));
#undef CALL
#undef IS
    if (stream)
        MUST(cuStreamSynchronize(stream));
    else
        MUST(cuCtxSynchronize());
    printf("%ld %lld\n", count, now_us() - began);
}

static void check_ways(CUstream stream) {
    char line[128], way[64], found[16];
    double seconds;
    CUgraphExec exec = captured(function_of("busy_1ms"), streams[0]);
    if (stream) { /* a graph's launch is of its stream's context, whatever context is current */
        CUcontext other;
        MUST(cuDevicePrimaryCtxRetain(&other, 1));
        MUST(cuCtxSetCurrent(other));
    }
    while (fgets(line, sizeof line, stdin)) {
        NEED(sscanf(line, "%63s %15s %lf", way, found, &seconds) == 3);
        launch_for(seconds, way, strcmp(found, "lookup") == 0, stream, exec);
    }
}

static void check_both(const char *how) {
    bool once = strcmp(how, "once") == 0;
    const char *name = once ? "busy_1ms" : "busy_10us";
    CUcontext contexts[2] = {context};
    CUmodule theirs;
    CUDA_LAUNCH_PARAMS each[2];
    CUstream second;
    long count = 0;
    MUST(cuDevicePrimaryCtxRetain(&contexts[1], 1));
    MUST(cuCtxSetCurrent(contexts[1]));
    MUST(cuModuleLoadData(&theirs, "image"));
    MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++)
        each[i] = ONE_BLOCK(i ? second : streams[1]);
    MUST(cuModuleGetFunction(&each[1].function, theirs, name));
    MUST(cuCtxSetCurrent(context));
    each[0].function = function_of(name);
    for (long long until = now_us() + 2000000; now_us() < until; count++) {
        if (once)
            MUST(cuLaunchCooperativeKernelMultiDevice(each, 2, 0));
        for (int i = 0; i < 2 && !once; i++) {
            MUST(cuCtxSetCurrent(contexts[i]));
            MUST(launch(each[i].function, each[i].hStream));
        }
    }
    for (int i = 0; i < 2; i++)
        MUST(cuStreamSynchronize(each[i].hStream));
    pause_ms(20); /* it is measured */
    printf("%ld\n", count);
}

/* ---- others meanwhile ---- */

static void *launches(void *number) {
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
        if (!round) { /* its first launch is the first of all, with a capture under way */
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
        /* Debt first, so that both wait for budget; then what is under way is known to be long. */
        for (int i = 0; i < 10; i++)
            MUST(launch(function_of("busy_2ms"), streams[1]));
        MUST(launch(spins, streams[1]));
        MUST(launch(raises, high));
        MUST(cuStreamSynchronize(streams[1]));
    }
}

static volatile sig_atomic_t signals;
static void count_signal(int number) {
    (void)number;
    signals++;
}

static void check_signals(void) {
    struct sigaction action = {.sa_handler = count_signal};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    CUfunction function = function_of("busy_2ms");
    NEED(sigaction(SIGALRM, &action, NULL) == 0);
    long long began = now_us();
    NEED(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 100; i++)
        MUST(launch(function, streams[0]));
    MUST(cuStreamSynchronize(streams[0]));
    setitimer(ITIMER_REAL, &never, NULL);
    NEED(signals > 20);
    printf("%d %lld\n", 100, now_us() - began);
}

static int in_child(void) {
    context = NULL;
    use(0);
    CUfunction function = function_of("busy_1ms");
    for (int i = 0; i < 5; i++)
        MUST(launch(function, streams[0]));
    MUST(cuStreamSynchronize(streams[0]));
    return 0;
}

static void check_forks(void) {
    pthread_t others[3];
    for (int i = 0; i < 3; i++)
        others[i] = thread(launches, i);
    for (int round = 0; round < ROUNDS; round++) {
        int status;
        pause_ms(10);
        MUST(launch(function_of("busy_500us"), streams[3]));
        pid_t child = fork();
        NEED(child >= 0);
        if (!child)
            round % 2 ? exit(in_child()) : _exit(in_child());
        NEED(waitpid(child, &status, 0) == child);
        if (status != 0)
            fprintf(stderr, "a child ended with %#x\n", (unsigned)status);
        NEED(status == 0);
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++)
        NEED(pthread_join(others[i], NULL) == 0);
}

/* ---- ends ---- */

static CUfunction ending;
static void *launches_until_refused(void *number) {
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; i < 100000; i++)
        if (launch(ending, (long)number % 2 ? CU_STREAM_PER_THREAD : NULL) != CUDA_SUCCESS)
            return NULL;
    NEED(!"refused");
    return NULL;
}

static void check_ends(const char *way) {
    pthread_t others[3];
    MUST(cuInit(0));
    for (int round = 0; round < ROUNDS; round++) {
        if (strcmp(way, "destroy") == 0)
            MUST(cuCtxCreate_v2(&context, 0, 0));
        else
            MUST(cuDevicePrimaryCtxRetain(&context, 0));
        MUST(cuCtxSetCurrent(context));
        MUST(cuModuleLoadData(&module, ".version 8.0\n"));
        ending = function_of("busy_1ms");
        for (int i = 0; i < 20; i++)
            MUST(launch(ending, NULL));
        MUST(cuCtxSynchronize());
        for (int i = 0; i < 3; i++)
            others[i] = thread(launches_until_refused, i);
        pause_ms(40);
        if (strcmp(way, "destroy") == 0)
            MUST(cuCtxDestroy_v2(context));
        else if (strcmp(way, "reset") == 0)
            MUST(cuDevicePrimaryCtxReset_v2(0));
        else
            MUST(cuDevicePrimaryCtxRelease_v2(0));
        for (int i = 0; i < 3; i++)
            NEED(pthread_join(others[i], NULL) == 0);
        if (strcmp(way, "reset") == 0)
            (void)cuDevicePrimaryCtxRelease_v2(0);
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

/* What a stream was given last is marked on another thread, which it may end or be captured under. */
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
    pause_ms(2000);
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i < 4; i++)
        NEED(pthread_join(others[i], NULL) == 0);
}

/* ---- the program's end ---- */

static void *leaves(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    MUST(launch(function_of("busy_1ms"), NULL));
    exit(0);
}

/* What is refused once the program ends is no mistake of it. */
static void *launches_to_the_end(void *number) {
    CUfunction function = function_of("busy_500us");
    (void)cuCtxSetCurrent(context);
    while (launch(function, streams[(long)number % STREAMS]) == CUDA_SUCCESS)
        ;
    pause();
    return NULL;
}

static void at_exit(void) {
    CUfunction function = function_of("busy_10us");
    for (int i = 0; i < 20; i++)
        (void)launch(function, streams[1]);
}

static void leave(const char *way) {
    for (int i = 0; i < (strcmp(way, "fault") == 0 ? 0 : 2); i++)
        pthread_detach(thread(launches_to_the_end, i));
    for (int i = 0; i < 10; i++)
        MUST(launch(function_of("busy_500us"), streams[2]));
    if (strcmp(way, "exit") == 0)
        exit(0);
    if (strcmp(way, "thread") == 0 || strcmp(way, "main") == 0)
        pthread_detach(thread(leaves, 0));
    if (strcmp(way, "thread") == 0)
        pause_ms(60000);
    if (strcmp(way, "main") == 0)
        pthread_exit(NULL);
    if (strcmp(way, "fault") == 0) {
        CUresult result = CUDA_SUCCESS;
        (void)launch(function_of("fault_illegal_address"), streams[2]);
        while (result == CUDA_SUCCESS)
            result = launch(function_of("busy_500us"), streams[2]);
        NEED(result == CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "", *argument = count > 2 ? words[2] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(what, "leave") == 0 && strcmp(argument, "atexit") == 0)
        NEED(atexit(at_exit) == 0); /* before CUDA's own */
    if (strcmp(what, "ends") != 0)
        use(0);
    if (strcmp(what, "ways") == 0)
        check_ways(NULL);
    else if (strcmp(what, "grows") == 0)
        check_grows();
    else if (strcmp(what, "outgrows") == 0)
        check_outgrows();
    else if (strcmp(what, "varies") == 0)
        check_varies(argument);
    else if (strcmp(what, "turns") == 0)
        check_turns();
    else if (strcmp(what, "both") == 0)
        check_both(argument);
    else if (strcmp(what, "elsewhere") == 0)
        check_ways(streams[1]);
    else if (strcmp(what, "forever") == 0 || strcmp(what, "long") == 0) {
        CUfunction function = function_of(what[0] == 'l' ? "busy_3600s" : "busy_1ms");
        puts("ready");
        MUST(launch(function, streams[1]));
        while (what[0] != 'l')
            MUST(launch(function, streams[1]));
        pause();
    } else if (strcmp(what, "capture") == 0)
        check_capture(argument);
    else if (strcmp(what, "spin") == 0)
        check_spin();
    else if (strcmp(what, "signals") == 0)
        check_signals();
    else if (strcmp(what, "forks") == 0)
        check_forks();
    else if (strcmp(what, "ends") == 0)
        check_ends(argument);
    else if (strcmp(what, "threads") == 0)
        check_threads(atoi(argument));
    else if (strcmp(what, "streams") == 0)
        check_streams();
    else if (strcmp(what, "leave") == 0)
        leave(argument);
    else
        return 2;
    return 0;
}
