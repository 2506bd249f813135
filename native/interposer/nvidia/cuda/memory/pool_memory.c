/*
 * Pools: admits calls, and sets the account to the driver's reservation afterwards.
 */
#define _GNU_SOURCE
#include "pool_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "cuda/driver/devices.h"
#include "cuda/driver/fork.h"
#include "cuda/driver/real.h"
#include "reconcile.h"

XPU_NEED(cuMemPoolGetAttribute)
XPU_NEED(cuMemPoolTrimTo)
XPU_NEED(cuDeviceGetGraphMemAttribute)
XPU_NEED(cuDeviceGraphMemTrim)
XPU_NEED(cuThreadExchangeStreamCaptureMode)

/* The driver takes memory for a pool in steps, in large ones unless the device itself lacks the memory. A
 * driver that takes smaller ones is known by its report. */
enum { LIKELY_STEP = 32 << 20 };
/* The wait for calls of other threads: at most 20 ms, with a look every 20 us. */
enum { PAUSE_NS = 20000, MOST_PAUSES = 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct xpu_pool_memory *pools; /* atomic; entries are added in front, and stay */
static int last_chance;               /* atomic; 1: a thread asks for the last time before it refuses */

static struct xpu_pool_memory *left; /* by parents */

static void forget_all(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    XPU_LEAVE_BEHIND(pools, left);
    last_chance = 0;
}
XPU_AT_FORK(forget_all)

static struct xpu_pool_memory *first(void) { return __atomic_load_n(&pools, __ATOMIC_ACQUIRE); }

/* A destroyed pool's handle may be reused. Under the lock. */
static struct xpu_pool_memory *find(CUmemoryPool pool, CUdevice device) {
    struct xpu_pool_memory *at = pools;
    while (at && (at->closed || at->handle != pool || (!pool && at->device != device)))
        at = at->next;
    return at;
}

struct xpu_pool_memory *xpu_pool_memory_find(CUmemoryPool pool, CUdevice device) {
    pthread_mutex_lock(&lock);
    struct xpu_pool_memory *found = find(pool, device);
    pthread_mutex_unlock(&lock);
    return found;
}

static struct xpu_pool_memory *make(void) {
    struct xpu_pool_memory *made = pools;
    while (made && (!made->destroyed || made->pointers || made->calls))
        made = made->next;
    if (made) {
        made->applied = __atomic_load_n(&made->read, __ATOMIC_RELAXED);
        __atomic_store_n(&made->seen, 0, __ATOMIC_RELAXED);
        made->closed = made->destroyed = made->exported = false;
    } else if ((made = calloc(1, sizeof *made))) {
        made->next = pools;
        __atomic_store_n(&pools, made, __ATOMIC_RELEASE);
    }
    return made;
}

struct xpu_pool_memory *xpu_pool_memory_of(CUmemoryPool pool, CUdevice device, bool counted) {
    int index = xpu_index_of(device);
    pthread_mutex_lock(&lock);
    struct xpu_pool_memory *found = find(pool, device);
    if (!found && (found = make())) {
        found->handle = pool;
        found->device = device;
        found->index = index;
        found->counted = counted;
        found->kind = pool ? XPU_POOL : XPU_GRAPH;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool ask(const struct xpu_pool_memory *pool, bool used, uint64_t *bytes) {
    cuuint64_t value = 0;
    CUresult result =
        pool->handle
            ? REAL(cuMemPoolGetAttribute)(
                  pool->handle,
                  used ? CU_MEMPOOL_ATTR_USED_MEM_CURRENT : CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)
            : REAL(cuDeviceGetGraphMemAttribute)(
                  pool->device,
                  used ? CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT : CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value);
    *bytes = value;
    return result == CUDA_SUCCESS;
}

struct reading {
    uint64_t number, bytes;
    bool valid;
};

static struct reading take_reading(struct xpu_pool_memory *pool) {
    struct reading reading = {.number = __atomic_add_fetch(&pool->read, 1, __ATOMIC_SEQ_CST)};
    reading.valid = ask(pool, false, &reading.bytes);
    return reading;
}

static void take_over(struct xpu_pool_memory *pool, const struct reading *reading) {
    if (!reading->valid || reading->number <= pool->applied)
        return;
    int64_t change = (int64_t)(reading->bytes - pool->settled);
    pool->applied = reading->number;
    pool->settled = reading->bytes;
    __atomic_or_fetch(&pool->seen, reading->bytes, __ATOMIC_RELAXED);
    if (change < 0)
        __atomic_add_fetch(&pool->moved, 1, __ATOMIC_RELAXED);
    if (pool->exported && change)
        xpu_exported(pool->index, change);
}

/* Sets the account to the report, with the lock held. The report may or may not have the charges of calls
 * under way: they are never added, and they stay. The report is larger than all that only if a call made the
 * pool grow by more than it was admitted for. False if that is beyond the limit. */
static bool settle(struct xpu_pool_memory *pool) {
    uint64_t most = pool->settled + pool->pending;
    uint64_t right = pool->held < most ? pool->held : most;
    bool fits = true;
    if (right < pool->settled) {
        uint64_t more = pool->settled - pool->held;
        right = pool->settled;
        fits = xpu_charge(pool->index, pool->kind, more);
        if (!fits)
            xpu_charge_anyway(pool->index, pool->kind, more);
    } else if (right < pool->held) {
        xpu_uncharge(pool->index, pool->kind, pool->held - right);
    }
    pool->held = right;
    return fits;
}

/* Until stop_reading, the pool is not destroyed. Device: an index in the pages; -1: any. */
static bool start_reading(struct xpu_pool_memory *pool, int device) {
    pthread_mutex_lock(&lock);
    bool may = !pool->closed && pool->counted && (device < 0 || pool->index == device);
    pool->readers += may;
    pthread_mutex_unlock(&lock);
    return may;
}

/* True: the pool has become smaller. */
static bool stop_reading(struct xpu_pool_memory *pool, const struct reading *reading) {
    pthread_mutex_lock(&lock);
    uint64_t before = pool->settled;
    take_over(pool, reading);
    if (!pool->calls || pool->settled <= pool->held)
        (void)settle(pool); /* otherwise the call that caused it does this */
    bool less = pool->settled < before;
    pool->readers--;
    pthread_mutex_unlock(&lock);
    return less;
}

static void refresh(struct xpu_pool_memory *pool, int device) {
    if (start_reading(pool, device)) {
        struct reading reading = take_reading(pool);
        stop_reading(pool, &reading);
    }
}

void xpu_pool_memory_refresh(struct xpu_pool_memory *pool) { refresh(pool, -1); }

void xpu_pool_memories_refresh(int device) {
    for (struct xpu_pool_memory *at = first(); at; at = at->next)
        refresh(at, device);
}

static bool has_spare(struct xpu_pool_memory *pool) {
    uint64_t have, used;
    cuuint64_t keep = 0;
    if (!start_reading(pool, -1))
        return false;
    bool spare =
        pool->handle && ask(pool, false, &have) && ask(pool, true, &used) && have > used &&
        REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS &&
        have > keep;
    pthread_mutex_lock(&lock);
    pool->readers--;
    pthread_mutex_unlock(&lock);
    return spare;
}

bool xpu_pool_memories_have_spare(void) {
    bool spare = false;
    for (struct xpu_pool_memory *at = first(); at && !spare; at = at->next)
        spare = has_spare(at);
    return spare;
}

static bool trim(struct xpu_pool_memory *pool, int device) {
    if (!start_reading(pool, device))
        return false;
    xpu_operation_begin();
    if (pool->handle)
        (void)REAL(cuMemPoolTrimTo)(pool->handle, 0);
    else
        (void)REAL(cuDeviceGraphMemTrim)(pool->device);
    struct reading reading = take_reading(pool);
    bool less = stop_reading(pool, &reading);
    xpu_operation_end();
    return less;
}

/* The program did not ask for the trim: it must not end a stream capture that forbids such calls. */
bool xpu_pool_memories_trim(int device) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool brought = false;
    if (!first())
        return false;
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (struct xpu_pool_memory *at = first(); at; at = at->next)
        brought |= trim(at, device);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return brought;
}

static void pause_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL); }

