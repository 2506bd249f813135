/*
 * Whether a supervisor can hold a memory limit by its answers: refuse [--anyway] [COMMAND...]. It sees only a
 * program's RM_ALLOCs of video memory and its RM_FREEs, and counts them. A call beyond the limit gets
 * NV_ERR_NO_MEMORY in the driver's place; all others are made as they are.
 *
 * libcuda should then return CUDA_ERROR_OUT_OF_MEMORY, and go on working. This is no enforcement yet: a
 * program could change its argument behind the check, which supervise.c's way prevents. A command has the
 * limit from its start; the program of CUDA has it once it has a context.
 */
#include "memory.h"

#include <stdio.h>
#include <string.h>

enum { SECONDS = 18, MOST = 4096, NO_MEMORY = 0x51 };
enum { MIB = 1 << 20 };
static const uint64_t LIMIT = 1ull << 30;

enum { BEGIN, LIMITED, PAST, AGAIN = PAST + WAYS, SUM, TIMING, END, ALL };
static const char *const names[ALL] = {
    [BEGIN] = "start and context",
    [LIMITED] = "256 MiB",
    [PAST + PLAIN] = "2 GiB by cuMemAlloc",
    [PAST + POOL] = "2 GiB by cuMemAllocAsync",
    [PAST + CREATED] = "2 GiB by cuMemCreate",
    [AGAIN] = "256 MiB again",
    [SUM] = "768 MiB",
    [TIMING] = "40 cuMemAlloc and cuMemFree",
    [END] = "end",
};

/* ---- the program ---- */

static bool expect(enum way way, size_t mib, int wanted, const char *when, uint64_t *memory) {
    char what[128];
    int status = cuda_try(way, mib * MIB, memory);
    if (status != wanted) {
        snprintf(what, sizeof what, "status of %s of %zu MiB %s", cuda_ways[way], mib, when);
        value(what, "%d", status);
    }
    snprintf(what, sizeof what, "%s of %zu MiB %s %s", cuda_ways[way], mib,
             wanted ? "is out of memory" : "works", when);
    check(status == wanted, what);
    if (wanted && !status)
        cuda_give(way, *memory);
    return !status;
}

static void works(uint64_t memory, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "copies to and from %s come back", what);
    check(cuda_copies(memory, 256ull * MIB), text);
    snprintf(text, sizeof text, "a kernel's result is in %s", what);
    check(cuda_computes(memory), text);
}

static void program(void) {
    uint64_t first = 0, second = 0, other;
    cuda_init();
    cuda_context();
    mark(LIMITED);
    bool has_first = expect(PLAIN, 256, 0, "in the limit", &first), has_second;
    for (int way = 0; way < WAYS; way++) {
        mark((unsigned int)(PAST + way));
        (void)expect(way, 2048, OUT_OF_MEMORY, "past the limit", &other);
    }
    mark(AGAIN);
    has_second = expect(PLAIN, 256, 0, "after refusals", &second);
    if (has_first)
        works(first, "memory from before");
    if (has_second)
        works(second, "memory from afterwards");
    mark(SUM);
    (void)expect(PLAIN, 768, OUT_OF_MEMORY, "with 512 MiB in use", &other);
    if (has_first)
        cuda_give(PLAIN, first);
    if (has_second)
        cuda_give(PLAIN, second);
    if (expect(PLAIN, 768, 0, "with all given back", &other))
        cuda_give(PLAIN, other);
    mark(TIMING);
    cuda_tell_time("filter and counts");
    mark(END);
}

/* ---- the supervisor ---- */

static struct {
    uint32_t root, object;
    uint64_t size;
} objects[MOST];
static unsigned int object_count, unnamed, seen[ALL], refused[ALL], lost;
static uint64_t used, most, limit = UINT64_MAX;
static double spent_us;

/* A call that the driver itself then refuses stays counted until it is freed. That suffices here. */
static void count(const struct memory_call *call) {
    unnamed += !call->head.object;
    if (object_count == MOST) {
        lost++;
        return;
    }
    objects[object_count].root = call->head.root;
    objects[object_count].object = call->head.object;
    objects[object_count++].size = call->parameters.size;
    used += call->parameters.size;
    most = used > most ? used : most;
}

static void forget(const struct ioctl *one) {
    struct rm_free call;
    if (one->size != sizeof call || !watch_read(one->thread, one->argument, &call, sizeof call))
        return;
    for (unsigned int i = 0; i < object_count; i++)
        if (objects[i].root == call.root && objects[i].object == call.object) {
            used -= objects[i].size;
            objects[i] = objects[--object_count];
            return;
        }
}

static void serve(const struct watched *watched, const struct ioctl *one, unsigned int step) {
    struct memory_call call;
    double begin = now_us();
    bool is_memory = memory_read(one, &call);
    seen[step]++;
    if (is_memory && call.parameters.size > limit - used && memory_refuse(watched, one, NO_MEMORY)) {
        refused[step]++;
    } else {
        if (is_memory)
            count(&call);
        else if (is_rm(one, RM_FREE))
            forget(one);
        watch_let(watched, one);
    }
    spent_us += now_us() - begin;
}

static void begin_step(unsigned int step) {
    /* The context's own memory is counted, and is added to the limit. */
    if (step == LIMITED) {
        value("video memory of the context", "%.1f MiB in %u objects", (double)used / MIB, object_count);
        limit = used + LIMIT;
    }
    if (step >= PAST)
        value("left of the limit", "%.1f MiB before %s", ((double)limit - (double)used) / MIB, names[step]);
}

int main(int words_count, char **words) {
    (void)words_count;
    char **command = arguments(words);
    bool is_command = *command != NULL, ended;
    unsigned int step = BEGIN, all = 0;
    struct ioctl one;
    if (is_command)
        limit = LIMIT;
    else
        check(watch_none(cuda_alone, SECONDS) == 0, "the program without a filter comes to its end");
    watch_only(memory_requests, sizeof memory_requests / sizeof *memory_requests);
    struct watched watched = watch_start(program, command, SECONDS);
    while (watch_next(&watched, &one, -1, &ended)) {
        if (one.is_mark) {
            if (!is_command && one.step < ALL)
                begin_step(step = one.step);
            watch_let(&watched, &one);
        } else {
            serve(&watched, &one, step);
        }
    }
    for (unsigned int i = 0; i < ALL && (!is_command || i == BEGIN); i++) {
        char name[64];
        snprintf(name, sizeof name, "notifications, %s", names[i]);
        value(name, "%u, %u refused", seen[i], refused[i]);
        all += seen[i];
    }
    value("notifications", "%u, %.1f us each in the supervisor", all, all ? spent_us / all : 0);
    value("most counted", "%.1f MiB; %u objects without a handle, %u not counted", (double)most / MIB,
          unnamed, lost);
    check(watch_end(&watched) == 0, "the program under the limit comes to its end");
    if (!is_command)
        check(step == END, "the program has all its steps behind it");
    return status_of_checks();
}
