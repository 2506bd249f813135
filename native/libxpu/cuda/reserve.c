/*
 * Reserves: letting calls in, and settling with the driver afterwards.
 */
#define _GNU_SOURCE
#include "reserve.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "devices.h"
#include "left.h"
#include "real.h"

XPU_NEED(cuMemPoolGetAttribute)
XPU_NEED(cuMemPoolTrimTo)
XPU_NEED(cuDeviceGetGraphMemAttribute)
XPU_NEED(cuDeviceGraphMemTrim)
XPU_NEED(cuThreadExchangeStreamCaptureMode)

/* The driver takes memory for a reserve in steps: for pools in large ones, unless the device itself has no
 * room for them; a driver that takes smaller ones is known by its figures. */
enum { LIKELY_STEP = 32 << 20 };
enum { NAP_NS = 20000, NAPS = 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct xpu_reserve *reserves; /* atomic; entries are added in front, and stay */
static int squeezing;                /* atomic; 1: a thread finds out whether what is left is enough */

static struct xpu_reserve *left; /* by parents */

static void forget_all(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    XPU_LEAVE_BEHIND(reserves, left);
    squeezing = 0;
}
XPU_AT_FORK(forget_all)

static struct xpu_reserve *first(void) { return __atomic_load_n(&reserves, __ATOMIC_ACQUIRE); }

/* A destroyed pool's handle may be handed out again. Under the lock. */
static struct xpu_reserve *find(CUmemoryPool pool, CUdevice device) {
    struct xpu_reserve *at = reserves;
    while (at && (at->closed || at->pool != pool || (!pool && at->device != device)))
        at = at->next;
    return at;
}

struct xpu_reserve *xpu_reserve_find(CUmemoryPool pool, CUdevice device) {
    pthread_mutex_lock(&lock);
    struct xpu_reserve *found = find(pool, device);
    pthread_mutex_unlock(&lock);
    return found;
}

static struct xpu_reserve *make(void) {
    struct xpu_reserve *made = reserves;
    while (made && (!made->destroyed || made->pointers || made->calls))
        made = made->next;
    if (made) {
        made->applied = __atomic_load_n(&made->read, __ATOMIC_RELAXED);
        __atomic_store_n(&made->seen, 0, __ATOMIC_RELAXED);
        made->closed = made->destroyed = made->exported = false;
    } else if ((made = calloc(1, sizeof *made))) {
        made->next = reserves;
        __atomic_store_n(&reserves, made, __ATOMIC_RELEASE);
    }
    return made;
}

struct xpu_reserve *xpu_reserve_of(CUmemoryPool pool, CUdevice device, bool counted) {
    int index = xpu_index_of(device);
    pthread_mutex_lock(&lock);
    struct xpu_reserve *found = find(pool, device);
    if (!found && (found = make())) {
        found->pool = pool;
        found->device = device;
        found->index = index;
        found->counted = counted;
        found->kind = pool ? XPU_POOL : XPU_GRAPH;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool ask(const struct xpu_reserve *reserve, bool used, uint64_t *bytes) {
    cuuint64_t value = 0;
    CUresult result =
        reserve->pool
            ? REAL(cuMemPoolGetAttribute)(
                  reserve->pool,
                  used ? CU_MEMPOOL_ATTR_USED_MEM_CURRENT : CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value)
            : REAL(cuDeviceGetGraphMemAttribute)(
                  reserve->device,
                  used ? CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT : CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value);
    *bytes = value;
    return result == CUDA_SUCCESS;
}

struct reading {
    uint64_t number, bytes;
    bool valid;
};

static struct reading take_reading(struct xpu_reserve *reserve) {
    struct reading reading = {.number = __atomic_add_fetch(&reserve->read, 1, __ATOMIC_SEQ_CST)};
    reading.valid = ask(reserve, false, &reading.bytes);
    return reading;
}

static void take_over(struct xpu_reserve *reserve, const struct reading *reading) {
    if (!reading->valid || reading->number <= reserve->applied)
        return;
    int64_t change = (int64_t)(reading->bytes - reserve->settled);
    reserve->applied = reading->number;
    reserve->settled = reading->bytes;
    __atomic_or_fetch(&reserve->seen, reading->bytes, __ATOMIC_RELAXED);
    if (change < 0)
        __atomic_add_fetch(&reserve->moved, 1, __ATOMIC_RELAXED);
    if (reserve->exported && change)
        xpu_exported(reserve->index, change);
}

/* Brings the account to the figure, with the lock held. What calls under way were charged for may be in the
 * figure already, or not yet: it is never added, and what was charged stays. More than all that is there only
 * if a call made the reserve grow by more than it was let in for: false if that is beyond the limit. */
static bool bring(struct xpu_reserve *reserve) {
    uint64_t most = reserve->settled + reserve->pending;
    uint64_t right = reserve->held < most ? reserve->held : most;
    bool fits = true;
    if (right < reserve->settled) {
        uint64_t more = reserve->settled - reserve->held;
        right = reserve->settled;
        fits = xpu_charge(reserve->index, reserve->kind, more);
        if (!fits)
            xpu_charge_anyway(reserve->index, reserve->kind, more);
    } else if (right < reserve->held) {
        xpu_give_back(reserve->index, reserve->kind, reserve->held - right);
    }
    reserve->held = right;
    return fits;
}

/* Until stop_reading, the reserve is not destroyed. Device: of the pages; -1: any. */
static bool start_reading(struct xpu_reserve *reserve, int device) {
    pthread_mutex_lock(&lock);
    bool may = !reserve->closed && reserve->counted && (device < 0 || reserve->index == device);
    reserve->readers += may;
    pthread_mutex_unlock(&lock);
    return may;
}

/* True: the figure has become less. */
static bool stop_reading(struct xpu_reserve *reserve, const struct reading *reading) {
    pthread_mutex_lock(&lock);
    uint64_t before = reserve->settled;
    take_over(reserve, reading);
    if (!reserve->calls || reserve->settled <= reserve->held)
        (void)bring(reserve); /* else it is for the call that did it */
    bool less = reserve->settled < before;
    reserve->readers--;
    pthread_mutex_unlock(&lock);
    return less;
}

static void refresh(struct xpu_reserve *reserve, int device) {
    if (start_reading(reserve, device)) {
        struct reading reading = take_reading(reserve);
        stop_reading(reserve, &reading);
    }
}

void xpu_reserve_refresh(struct xpu_reserve *reserve) { refresh(reserve, -1); }

void xpu_reserves_refresh(int device) {
    for (struct xpu_reserve *at = first(); at; at = at->next)
        refresh(at, device);
}

static bool has_spare(struct xpu_reserve *reserve) {
    uint64_t have, used;
    cuuint64_t keep = 0;
    if (!start_reading(reserve, -1))
        return false;
    bool spare = reserve->pool && ask(reserve, false, &have) && ask(reserve, true, &used) && have > used &&
                 REAL(cuMemPoolGetAttribute)(reserve->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) ==
                     CUDA_SUCCESS &&
                 have > keep;
    pthread_mutex_lock(&lock);
    reserve->readers--;
    pthread_mutex_unlock(&lock);
    return spare;
}

bool xpu_reserves_have_spare(void) {
    bool spare = false;
    for (struct xpu_reserve *at = first(); at && !spare; at = at->next)
        spare = has_spare(at);
    return spare;
}

static bool trim(struct xpu_reserve *reserve, int device) {
    if (!start_reading(reserve, device))
        return false;
    xpu_operation_begin();
    if (reserve->pool)
        (void)REAL(cuMemPoolTrimTo)(reserve->pool, 0);
    else
        (void)REAL(cuDeviceGraphMemTrim)(reserve->device);
    struct reading reading = take_reading(reserve);
    bool less = stop_reading(reserve, &reading);
    xpu_operation_end();
    return less;
}

/* A trim is none of the calls that the program makes: it must not end a capture that forbids such calls. */
bool xpu_reserves_trim(int device) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool brought = false;
    if (!first())
        return false;
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (struct xpu_reserve *at = first(); at; at = at->next)
        brought |= trim(at, device);
    (void)REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return brought;
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL); }

/* Takes `bytes` of what the reserve has and nobody uses. What other calls were let in for may be in use
 * already, and then counts twice: for the moment less is seen than there is, never more. */
static bool take_room(struct xpu_drawing *drawing, uint64_t bytes) {
    struct xpu_reserve *reserve = drawing->reserve;
    uint64_t have, used;
    if (!ask(reserve, false, &have) || !ask(reserve, true, &used) || used > have)
        return false;
    pthread_mutex_lock(&lock);
    bool enough = have - used >= reserve->promised && have - used - reserve->promised >= bytes;
    if (enough)
        reserve->promised += drawing->promised = bytes;
    pthread_mutex_unlock(&lock);
    return enough;
}

static bool charged(struct xpu_drawing *drawing, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    drawing->charged = bytes;
    drawing->reserve->held += bytes;
    drawing->reserve->pending += bytes;
    pthread_mutex_unlock(&lock);
    return true;
}

static bool charge(struct xpu_drawing *drawing, uint64_t bytes) {
    return xpu_charge(drawing->reserve->index, drawing->reserve->kind, bytes) && charged(drawing, bytes);
}

/* After the driver has been made to give back what it can. The charge is kept in the reserve's sum, so that
 * the claim ends with its operation. */
static CUresult charge_trimmed(struct xpu_drawing *drawing, uint64_t bytes) {
    struct xpu_claim claim;
    CUresult result = xpu_claim_at(&claim, drawing->reserve->index, drawing->reserve->kind, bytes);
    if (result == CUDA_SUCCESS) {
        charged(drawing, bytes);
        xpu_operation_end();
    }
    return result;
}

static uint32_t calls_of_others(int device) {
    uint32_t calls = 0;
    pthread_mutex_lock(&lock);
    for (struct xpu_reserve *at = first(); at; at = at->next)
        if (at->index == device)
            calls += at->calls;
    pthread_mutex_unlock(&lock);
    return calls - 1;
}

/* Larger than a device's own only for pools. */
static uint64_t step_of(const struct xpu_reserve *reserve) {
    uint64_t seen = __atomic_load_n(&reserve->seen, __ATOMIC_RELAXED), lowest = seen & -seen;
    if (!reserve->pool)
        return XPU_STEP;
    return seen && lowest < LIKELY_STEP ? lowest : LIKELY_STEP;
}

/* A call under way may be charged for more than it will take, or be promised what it has taken already. So
 * before the answer is no, those calls are waited out; but not for long, as one may itself be waiting for the
 * device. */
static CUresult squeeze(struct xpu_drawing *drawing, uint64_t bytes) {
    int device = drawing->reserve->index, naps = 0;
    uint64_t grown = xpu_whole(bytes, step_of(drawing->reserve));
    CUresult result = CUDA_SUCCESS;
    while (__atomic_exchange_n(&squeezing, 1, __ATOMIC_ACQUIRE) && naps++ < NAPS)
        nap();
    while (calls_of_others(device) && naps++ < NAPS)
        nap();
    if (!charge(drawing, grown) && !take_room(drawing, bytes))
        result = charge_trimmed(drawing, grown);
    __atomic_store_n(&squeezing, 0, __ATOMIC_RELEASE);
    return result;
}

CUresult xpu_draw(struct xpu_drawing *drawing, struct xpu_reserve *reserve, uint64_t bytes) {
    int index;
    *drawing = (struct xpu_drawing){.reserve = reserve};
    CUresult result = xpu_granted(reserve->device, &index);
    if (result != CUDA_SUCCESS)
        return result;
    for (int naps = 0; __atomic_load_n(&squeezing, __ATOMIC_RELAXED) && naps < NAPS; naps++)
        nap();
    xpu_operation_begin();
    pthread_mutex_lock(&lock);
    reserve->draws++;
    drawing->before = reserve->settled;
    drawing->number = reserve->calls++ ? 0 : reserve->draws;
    pthread_mutex_unlock(&lock);
    if (bytes && !(reserve->pool && take_room(drawing, bytes)) &&
        !charge(drawing, xpu_whole(bytes, step_of(reserve))))
        result = squeeze(drawing, bytes);
    if (result != CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        reserve->calls--;
        pthread_mutex_unlock(&lock);
        xpu_operation_end();
    }
    return result;
}

bool xpu_drawn(struct xpu_drawing *drawing) {
    struct xpu_reserve *reserve = drawing->reserve;
    struct reading reading = take_reading(reserve);
    pthread_mutex_lock(&lock);
    take_over(reserve, &reading);
    reserve->pending -= drawing->charged;
    reserve->promised -= drawing->promised;
    reserve->calls--;
    bool fits = bring(reserve);
    pthread_mutex_unlock(&lock);
    xpu_operation_end();
    return fits;
}

uint64_t xpu_drawn_anew(const struct xpu_drawing *drawing) {
    const struct xpu_reserve *reserve = drawing->reserve;
    pthread_mutex_lock(&lock);
    bool alone = drawing->number == reserve->draws && reserve->settled > drawing->before;
    uint64_t grown = alone ? reserve->settled - drawing->before : 0;
    pthread_mutex_unlock(&lock);
    return grown;
}

/* What a destroyed pool had stays with it until its last pointer is freed. */
static void end_if_unused(struct xpu_reserve *reserve) {
    if (reserve->destroyed && !reserve->pointers) {
        const struct reading nothing = {.number = UINT64_MAX, .valid = true};
        take_over(reserve, &nothing);
        (void)bring(reserve);
    }
}

void xpu_reserve_pointer(struct xpu_reserve *reserve, int change) {
    pthread_mutex_lock(&lock);
    reserve->pointers += (uint32_t)change;
    end_if_unused(reserve);
    pthread_mutex_unlock(&lock);
}

void xpu_reserve_exported(struct xpu_reserve *reserve) {
    pthread_mutex_lock(&lock);
    if (!reserve->exported && reserve->counted) {
        reserve->exported = true;
        xpu_exported(reserve->index, (int64_t)reserve->settled);
    }
    pthread_mutex_unlock(&lock);
}

void xpu_reserve_close(struct xpu_reserve *reserve) {
    pthread_mutex_lock(&lock);
    reserve->closed = true;
    while (reserve->readers) { /* a question to the driver: it does not wait for the device */
        pthread_mutex_unlock(&lock);
        nap();
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
}

void xpu_reserve_closed(struct xpu_reserve *reserve, bool destroyed) {
    pthread_mutex_lock(&lock);
    reserve->closed = reserve->destroyed = destroyed;
    end_if_unused(reserve);
    pthread_mutex_unlock(&lock);
}
