/*
 * Parts of paced_work.c: signals, forks, and the ends of contexts and of the program, while others launch.
 */
#include "paced.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { ROUNDS = 8 };

static volatile sig_atomic_t signals;
static void count_signal(int number) {
    (void)number;
    signals++;
}

void check_signals(void) {
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

void check_forks(void) {
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

static void end_program(int number) {
    (void)number;
    exit(0);
}

/* A signal's handler ends the program during launches, whose locks may be taken. */
void check_interrupted(const char *after_us) {
    CUfunction function = function_of("busy_1us");
    struct sigaction action = {.sa_handler = end_program};
    struct itimerval once = {{0, 0}, {0, atol(after_us)}};
    MUST(launch(function, streams[0]));
    NEED(sigaction(SIGALRM, &action, NULL) == 0);
    NEED(setitimer(ITIMER_REAL, &once, NULL) == 0);
    for (;;)
        MUST(launch(function, streams[0]));
}

static CUfunction ending;
static void *launches_until_refused(void *number) {
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; i < 100000; i++)
        if (launch(ending, (long)number % 2 ? CU_STREAM_PER_THREAD : NULL) != CUDA_SUCCESS)
            return NULL;
    NEED(!"refused");
    return NULL;
}

void check_ends(const char *way) {
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

/* ---- the program's end ---- */

static void *leaves(void *unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    MUST(launch(function_of("busy_1ms"), NULL));
    exit(0);
}

/* A refusal after the program's end has begun is no error. */
static void *launches_to_the_end(void *number) {
    CUfunction function = function_of("busy_500us");
    (void)cuCtxSetCurrent(context);
    while (launch(function, streams[(long)number % STREAMS]) == CUDA_SUCCESS)
        ;
    pause();
    return NULL;
}

void launches_at_exit(void) {
    CUfunction function = function_of("busy_10us");
    for (int i = 0; i < 20; i++)
        (void)launch(function, streams[1]);
}

void check_leave(const char *way) {
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
