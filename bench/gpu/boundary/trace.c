/*
 * Lists the ioctls of a program on NVIDIA's devices: trace [--anyway] [COMMAND...]. Without a command it runs
 * a small program of CUDA, step by step: cuInit, a context, 256 MiB by cuMemAlloc, 1000 launches.
 *
 * Limits can be held at this boundary only if launches make no ioctl, and if an allocation is an RM_ALLOC of
 * class 0x40 with its size at byte 64 of the parameters.
 */
#include "watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECONDS = 40, LAUNCHED = 1000, SIZE_AT = 64, PARAMETERS = 120 };
static const uint64_t BYTES = 256ull << 20;
static const char *const names[STEPS] = {
    [STARTING] = "start",         [INIT] = "cuInit", [CONTEXT] = "context", [ALLOCATION] = "cuMemAlloc",
    [LAUNCHES] = "1000 launches", [READY] = "end",
};

/* NVIDIA's nodes are told apart: a number of nvidiactl is another call of nvidia-uvm. */
enum { NODES = 8 };
static char nodes[NODES][32];
static unsigned int counts[STEPS][NODES][256], other[STEPS]; /* by number; of other files */
static unsigned int sizes[256][0x4000];
static unsigned int memory_objects, found;
static uint64_t largest;

static void program(void) {
    mark(INIT);
    cuda_init();
    mark(CONTEXT);
    cuda_context();
    mark(ALLOCATION);
    cuda_allocate(BYTES);
    mark(LAUNCHES);
    cuda_launch(LAUNCHED, true);
    cuda_wait();
    mark(READY);
}

static void look_at_alloc(const struct ioctl *one) {
    struct rm_alloc alloc;
    unsigned char parameters[PARAMETERS];
    uint64_t size;
    if (one->nr != RM_ALLOC || !watch_read(one->thread, one->argument, &alloc, sizeof alloc) ||
        alloc.class != CLASS_MEMORY ||
        !watch_read(one->thread, alloc.parameters, parameters, sizeof parameters))
        return;
    memcpy(&size, parameters + SIZE_AT, sizeof size);
    memory_objects++;
    largest = size > largest ? size : largest;
    found += size == BYTES;
}

/* The last place counts all that have no place of their own. */
static unsigned int place_of(const char *node) {
    unsigned int place = 0;
    while (place < NODES - 1 && *nodes[place] && strcmp(nodes[place], node) != 0)
        place++;
    snprintf(nodes[place], sizeof nodes[place], "%s", place < NODES - 1 ? node : "others");
    return place;
}

/* Whether its numbers are the resource manager's, as for nvidiactl and each card, and not nvidia-uvm's. */
static bool is_rm(const char *node) { return strncmp(node, "nvidia-", strlen("nvidia-")) != 0; }

static unsigned int count_step(enum step step) {
    char text[1024] = "";
    unsigned int all = 0;
    for (unsigned int node = 0; node < NODES; node++) {
        bool is_first = true;
        for (unsigned int nr = 0; nr < 256; nr++) {
            size_t length = strlen(text);
            unsigned int count = counts[step][node][nr];
            if (!count)
                continue;
            all += count;
            snprintf(text + length, sizeof text - length, "%s%s 0x%02x x %u", is_first && length ? "; " : "",
                     is_first ? nodes[node] : ",", nr, count);
            is_first = false;
        }
    }
    char name[64];
    snprintf(name, sizeof name, "ioctls, %s", names[step]);
    value(name, "%u%s%s (%u on other files)", all, *text ? ": " : "", text, other[step]);
    return all;
}

static void tell_sizes(unsigned int nr, const char *what) {
    char text[256] = "";
    for (unsigned int size = 0; size < 0x4000; size++) {
        size_t length = strlen(text);
        if (sizes[nr][size])
            snprintf(text + length, sizeof text - length, "%s%u bytes x %u", length ? ", " : "", size,
                     sizes[nr][size]);
    }
    value(what, "%s", *text ? text : "none");
}

static void tell(bool is_command) {
    for (unsigned int step = 0; step < STEPS; step++) {
        unsigned int all = is_command && step ? 0 : count_step(step);
        if (step == INIT && !is_command)
            check(all > 0, "cuInit's ioctls are seen");
        if (step == LAUNCHES && !is_command)
            check(all == 0, "1000 launches make no ioctl on the card's files");
    }
    tell_sizes(RM_ALLOC, "RM_ALLOC");
    tell_sizes(RM_CONTROL, "RM_CONTROL");
    tell_sizes(VID_HEAP_CONTROL, "VID_HEAP_CONTROL");
    value("RM_ALLOC of class 0x40", "%u, the largest of %llu bytes", memory_objects,
          (unsigned long long)largest);
    check(found > 0, "256 MiB are an RM_ALLOC of class 0x40 with their size at byte 64");
}

int main(int count, char **words) {
    (void)count;
    char **command = arguments(words);
    struct watched watched = watch_start(program, command, SECONDS);
    struct ioctl one;
    enum step step = STARTING;
    bool ended, reached = *command != NULL;
    while (watch_next(&watched, &one, -1, &ended)) {
        if (one.is_mark) {
            step = one.step < STEPS ? one.step : step;
            reached = reached || step == READY;
        } else if (*one.node && one.nr < 256) {
            counts[step][place_of(one.node)][one.nr]++;
            if (is_rm(one.node)) {
                sizes[one.nr][one.size & 0x3fff]++;
                look_at_alloc(&one);
            }
        } else {
            other[step]++;
        }
        watch_let(&watched, &one);
    }
    tell(*command != NULL);
    if (!reached)
        check(false, "the program comes to its end");
    return status_of_checks();
}
