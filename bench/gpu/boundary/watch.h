/*
 * Shows a program's ioctls before they are made, by a filter of seccomp that asks (seccomp_unotify(2)). The
 * boundary's programs share this, and the steps of CUDA. An ioctl is let through as it is, or answered in the
 * driver's place.
 *
 * Numbers and offsets are those of NVIDIA's open kernel driver, from 515 to 595: nvos.h, nv_escape.h,
 * ctrl2080fb.h, ctrla06c.h. The driver looks only at the number and the size.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RM_FREE = 0x29, RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, VID_HEAP_CONTROL = 0x4a, XFER = 211 };
enum { CLASS_MEMORY = 0x40, CLASS_SUBDEVICE = 0x2080, CLASS_CHANNEL_GROUP = 0xa06c };
enum { SKIPPED = 77 };

/* The begin of RM_ALLOC's argument, of 32 bytes (NVOS21), 40 or 48 (NVOS64: to 525, from 535). */
struct rm_alloc {
    uint32_t root, parent, object, class;
    uint64_t parameters;
};

struct rm_control {
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t size, status;
};

struct rm_free {
    uint32_t root, parent, object, status;
};

/* The whole number of one of NVIDIA's ioctls. */
static inline unsigned int rm_request(unsigned int nr, size_t size) {
    return 3u << 30 | (unsigned int)size << 16 | 'F' << 8 | nr;
}

/* Steps that the program marks, to tell ioctls apart. */
enum step { STARTING, INIT, CONTEXT, ALLOCATION, LAUNCHES, READY, STEPS };

struct watched {
    pid_t pid;
    int listener;
};

struct ioctl {
    uint64_t id;
    pid_t thread;
    int fd;
    unsigned int nr, size;
    uint64_t argument;
    char node[32]; /* below /dev, such as nvidiactl; empty: no descriptor of NVIDIA's */
    bool is_mark;
    unsigned int step;
};

/* Runs `command`, or `run` without one, in a child, for `seconds` at most. It is killed with this program. */
struct watched watch_start(void (*run)(void), char **command, unsigned int seconds);
/* The next watch_start sees only marks, and ioctls of these numbers and sizes. */
void watch_only(const unsigned int *requests, unsigned int count);
/* Runs `run` in a child unwatched. Returns its status. */
int watch_none(void (*run)(void), unsigned int seconds);
/* The next ioctl, which waits until watch_let. False: none within `ms`, or the child has ended (*ended). */
bool watch_next(const struct watched *watched, struct ioctl *next, int ms, bool *ended);
void watch_let(const struct watched *watched, const struct ioctl *one);
/* Answers in the kernel's place: the ioctl is not made, and returns 0 or fails with `error`. */
void watch_answer(const struct watched *watched, const struct ioctl *one, int error);
bool watch_read(pid_t pid, uint64_t address, void *into, size_t size);
/* For an ioctl that still waits. */
bool watch_write(const struct watched *watched, const struct ioctl *one, uint64_t address, const void *from,
                 size_t size);
/* A copy of the child's descriptor, for this process. */
int watch_copy(const struct watched *watched, int fd);
/* Waits for the child's end. Returns its status. */
int watch_end(const struct watched *watched);

/* Called in the child, which waits until the mark is let through. */
void mark(unsigned int step);

/* The output's format is that of ../record.py. */
__attribute__((format(printf, 2, 3))) void value(const char *name, const char *format, ...);
bool check(bool holds, const char *what);
int status_of_checks(void);
/* Ends with SKIPPED if no NVIDIA driver is behind /dev/nvidiactl, unless the first word is `--anyway`, which
 * is removed. The remaining words are a command. */
char **arguments(char **words);

/* ---- cuda.c: steps of CUDA, which end the program if they fail ---- */

void cuda_init(void);
void cuda_context(void);
void cuda_allocate(size_t bytes);
/* Kernels of about 200 us, or empty ones. cuda_wait waits for them. */
void cuda_launch(unsigned int count, bool empty);
void cuda_wait(void);
/* The same, but the kernels of at most two calls wait at a time: the card always has some. */
void cuda_keep_busy(unsigned int count);

/* Memory by each of CUDA's ways. Returns CUDA's own status, which is no error of the program. */
enum way { PLAIN, POOL, CREATED, WAYS };
enum { OUT_OF_MEMORY = 2 };
extern const char *const cuda_ways[WAYS];
int cuda_try(enum way way, size_t bytes, uint64_t *memory);
void cuda_give(enum way way, uint64_t memory);
/* Whether copied data comes back, and a kernel's result. Not for CREATED, which is not mapped. */
bool cuda_copies(uint64_t memory, size_t bytes);
bool cuda_computes(uint64_t memory);
size_t cuda_free_bytes(void);
/* Prints the time of a pair of cuMemAlloc and cuMemFree, the mean of 40. */
void cuda_tell_time(const char *how);
/* The same in a program that does nothing else: without a filter. */
void cuda_alone(void);
