/*
 * The table: shards of open addressing with linear probing, each with its own lock. An entry's place follows
 * from its key, and a removal closes its gap, so that there are no tombstones.
 */
#define _GNU_SOURCE
#include "table.h"
#include "cuda/driver/real.h"

#include <pthread.h>
#include <stdlib.h>

enum { SHARD_BITS = 5, SHARDS = 1 << SHARD_BITS, FIRST_CAPACITY = 64 };

/* The memory of a shard's entries. */
struct block {
    struct block *left; /* an earlier fork has left it behind */
    struct xpu_entry entries[];
};

struct shard {
    pthread_mutex_t lock;
    struct xpu_entry *entries; /* capacity of them; serial 0: empty */
    size_t capacity, count;    /* capacity: a power of two */
    char pad[128 - sizeof(pthread_mutex_t) - sizeof(void *) - 2 * sizeof(size_t)];
};

static struct shard shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static uint64_t last_serial; /* atomic */

static struct block *left[SHARDS];

static struct block *block_of(struct xpu_entry *entries) {
    return (struct block *)((char *)entries - offsetof(struct block, entries));
}

/* The parent's entries are not the child's. The child does not free them: another thread of the parent may
 * have been changing them at the fork. It keeps pointers to them, as LeakSanitizer in the child would
 * otherwise report them. */
static void forget_all(void) {
    for (int i = 0; i < SHARDS; i++) {
        if (shards[i].entries) {
            block_of(shards[i].entries)->left = left[i];
            left[i] = block_of(shards[i].entries);
        }
        shards[i] = (struct shard){.lock = PTHREAD_MUTEX_INITIALIZER};
    }
}
XPU_AT_FORK(forget_all)

static uint64_t hash(enum xpu_space space, uint64_t key) {
    /* Pointers are multiples of 512 or 2 MiB: all bits must count (Knuth's multiplicative method). */
    uint64_t mixed = (key ^ ((uint64_t)space << 56)) * 0x9e3779b97f4a7c15u;
    return mixed ^ mixed >> 32;
}

static struct shard *lock_shard(uint64_t hashed) {
    struct shard *shard = &shards[hashed & (SHARDS - 1)];
    pthread_mutex_lock(&shard->lock);
    return shard;
}

static size_t home(const struct shard *shard, uint64_t hashed) {
    return (hashed >> SHARD_BITS) & (shard->capacity - 1);
}

/* The entry, or the empty place for it; NULL in a shard without any. */
static struct xpu_entry *seek(const struct shard *shard, enum xpu_space space, uint64_t key) {
    if (!shard->capacity)
        return NULL;
    size_t at = home(shard, hash(space, key));
    while (shard->entries[at].serial && (shard->entries[at].key != key || shard->entries[at].space != space))
        at = (at + 1) & (shard->capacity - 1);
    return &shard->entries[at];
}

static bool grow(struct shard *shard) {
    struct shard larger = {.capacity = shard->capacity ? shard->capacity * 2 : FIRST_CAPACITY};
    struct block *block = calloc(1, sizeof *block + larger.capacity * sizeof *larger.entries);
    if (!block)
        return false;
    larger.entries = block->entries;
    for (size_t i = 0; i < shard->capacity; i++)
        if (shard->entries[i].serial)
            *seek(&larger, shard->entries[i].space, shard->entries[i].key) = shard->entries[i];
    struct xpu_entry *smaller = shard->entries;
    shard->entries = larger.entries;
    shard->capacity = larger.capacity;
    /* In this order: a child that is forked meanwhile writes to the shard's memory. */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (smaller)
        free(block_of(smaller));
    return true;
}

static void take_out(struct shard *shard, struct xpu_entry *entry) {
    size_t mask = shard->capacity - 1, gap = (size_t)(entry - shard->entries), at = gap;
    for (;;) {
        at = (at + 1) & mask;
        const struct xpu_entry *next = &shard->entries[at];
        if (!next->serial)
            break;
        /* It may move into the gap unless its home is behind the gap, on the way to its place. */
        if (((at - home(shard, hash(next->space, next->key))) & mask) >= ((at - gap) & mask)) {
            shard->entries[gap] = *next;
            gap = at;
        }
    }
    shard->entries[gap] = (struct xpu_entry){0};
    shard->count--;
}

bool xpu_table_put(struct xpu_entry *entry, struct xpu_entry *replaced) {
    entry->serial = __atomic_add_fetch(&last_serial, 1, __ATOMIC_RELAXED);
    *replaced = (struct xpu_entry){0};
    struct shard *shard = lock_shard(hash(entry->space, entry->key));
    bool fits = (shard->count + 1) * 3 <= shard->capacity * 2 || grow(shard);
    if (fits) {
        struct xpu_entry *place = seek(shard, entry->space, entry->key);
        *replaced = *place;
        shard->count += !place->serial;
        *place = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
    return fits;
}

bool xpu_table_find(enum xpu_space space, uint64_t key, struct xpu_entry *entry) {
    struct shard *shard = lock_shard(hash(space, key));
    const struct xpu_entry *place = seek(shard, space, key);
    *entry = place ? *place : (struct xpu_entry){0};
    pthread_mutex_unlock(&shard->lock);
    return entry->serial != 0;
}

bool xpu_table_take(enum xpu_space space, uint64_t key, uint64_t serial, struct xpu_entry *entry) {
    struct shard *shard = lock_shard(hash(space, key));
    struct xpu_entry *place = seek(shard, space, key);
    bool taken = place && place->serial && (!serial || place->serial == serial);
    *entry = taken ? *place : (struct xpu_entry){0};
    if (taken)
        take_out(shard, place);
    pthread_mutex_unlock(&shard->lock);
    return taken;
}

bool xpu_table_change(enum xpu_space space, uint64_t key, bool (*change)(struct xpu_entry *, void *),
                      void *data, struct xpu_entry *entry) {
    struct shard *shard = lock_shard(hash(space, key));
    struct xpu_entry *place = seek(shard, space, key);
    bool found = place && place->serial;
    if (found) {
        bool stays = change(place, data);
        *entry = *place;
        if (!stays)
            take_out(shard, place);
    }
    pthread_mutex_unlock(&shard->lock);
    return found;
}

/* Takes out the first entry of the shard that `which` chooses. */
static bool take_chosen(struct shard *shard, bool (*which)(const struct xpu_entry *, void *), void *data,
                        struct xpu_entry *entry) {
    bool taken = false;
    pthread_mutex_lock(&shard->lock);
    for (size_t i = 0; i < shard->capacity && !taken; i++)
        if (shard->entries[i].serial && which(&shard->entries[i], data)) {
            *entry = shard->entries[i];
            take_out(shard, &shard->entries[i]);
            taken = true;
        }
    pthread_mutex_unlock(&shard->lock);
    return taken;
}

void xpu_table_remove_if(bool (*which)(const struct xpu_entry *, void *), void *data,
                         void (*each)(const struct xpu_entry *, void *)) {
    struct xpu_entry entry;
    for (int i = 0; i < SHARDS; i++)
        while (take_chosen(&shards[i], which, data, &entry))
            each(&entry, data);
}

uint64_t xpu_table_serial(void) { return __atomic_load_n(&last_serial, __ATOMIC_RELAXED); }
