/*
 * The log: a mapped file, so that it is complete whenever the program ends. It has a header of HEADER bytes,
 * then records of two 64-bit words. bench/share/logs.py reads it.
 */
#define _GNU_SOURCE
#include "load.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER = 8192, OCTAVES = 40, STEPS = 8, RECORDS = 1 << 20, KIND_SHIFT = 62 };
/* Work that is completed sooner than this after the last record waits for the next one. */
#define LEAST_NS 500000

struct header {
    char magic[8];
    _Atomic uint32_t state;
    uint32_t pid;
    uint64_t begin; /* the common start */
    _Atomic uint64_t records;
    char failure[256];
    /* Launch calls by their time: [octave][step], 2^octave * (1 + step / STEPS) ns and more. */
    uint64_t launches[OCTAVES][STEPS];
};

struct record {
    uint64_t time; /* ns of CLOCK_MONOTONIC */
    uint64_t work; /* ns of the device's time completed so far | kind << KIND_SHIFT */
};

_Static_assert(sizeof(struct header) <= HEADER, "layout");

static struct header *header;
static struct record *records;
static uint64_t latest;

void record_open(const char *path) {
    const size_t size = HEADER + RECORDS * sizeof(struct record);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, (off_t)size) < 0) /* sparse: unwritten parts take no space */
        fail("%s: cannot be made", path);
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        fail("%s: cannot be mapped", path);
    close(file);
    records = (struct record *)((char *)mapped + HEADER);
    header = mapped;
    memcpy(header->magic, "XPULOAD1", 8);
    header->pid = (uint32_t)getpid();
}

void record_state(uint32_t state) {
    if (header)
        atomic_store(&header->state, state);
}

void record_begin(uint64_t time) {
    header->begin = time;
    record_state(STATE_RUNNING);
}

void record_failure(const char *text) {
    if (!header)
        return;
    strncpy(header->failure, text, sizeof header->failure - 1);
    record_state(STATE_FAILED);
}

void record_launch(uint64_t ns) {
    unsigned int octave = 63 - (unsigned int)__builtin_clzll(ns | STEPS);
    unsigned int step = (unsigned int)((ns | STEPS) >> (octave - 3)) & (STEPS - 1);
    __atomic_fetch_add(&header->launches[octave < OCTAVES ? octave : OCTAVES - 1][step], 1, __ATOMIC_RELAXED);
}

void record_done(uint64_t time, uint64_t work, enum record_kind kind) {
    uint64_t count = atomic_load(&header->records);
    time = time < latest ? latest : time;
    if (count == RECORDS || (kind == RECORD_DONE && time - latest < LEAST_NS))
        return;
    records[count] = (struct record){time, work | (uint64_t)kind << KIND_SHIFT};
    atomic_store(&header->records, count + 1);
    latest = time;
}
