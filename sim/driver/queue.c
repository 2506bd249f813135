/*
 * Commands on their way from a context's shared queue to its channels. The memory is the client's as well:
 * each command is copied before it is read, and a client that fills it wrongly is dropped.
 */
#define _GNU_SOURCE
#include "state.h"

#include <stdlib.h>
#include <string.h>

/* Doubles the places. The commands keep theirs. */
static bool grow(struct client *client, struct channel *channel) {
    uint32_t capacity = channel->capacity ? channel->capacity * 2 : 16, more = capacity - channel->capacity;
    if (client->queued + more > MAX_QUEUED_PER_CONNECTION || state.queued + more > MAX_QUEUED)
        return false;
    struct command *larger = malloc(capacity * sizeof *larger);
    if (!larger)
        return false;
    for (uint64_t i = channel->completed + 1; i <= channel->accepted; i++)
        larger[i & (capacity - 1)] = channel->queue[i & (channel->capacity - 1)];
    free(channel->queue);
    channel->queue = larger;
    channel->capacity = capacity;
    client->queued += more;
    state.queued += more;
    return true;
}

static bool is_valid(const struct sim_command *given) {
    if (given->zero || given->channel >= SIM_MAX_CHANNELS)
        return false;
    switch (given->kind) {
    case SIM_KERNEL:
        return given->value <= SIM_MAX_KERNEL_NS;
    case SIM_SPIN:
    case SIM_RAISE:
        return given->value <= SIM_MAX_KERNEL_NS && given->number < SIM_MAX_FLAGS;
    case SIM_FAULT:
        return given->value <= SIM_MAX_KERNEL_NS &&
               (given->number == SIM_ILLEGAL_ADDRESS || given->number == SIM_ASSERT);
    case SIM_WAIT:
        return given->number < SIM_MAX_CHANNELS;
    }
    return given->kind == SIM_RECORD || given->kind == SIM_WAIT_SHARED || given->kind == SIM_MARK;
}

/* The commands that a command waits for. An ended context has nothing under way. */
static void aim(struct context *context, const struct sim_command *given, struct command *command) {
    struct context *target = context_of(context->client, given->context);
    uint32_t channel = given->number;
    command->value = given->value;
    if (target && given->kind == SIM_WAIT_SHARED)
        target = event_latest(target, given->number, &channel, &command->value);
    command->kind = target ? SIM_WAIT : SIM_MARK;
    if (!target)
        return;
    command->channel = (uint16_t)channel;
    command->target = target->self;
    command->across = target->unit != context->unit;
    state.across += command->across;
}

/* Neither before an earlier command, nor in the future, whatever the client claims. `now` is the time when
 * this look at the queue began: a command given since then keeps its time, or it would be done before it was
 * given. */
static uint64_t stamp_of(const struct context *context, const struct sim_command *given, uint64_t now) {
    uint64_t stamp = given->stamp;
    if (stamp > now && stamp > (now = clock_now()))
        stamp = now;
    return stamp > context->latest ? stamp : context->latest;
}

static bool accept(struct context *context, const struct sim_command *given, uint64_t now) {
    if (!is_valid(given))
        return false;
    struct channel *channel = &context->channels[given->channel];
    uint64_t pending = channel->accepted - channel->completed;
    if (context->fault != SIM_OK) {
        channel->completed = ++channel->accepted;
        return true;
    }
    if (pending >= SIM_QUEUE_DEPTH || (pending >= channel->capacity && !grow(context->client, channel)))
        return false;
    bool takes_time = given->kind <= SIM_FAULT;
    context->latest = stamp_of(context, given, now);
    channel->accepted++;
    channel->work += takes_time ? given->value : 0;
    struct command *command = &channel->queue[channel->accepted & (channel->capacity - 1)];
    *command = (struct command){
        .stamp = context->latest, .end = channel->work, .kind = given->kind, .number = given->number};
    if (given->kind == SIM_WAIT || given->kind == SIM_WAIT_SHARED)
        aim(context, given, command);
    else if (given->kind == SIM_RECORD)
        command->generation = event_recorded(context, given->number, given->channel);
    context->active |= 1ull << given->channel;
    if (!context->in_ring)
        context_join(context);
    return true;
}

void queue_take(struct context *context, uint64_t now) {
    struct sim_queue *queue = context->queue;
    if (!queue)
        return;
    uint64_t head = __atomic_load_n(&queue->head, __ATOMIC_ACQUIRE);
    if (head == context->taken)
        return;
    if (head - context->taken > SIM_RING)
        context->client->doomed = true;
    while (head != context->taken && head - context->taken <= SIM_RING) {
        struct sim_command given;
        memcpy(&given, &queue->commands[context->taken % SIM_RING], sizeof given);
        __asm__ volatile("" ::: "memory"); /* the copy is checked, and the original is not read again */
        /* Given since `now` was read: it is taken next time, so that nothing is done before it was given. */
        if (given.stamp > now && given.stamp <= clock_now())
            break;
        context->taken++;
        if (!accept(context, &given, now)) {
            context->client->doomed = true;
            break;
        }
    }
    if (context->fault != SIM_OK)
        queue_clear(context);
    __atomic_store_n(&queue->tail, context->taken, __ATOMIC_RELEASE);
}

static void publish(struct context *context, uint32_t channel) {
    if (context->queue)
        __atomic_store_n(&context->queue->completed[channel], context->channels[channel].completed,
                         __ATOMIC_RELEASE);
}

void queue_done(struct context *context, uint32_t number) {
    struct channel *channel = &context->channels[number];
    struct command *command = queue_head(channel);
    state.across -= command->across;
    channel->executed = command->end;
    channel->completed++;
    publish(context, number);
    if (channel->completed < channel->accepted)
        return;
    context->active &= ~(1ull << number);
    if (!context->active)
        context_leave(context);
}

void queue_clear(struct context *context) {
    for (uint32_t i = 0; i < SIM_MAX_CHANNELS; i++) {
        while (context->channels[i].completed < context->channels[i].accepted && (context->active >> i & 1))
            queue_done(context, i);
        publish(context, i);
    }
}

void context_fail(struct context *context, enum sim_status fault) {
    context->fault = fault;
    if (context->queue)
        __atomic_store_n(&context->queue->fault, fault, __ATOMIC_RELEASE);
    queue_clear(context);
}

void context_fault(struct context *context, enum sim_status fault) {
    context_fail(context, fault);
    const struct client *server = context->client->mps.server;
    for (struct client *client = server ? state.clients : NULL; client; client = client->next)
        for (uint32_t i = 0; client->mps.server == server && i < SIM_MAX_CONTEXTS; i++) {
            struct context *other = client->contexts[i];
            client->mps.struck |= other && other->unit == context->unit;
            if (other && other != context && other->unit == context->unit && other->fault == SIM_OK)
                context_fail(other, fault);
        }
}