/* Promises `bytes` of the pool's unused memory. Memory promised to other calls may be in use already, and
 * then counts twice: for a moment less unused memory is seen than exists, never more. */
static bool promise_unused(struct xpu_pool_growth *growth, uint64_t bytes) {
    struct xpu_pool_memory *pool = growth->pool;
    uint64_t have, used;
    if (!ask(pool, false, &have) || !ask(pool, true, &used) || used > have)
        return false;
    pthread_mutex_lock(&lock);
    bool enough = have - used >= pool->promised && have - used - pool->promised >= bytes;
    if (enough)
        pool->promised += growth->promised = bytes;
    pthread_mutex_unlock(&lock);
    return enough;
}

static bool charged(struct xpu_pool_growth *growth, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    growth->charged = bytes;
    growth->pool->held += bytes;
    growth->pool->pending += bytes;
    pthread_mutex_unlock(&lock);
    return true;
}

static bool charge(struct xpu_pool_growth *growth, uint64_t bytes) {
    return xpu_charge(growth->pool->index, growth->pool->kind, bytes) && charged(growth, bytes);
}

/* Called after the driver has given back all that it can. The charge is kept in the pool's sum, so that the
 * reservation ends with its operation. */
static CUresult charge_trimmed(struct xpu_pool_growth *growth, uint64_t bytes) {
    struct xpu_reservation reservation;
    CUresult result = xpu_reserve_at(&reservation, growth->pool->index, growth->pool->kind, bytes);
    if (result == CUDA_SUCCESS) {
        charged(growth, bytes);
        xpu_operation_end();
    }
    return result;
}

