/*
 * Parts of paced_work.c: launches whose cost changes.
 */
#include "paced.h"

#include <sys/resource.h>

void check_grows(void) {
    CUgraphExec exec = captured(function_of("busy_200us"), streams[0]);
    CUfunction little = function_of("busy_10us");
    CUgraph longer = graph_of(function_of("busy_50ms"), streams[0]);
    CUgraphExecUpdateResultInfo info;
    long long began = now_us(), judged = began + 1000000;
    long count = 0;
    for (int i = 0; now_us() < judged + 1500000; i++) {
        if (i == 100)
            MUST(cuGraphExecUpdate_v2(exec, longer, &info));
        MUST(launch(little, streams[0]));
        MUST(cuGraphLaunch(exec, streams[0]));
        MUST(cuCtxSynchronize());
        count += now_us() > judged;
    }
    printf("%ld %lld\n", count, now_us() - judged);
}

/* Prints the number of launches in the last second and a half, as COUNT MICROSECONDS. It waits for none of
 * them. */
static void check_change(const char *before, const char *after) {
    CUgraphExec exec = captured(function_of(before), streams[0]);
    CUgraph other = graph_of(function_of(after), streams[0]);
    CUgraphExecUpdateResultInfo info;
    long long began = now_us(), judged = began + 1500000;
    long count = 0;
    for (bool changed = false; now_us() < judged + 1500000;) {
        if (!changed && now_us() > began + 500000) {
            MUST(cuGraphExecUpdate_v2(exec, other, &info));
            changed = true;
        }
        MUST(cuGraphLaunch(exec, streams[0]));
        count += now_us() > judged;
    }
    printf("%ld %lld\n", count, now_us() - judged);
}

void check_outgrows(void) { check_change("busy_20us", "busy_250us"); }
void check_shrinks(void) { check_change("busy_8ms", "busy_10us"); }

/* From here on no thread can be started, as when the limit of processes is reached. */
static void no_more_threads(void) {
    struct rlimit one = {1, 1};
    NEED(setrlimit(RLIMIT_NPROC, &one) == 0 && setuid(12345) == 0);
}

/* Nothing is launched after the longer kernel that could show when it has ended. */
void check_varies(const char *way) {
    CUstream stream = streams[1], blocks;
    CUgraphExec exec = captured(function_of("busy_10us"), streams[1]);
    CUgraph shorter = graph_of(function_of("busy_10us"), streams[1]);
    CUgraph longer = graph_of(function_of("busy_1500us"), streams[1]);
    CUgraphExecUpdateResultInfo info;
    CUevent event;
    CUdeviceptr memory;
    int word;
    long long began = now_us(), judged = began + 600000;
    long count = 0;
    if (strncmp(way, "default-", 8) == 0) {
        MUST(cuStreamCreate(&blocks, CU_STREAM_DEFAULT));
        stream = CU_STREAM_LEGACY;
        way += 8;
    } else if (strncmp(way, "thread-", 7) == 0) {
        stream = CU_STREAM_PER_THREAD;
        way += 7;
    } else if (strncmp(way, "threadless-", 11) == 0) {
        no_more_threads();
        way += 11;
    }
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc_v2(&memory, sizeof word));
    while (now_us() < judged + 1000000) {
        for (int i = 0; i < 4; i++) {
            MUST(cuGraphLaunch(exec, stream));
            for (long long until = now_us() + 300; i == 0 && now_us() < until;)
                ;
        }
        if (now_us() > judged - 400000) { /* by then the kernel is known to be short */
            MUST(cuGraphExecUpdate_v2(exec, longer, &info));
            MUST(cuGraphLaunch(exec, stream));
        }
        if (strcmp(way, "context") == 0)
            MUST(cuCtxSynchronize());
        else if (strncmp(way, "event", 5) == 0)
            MUST(cuEventRecord(event, stream));
        else if (strcmp(way, "copy") == 0)
            MUST(cuMemcpyDtoHAsync_v2(&word, memory, sizeof word, stream));
        else if (strcmp(way, "sleep") == 0)
            usleep(2000);
        if (strcmp(way, "event") == 0)
            MUST(cuEventSynchronize(event));
        while (strcmp(way, "event-query") == 0 && cuEventQuery(event) == CUDA_ERROR_NOT_READY)
            usleep(50);
        while (strcmp(way, "stream-query") == 0 && cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
            usleep(50);
        MUST(cuGraphExecUpdate_v2(exec, shorter, &info));
        count += now_us() > judged;
    }
    printf("%ld %lld\n", count, now_us() - judged);
}

