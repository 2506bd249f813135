/*
 * libcuda: work on its way to the device. A command is written to memory that the context shares with the
 * driver, which takes it when it has a reason to look (protocol.h). There is no request and no wake-up, so
 * that a launch costs at most as much as a real one. The next call with an answer reports its failure.
 *
 * A context has a number of hardware queues, its channels. A stream has one, and may share it with others:
 * its work then waits behind theirs. Streams of the highest priority share theirs with none (up to 16 of
 * them). The legacy default stream waits for all blocking streams, and they wait for it, by commands for
 * that.
 */
#define _GNU_SOURCE
#include "../../../native/clock/clock.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void (*after_waits)(void); /* pool.c's, which is above this file */

enum { LEGACY_CHANNEL = 0, DEFAULT_CONNECTIONS = 8, HIGHEST_PRIORITY = -5 };

static CUresult ask(CUcontext context, uint32_t operation, uint64_t first, uint64_t second,
                    struct sim_reply *reply) {
    struct sim_request request = {
        .operation = operation, .context = context->id, .argument = {first, second}};
    enum sim_status status = sim_call(&request, NULL, reply, NULL, 0);
    if (status == SIM_ILLEGAL_ADDRESS || status == SIM_ASSERT)
        __atomic_store_n(&context->fault, status, __ATOMIC_RELEASE);
    return cuda_result(status);
}

CUresult cuda_call(CUcontext context, uint32_t operation, uint64_t argument, struct sim_reply *reply) {
    return ask(context, operation, argument, 0, reply);
}

/* ---- a context's queue; all with the context's lock held ---- */

void cuda_work_begin(CUcontext context) {
    const char *asked = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsigned long connections = asked ? strtoul(asked, NULL, 10) : 0;
    pthread_mutex_lock(&context->lock);
    context->work = (struct work){.connections = connections >= 1 && connections <= SIM_CONNECTIONS
                                                     ? (unsigned)connections
                                                     : DEFAULT_CONNECTIONS};
    __atomic_store_n(&context->fault, SIM_OK, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&context->lock);
}

void cuda_work_end(CUcontext context) {
    pthread_mutex_lock(&context->lock);
    if (context->work.queue)
        munmap(context->work.queue, sizeof *context->work.queue);
    context->work.queue = NULL;
    pthread_mutex_unlock(&context->lock);
}

/* In a forked child, which must not use it. */
void cuda_work_forget(CUcontext context) {
    context->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    context->work.queue = NULL;
}