static uint32_t calls_of_others(int device) {
    uint32_t calls = 0;
    pthread_mutex_lock(&lock);
    for (struct xpu_pool_memory *at = first(); at; at = at->next)
        if (at->index == device)
            calls += at->calls;
    pthread_mutex_unlock(&lock);
    return calls - 1;
}

/* The known step by which the pool grows: the device's own step is never larger. */
static uint64_t step_of(const struct xpu_pool_memory *pool) {
    uint64_t seen = __atomic_load_n(&pool->seen, __ATOMIC_RELAXED), lowest = seen & -seen;
    if (!pool->handle)
        return XPU_STEP;
    return seen && lowest < LIKELY_STEP ? lowest : LIKELY_STEP;
}

/* A call under way may be charged for more than it will take, or be promised memory that it has taken
 * already. So before a refusal these calls are waited for, but not for long: one may itself be waiting for
 * the device. */
static CUresult charge_when_others_are_done(struct xpu_pool_growth *growth, uint64_t bytes) {
    int device = growth->pool->index, pauses = 0;
    uint64_t grown = xpu_round_up(bytes, step_of(growth->pool));
    CUresult result = CUDA_SUCCESS;
    while (__atomic_exchange_n(&last_chance, 1, __ATOMIC_ACQUIRE) && pauses++ < MOST_PAUSES)
        pause_briefly();
    while (calls_of_others(device) && pauses++ < MOST_PAUSES)
        pause_briefly();
    if (!charge(growth, grown) && !promise_unused(growth, bytes))
        result = charge_trimmed(growth, grown);
    __atomic_store_n(&last_chance, 0, __ATOMIC_RELEASE);
    return result;
}

CUresult xpu_pool_growth_begin(struct xpu_pool_growth *growth, struct xpu_pool_memory *pool, uint64_t bytes) {
    int index;
    *growth = (struct xpu_pool_growth){.pool = pool};
    CUresult result = xpu_granted(pool->device, &index);
    if (result != CUDA_SUCCESS)
        return result;
    for (int pauses = 0; __atomic_load_n(&last_chance, __ATOMIC_RELAXED) && pauses < MOST_PAUSES; pauses++)
        pause_briefly();
    xpu_operation_begin();
    pthread_mutex_lock(&lock);
    pool->admissions++;
    growth->before = pool->settled;
    growth->number = pool->calls++ ? 0 : pool->admissions;
    pthread_mutex_unlock(&lock);
    if (bytes && !(pool->handle && promise_unused(growth, bytes)) &&
        !charge(growth, xpu_round_up(bytes, step_of(pool))))
        result = charge_when_others_are_done(growth, bytes);
    if (result != CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        pool->calls--;
        pthread_mutex_unlock(&lock);
        xpu_operation_end();
    }
    return result;
}

bool xpu_pool_growth_end(struct xpu_pool_growth *growth) {
    struct xpu_pool_memory *pool = growth->pool;
    struct reading reading = take_reading(pool);
    pthread_mutex_lock(&lock);
    take_over(pool, &reading);
    pool->pending -= growth->charged;
    pool->promised -= growth->promised;
    pool->calls--;
    bool fits = settle(pool);
    pthread_mutex_unlock(&lock);
    xpu_operation_end();
    return fits;
}

uint64_t xpu_pool_growth_alone(const struct xpu_pool_growth *growth) {
    const struct xpu_pool_memory *pool = growth->pool;
    pthread_mutex_lock(&lock);
    bool alone = growth->number == pool->admissions && pool->settled > growth->before;
    uint64_t grown = alone ? pool->settled - growth->before : 0;
    pthread_mutex_unlock(&lock);
    return grown;
}

/* A destroyed pool keeps its memory until its last pointer is freed. */
static void end_if_unused(struct xpu_pool_memory *pool) {
    if (pool->destroyed && !pool->pointers) {
        const struct reading nothing = {.number = UINT64_MAX, .valid = true};
        take_over(pool, &nothing);
        (void)settle(pool);
    }
}

void xpu_pool_memory_pointer(struct xpu_pool_memory *pool, int change) {
    pthread_mutex_lock(&lock);
    pool->pointers += (uint32_t)change;
    end_if_unused(pool);
    pthread_mutex_unlock(&lock);
}

void xpu_pool_memory_exported(struct xpu_pool_memory *pool) {
    pthread_mutex_lock(&lock);
    if (!pool->exported && pool->counted) {
        pool->exported = true;
        xpu_exported(pool->index, (int64_t)pool->settled);
    }
    pthread_mutex_unlock(&lock);
}

void xpu_pool_memory_close(struct xpu_pool_memory *pool) {
    pthread_mutex_lock(&lock);
    pool->closed = true;
    while (pool->readers) { /* a question to the driver, which does not wait for the device */
        pthread_mutex_unlock(&lock);
        pause_briefly();
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
}

void xpu_pool_memory_closed(struct xpu_pool_memory *pool, bool destroyed) {
    pthread_mutex_lock(&lock);
    pool->closed = pool->destroyed = destroyed;
    end_if_unused(pool);
    pthread_mutex_unlock(&lock);
}