/* `way`: STREAMS-MICROSECONDS-SHORTS. Each graph is short SHORTS times, and waited for. Then it is longer,
 * and waited for by the clock alone, so that a later record comes too late to measure it. The due marker
 * follows a kernel of another kind. */
void check_hides(const char *way) {
    int number, us, shorts;
    char name[32];
    CUgraphExec execs[STREAMS];
    CUgraph shorter[STREAMS], longer[STREAMS];
    CUfunction little = function_of("busy_1us");
    CUgraphExecUpdateResultInfo info;
    NEED(sscanf(way, "%d-%d-%d", &number, &us, &shorts) == 3 && number <= STREAMS);
    snprintf(name, sizeof name, "busy_%dus", us);
    for (int i = 0; i < number; i++) {
        execs[i] = captured(function_of("busy_10us"), streams[i]);
        shorter[i] = graph_of(function_of("busy_10us"), streams[i]);
        longer[i] = graph_of(function_of(name), streams[i]);
    }
    long long began = now_us(), judged = began + 500000;
    long count = 0;
    while (now_us() < judged + 1500000) {
        for (int i = 0; i < number; i++) {
            MUST(cuGraphExecUpdate_v2(execs[i], shorter[i], &info));
            for (int j = 0; j < shorts; j++) {
                MUST(cuGraphLaunch(execs[i], streams[i]));
                MUST(cuStreamSynchronize(streams[i]));
            }
            MUST(cuGraphExecUpdate_v2(execs[i], longer[i], &info));
        }
        for (int i = 0; i < number; i++)
            MUST(launch(little, streams[i]));
        for (int i = 0; i < number; i++)
            MUST(cuGraphLaunch(execs[i], streams[i]));
        for (long long until = now_us() + (long long)number * us + 40; now_us() < until;)
            ;
        count += now_us() > judged;
    }
    MUST(cuCtxSynchronize());
    printf("%ld %lld\n", count, now_us() - judged);
}

/* A graph takes 320 us three times of four, then 700 us. One launch's time is no sign of the next's. */
void check_mixes(void) {
    CUgraphExec exec = captured(function_of("busy_320us"), streams[1]);
    CUgraph graphs[2] = {graph_of(function_of("busy_320us"), streams[1]),
                         graph_of(function_of("busy_700us"), streams[1])};
    CUgraphExecUpdateResultInfo info;
    CUevent rounds[8];
    for (int i = 0; i < 8; i++)
        MUST(cuEventCreate(&rounds[i], CU_EVENT_DISABLE_TIMING));
    long long began = now_us(), judged = began + 800000;
    long count = 0;
    for (long round = 0; now_us() < judged + 2000000; round++) {
        if (round >= 8) {
            MUST(cuEventSynchronize(rounds[round % 8]));
            count += now_us() > judged;
        }
        for (int i = 0; i < 4; i++) {
            if (i == 0 || i == 3)
                MUST(cuGraphExecUpdate_v2(exec, graphs[i / 3], &info));
            MUST(cuGraphLaunch(exec, streams[1]));
        }
        MUST(cuEventRecord(rounds[round % 8], streams[1]));
    }
    printf("%ld %lld\n", count, now_us() - judged);
}

/* How many short launches a second are held back, beside another program. */
void check_slices(void) {
    CUfunction function = function_of("busy_10us");
    long long began = now_us(), before = began, now = began;
    int held = 0;
    for (; now - began < 1500000; before = now) {
        MUST(launch(function, streams[1]));
        now = now_us();
        held += now - began > 500000 && now - before > 300;
    }
    printf("%d\n", held);
}

/* Launches of 20 ms for a while; `waits`: for each. */
static void launch_long_ones(bool waits) {
    CUfunction function = function_of("busy_20ms");
    long long began = now_us();
    long count = 0;
    for (; now_us() < began + 2500000; count++) {
        MUST(launch(function, streams[1]));
        if (waits)
            MUST(cuStreamSynchronize(streams[1]));
    }
    MUST(cuCtxSynchronize());
    printf("%ld %lld\n", count, now_us() - began);
}

void check_threadless(const char *way) {
    no_more_threads();
    launch_long_ones(strcmp(way, "waits") == 0);
}

/* By then the kernel's time is unknown, and our thread has ended. */
static void work_at_exit(void) { launch_long_ones(true); }

