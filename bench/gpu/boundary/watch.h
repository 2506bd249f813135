/*
 * A program whose ioctls are seen before they are made, by a filter of seccomp that asks
 * (seccomp_unotify(2)): what the boundary's programs share, and the program's own steps of CUDA. Each ioctl
 * is let through as it is.
 *
 * Numbers and offsets are those of NVIDIA's open kernel driver, from 515 to 595: nvos.h, nv_escape.h,
 * ctrl2080fb.h, ctrla06c.h. The driver looks at the number and the size alone.
 */
#ifndef XPU_BOUNDARY_WATCH_H
#define XPU_BOUNDARY_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RM_FREE = 0x29, RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, VID_HEAP_CONTROL = 0x4a, XFER = 211 };
enum { CLASS_MEMORY = 0x40, CLASS_SUBDEVICE = 0x2080, CLASS_CHANNEL_GROUP = 0xa06c };
enum { SKIPPED = 77 };

/* The begin of RM_ALLOC's argument, of 32 or 48 bytes. */
struct rm_alloc {
    uint32_t root, parent, object, class;
    uint64_t parameters;
};

struct rm_control {
    uint32_t client, object, command, flags;
    uint64_t parameters;
    uint32_t size, status;
};

/* Steps that the program marks, so that ioctls can be told apart. */
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
    char node[32]; /* of /dev, such as nvidiactl; empty: no descriptor of NVIDIA's */
    bool is_mark;
    unsigned int step;
};

/* Runs `command`, or `run` without one, in a child. It is killed with this program, which has `seconds`. */
struct watched watch_start(void (*run)(void), char **command, unsigned int seconds);
/* The next one, which waits until watch_let; false: none within `ms`, or the child has ended (*ended). */
bool watch_next(const struct watched *watched, struct ioctl *next, int ms, bool *ended);
void watch_let(const struct watched *watched, const struct ioctl *one);
bool watch_read(pid_t pid, uint64_t address, void *into, size_t size);
/* A copy of the child's descriptor, for this process. */
int watch_copy(const struct watched *watched, int fd);

/* In the child. */
void mark(enum step step);

/* What is printed: see ../record.py. */
__attribute__((format(printf, 2, 3))) void value(const char *name, const char *format, ...);
bool check(bool holds, const char *what);
int status_of_checks(void);
/* Ends with SKIPPED where no NVIDIA driver is behind /dev/nvidiactl, but for `--anyway` as the first word,
 * which is taken away. The words that are left are a command. */
char **arguments(char **words);

/* ---- cuda.c: steps of CUDA, which end the program where they fail ---- */

void cuda_init(void);
void cuda_context(void);
void cuda_allocate(size_t bytes);
/* Kernels of about 200 us, or empty ones; the last call waits for them. */
void cuda_launch(unsigned int count, bool empty);
void cuda_wait(void);

#endif