static CUresult open_queue(CUcontext context) {
    struct sim_request request = {.operation = SIM_QUEUE, .context = context->id};
    int fd = -1;
    CUresult result = cuda_result(sim_call_fd(&request, -1, NULL, 0, &fd));
    void *place = MAP_FAILED;
    if (result == CUDA_SUCCESS && fd >= 0)
        place = mmap(NULL, sizeof *context->work.queue, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (result != CUDA_SUCCESS || place == MAP_FAILED)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    (void)madvise(place, sizeof *context->work.queue, MADV_DONTFORK);
    context->work.queue = place;
    return CUDA_SUCCESS;
}

/* Whether the context can be given work. */
static CUresult ready(CUcontext context) {
    if (!cuda_is_live(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    TRY(context->work.queue ? CUDA_SUCCESS : open_queue(context));
    if (cuda_fault(context) == CUDA_SUCCESS)
        __atomic_store_n(&context->fault, __atomic_load_n(&context->work.queue->fault, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    return cuda_fault(context);
}

/* Positions of a channel that are known here to be done. */
static uint64_t completed(CUcontext context, uint32_t channel) {
    const struct sim_queue *queue = context->work.queue;
    return queue ? __atomic_load_n(&queue->completed[channel], __ATOMIC_ACQUIRE) : 0;
}

static void put(CUcontext context, struct sim_command command) {
    struct work *work = &context->work;
    command.stamp = xpu_now();
    work->queue->commands[work->head % SIM_RING] = command;
    work->issued[command.channel]++;
    __atomic_store_n(&work->queue->head, ++work->head, __ATOMIC_RELEASE);
}

/* ---- streams ---- */

static bool is_own(uint32_t channel) { return channel >= SIM_CONNECTIONS; }

void cuda_stream_begin(CUstream stream) {
    struct work *work = &stream->context->work;
    pthread_mutex_lock(&stream->context->lock);
    stream->unique = stream->context->unique;
    stream->channel = ++work->streams % work->connections;
    unsigned free_one = (unsigned)__builtin_ctz(~work->own_used | 1u << SIM_OWN_CHANNELS);
    if (stream->priority == HIGHEST_PRIORITY && free_one < SIM_OWN_CHANNELS) {
        work->own_used |= 1u << free_one;
        stream->channel = SIM_CONNECTIONS + free_one;
    }
    pthread_mutex_unlock(&stream->context->lock);
}

void cuda_stream_end(CUstream stream) {
    CUcontext context = stream->context;
    pthread_mutex_lock(&context->lock);
    if (is_own(stream->channel) && stream->unique == context->unique)
        context->work.own_used &= ~(1u << (stream->channel - SIM_CONNECTIONS));
    pthread_mutex_unlock(&context->lock);
}

static bool is_blocking(const struct CUstream_st *stream) {
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* The commands in other channels that a stream's next command must wait for. Returns their number, at most
 * SIM_MAX_CHANNELS. */
static unsigned joins_of(CUcontext context, const struct CUstream_st *stream, struct sim_command *joins) {
    const struct work *work = &context->work;
    unsigned count = 0;
    if (stream) {
        if (is_blocking(stream) && stream->channel != LEGACY_CHANNEL && work->legacy > stream->joined &&
            work->legacy > completed(context, LEGACY_CHANNEL))
            joins[count++] = (struct sim_command){.kind = SIM_WAIT,
                                                  .channel = (uint16_t)stream->channel,
                                                  .context = context->id,
                                                  .number = LEGACY_CHANNEL,
                                                  .value = work->legacy};
        return count;
    }
    for (uint64_t left = work->unjoined; left; left &= left - 1) {
        uint32_t channel = (uint32_t)__builtin_ctzll(left);
        if (work->blocking[channel] > completed(context, channel))
            joins[count++] = (struct sim_command){.kind = SIM_WAIT,
                                                  .channel = LEGACY_CHANNEL,
                                                  .context = context->id,
                                                  .number = channel,
                                                  .value = work->blocking[channel]};
    }
    return count;
}

/* Waits until there may be room for `count` commands. The lock is released meanwhile. */
static CUresult make_room(CUcontext context, uint32_t channel, unsigned count, bool *there_was) {
    const struct work *work = &context->work;
    uint64_t pending = work->issued[channel] - completed(context, channel);
    uint64_t untaken = work->head - __atomic_load_n(&work->queue->tail, __ATOMIC_ACQUIRE);
    bool full = pending + count > SIM_QUEUE_DEPTH;
    *there_was = !full && untaken + count <= SIM_RING;
    if (*there_was)
        return CUDA_SUCCESS;
    uint64_t position =
        work->issued[channel] - SIM_QUEUE_DEPTH + (count > SIM_QUEUE_FREE ? count : SIM_QUEUE_FREE);
    pthread_mutex_unlock(&context->lock);
    CUresult result =
        full ? ask(context, SIM_SYNC, channel, position, NULL) : ask(context, SIM_LOOK, 0, 0, NULL);
    pthread_mutex_lock(&context->lock);
    return result;
}

/* The lock is held, so that commands of several threads have one order. */
static CUresult give(CUcontext context, CUstream stream, struct sim_command command, struct mark *mark) {
    struct sim_command joins[SIM_MAX_CHANNELS];
    struct work *work = &context->work;
    uint32_t channel = stream ? stream->channel : LEGACY_CHANNEL;
    unsigned count = 0;
    bool has_room = false;
    while (!has_room) {
        CUresult result = ready(context);
        if (result == CUDA_SUCCESS) {
            count = joins_of(context, stream, joins);
            result = make_room(context, channel, count + 1, &has_room);
        }
        if (result != CUDA_SUCCESS)
            return result;
    }
    for (unsigned i = 0; i < count; i++)
        put(context, joins[i]);
    command.channel = (uint16_t)channel;
    put(context, command);
    *mark = (struct mark){context, channel, work->issued[channel]};
    if (!stream) {
        work->unjoined = 0;
        work->legacy = mark->position;
        return CUDA_SUCCESS;
    }
    stream->last = mark->position;
    if (is_blocking(stream)) {
        stream->joined = work->legacy;
        work->blocking[channel] = mark->position;
        if (channel != LEGACY_CHANNEL)
            work->unjoined |= 1ull << channel;
    }
    return CUDA_SUCCESS;
}

CUresult cuda_submit(CUstream handle, struct sim_command command, struct mark *mark) {
    CUcontext context;
    CUstream stream;
    struct mark unused;
    TRY(cuda_stream(handle, &stream, &context));
    pthread_mutex_lock(&context->lock);
    CUresult result = give(context, stream, command, mark ? mark : &unused);
    pthread_mutex_unlock(&context->lock);
    /* These can end a wait that has begun already, or depend on the next command of another thread. The
     * launch does not report the driver's findings. */
    bool matters = command.kind == SIM_SPIN || command.kind == SIM_RAISE || command.kind == SIM_FAULT ||
                   command.kind == SIM_WAIT_SHARED;
    if (result == CUDA_SUCCESS && matters)
        (void)cuda_look(context);
    return result;
}

CUresult cuda_look(CUcontext context) { return ask(context, SIM_LOOK, 0, 0, NULL); }

/* ---- completed work ---- */

bool cuda_seen_done(const struct mark *mark) {
    CUcontext context = mark->context;
    if (!mark->position || !cuda_is_live(context))
        return true;
    pthread_mutex_lock(&context->lock);
    bool done = completed(context, mark->channel) >= mark->position;
    pthread_mutex_unlock(&context->lock);
    return done;
}

/* The work of a failed context has been dropped, and is not done at any position. The driver reports the
 * failure first, so that a thread that looks for it after the position finds it. */
static CUresult ask_for(const struct mark *mark, uint32_t operation) {
    bool done = cuda_seen_done(mark);
    pthread_mutex_lock(&mark->context->lock);
    CUresult result = mark->context->work.queue ? ready(mark->context) : cuda_fault(mark->context);
    pthread_mutex_unlock(&mark->context->lock);
    if (result != CUDA_SUCCESS || done)
        return result;
    return ask(mark->context, operation, mark->channel, mark->position, NULL);
}

CUresult cuda_done(const struct mark *mark) { return ask_for(mark, SIM_QUERY); }

void cuda_after_waits(void (*then)(void)) { after_waits = then; }

void cuda_waited(void) { after_waits(); }

CUresult cuda_wait(const struct mark *mark) {
    TRY(ask_for(mark, SIM_SYNC));
    cuda_waited();
    return CUDA_SUCCESS;
}

/* The ends of a stream's work: of the legacy one, also those of all blocking streams. */
static CUresult ends_of(CUstream handle, struct mark *marks, unsigned *count) {
    CUcontext context;
    CUstream stream;
    TRY(cuda_stream(handle, &stream, &context));
    pthread_mutex_lock(&context->lock);
    if (stream) {
        marks[0] = (struct mark){context, stream->channel, stream->last};
        *count = 1;
    } else {
        marks[0] = (struct mark){context, LEGACY_CHANNEL, context->work.legacy};
        *count = 1;
        for (uint32_t i = 0; i < SIM_MAX_CHANNELS; i++)
            if (context->work.blocking[i])
                marks[(*count)++] = (struct mark){context, i, context->work.blocking[i]};
    }
    pthread_mutex_unlock(&context->lock);
    return CUDA_SUCCESS;
}

static CUresult each_end(CUstream handle, uint32_t operation) {
    struct mark marks[SIM_MAX_CHANNELS + 1];
    unsigned count;
    CUresult result = ends_of(handle, marks, &count);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = ask_for(&marks[i], operation);
    return result;
}

CUresult cuda_stream_done(CUstream handle) { return each_end(handle, SIM_QUERY); }

CUresult cuda_stream_wait(CUstream handle) {
    TRY(each_end(handle, SIM_SYNC));
    cuda_waited();
    return CUDA_SUCCESS;
}

CUresult cuda_context_wait(CUcontext context) {
    CUresult result = CUDA_SUCCESS;
    uint64_t issued[SIM_MAX_CHANNELS];
    pthread_mutex_lock(&context->lock);
    memcpy(issued, context->work.issued, sizeof issued);
    pthread_mutex_unlock(&context->lock);
    for (uint32_t i = 0; i < SIM_MAX_CHANNELS && result == CUDA_SUCCESS; i++)
        result = ask_for(&(struct mark){context, i, issued[i]}, SIM_SYNC);
    if (result == CUDA_SUCCESS)
        cuda_waited();
    return result;
}

CUresult cuda_mark(CUstream handle, struct mark *mark) {
    struct mark marks[SIM_MAX_CHANNELS + 1];
    unsigned count, open = 0;
    TRY(ends_of(handle, marks, &count));
    *mark = marks[0];
    for (unsigned i = 1; i < count; i++)
        open += !cuda_seen_done(&marks[i]);
    return open ? cuda_submit(handle, (struct sim_command){.kind = SIM_MARK}, mark) : CUDA_SUCCESS;
}