void check_at_exit(void) {
    NEED(atexit(work_at_exit) == 0); /* before our thread is started, so it runs after the thread has ended */
    MUST(launch(function_of("busy_10us"), streams[1]));
    exit(0);
}

void check_once(const char *way) {
    MUST(launch(function_of("busy_4ms"), streams[1]));
    if (strcmp(way, "_exit") == 0)
        MUST(cuCtxSynchronize());
    while (cuStreamQuery(streams[1]) == CUDA_ERROR_NOT_READY) /* nothing is measured at this wait */
        usleep(50);
    if (strcmp(way, "exit") == 0)
        exit(0);
    if (strcmp(way, "destroy") == 0)
        MUST(cuDevicePrimaryCtxReset(0));
    _exit(0);
}

/* A minute passes. Then an event comes, on another device. */
static CUevent comes_late(void) {
    CUfunction longest;
    CUcontext other;
    CUmodule theirs;
    CUstream elsewhere;
    CUevent end;
    MUST(cuDevicePrimaryCtxRetain(&other, 1));
    MUST(cuCtxSetCurrent(other));
    MUST(cuModuleLoadData(&theirs, "image"));
    MUST(cuModuleGetFunction(&longest, theirs, "busy_60s"));
    MUST(cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
    MUST(launch(longest, elsewhere));
    MUST(cuEventRecord(end, elsewhere));
    MUST(cuCtxSetCurrent(context));
    return end;
}

static CUevent late;
static long ended;

/* The program does not wait for a launch that is held back meanwhile. */
static void *tells(void *seconds) {
    long long began = now_us();
    pause_ms((int)(long)seconds * 1000);
    printf("%ld %lld\n", __atomic_load_n(&ended, __ATOMIC_ACQUIRE), now_us() - began);
    NEED(cuEventQuery(late) == CUDA_ERROR_NOT_READY);
    _exit(0);
}

/* Prints how many kernels have ended in some seconds. Each is launched and waited for by itself. */
static void count_while_others_wait(CUfunction function, int seconds, CUevent end) {
    CUstream own;
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    late = end;
    thread(tells, seconds);
    for (;;) {
        MUST(launch(function, own));
        while (cuStreamQuery(own) == CUDA_ERROR_NOT_READY)
            usleep(1000);
        __atomic_add_fetch(&ended, 1, __ATOMIC_RELEASE);
    }
}

/* The short kernels wait, and the program asks for each. Each gets one of the pacer's 256 events. */
void check_exhausts(void) {
    CUfunction little = function_of("busy_1us");
    for (int i = 0; i < 50; i++) { /* the pacer learns that they are short */
        MUST(launch(little, streams[1]));
        MUST(cuStreamSynchronize(streams[1]));
    }
    CUevent end = comes_late();
    for (int i = 0; i < STREAMS; i++) {
        MUST(cuStreamWaitEvent(streams[i], end, 0));
        for (int launched = 0; launched < 66; launched++) {
            MUST(launch(little, streams[i]));
            NEED(cuStreamQuery(streams[i]) == CUDA_ERROR_NOT_READY);
        }
    }
    count_while_others_wait(function_of("busy_100ms"), 3, end);
}

void check_stalls(void) {
    CUevent end = comes_late();
    MUST(cuStreamWaitEvent(streams[1], end, 0));
    MUST(launch(function_of("busy_1us"), streams[1]));
    count_while_others_wait(function_of("busy_200ms"), 3, end);
}

static CUlaunchConfig config;

static void *rewrites(void *unused) {
    pause_ms(50);
    config.hStream = streams[3];
    return unused;
}

/* The launch waits for budget for some tenths of a second. Its stream is another one then. */
void check_rewrites(void) {
    for (int i = 0; i < 10; i++)
        MUST(launch(function_of("busy_8ms"), streams[1]));
    MUST(cuCtxSynchronize());
    config = (CUlaunchConfig){1, 1, 1, 1, 1, 1, .hStream = streams[1]};
    pthread_t other = thread(rewrites, 0);
    MUST(cuLaunchKernelEx(&config, function_of("busy_1s"), NULL, NULL));
    NEED(cuStreamQuery(streams[1]) == CUDA_ERROR_NOT_READY);
    NEED(cuStreamQuery(streams[3]) == CUDA_SUCCESS);
    NEED(pthread_join(other, NULL) == 0);
}
