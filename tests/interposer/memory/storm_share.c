/*
 * The storm's sharing: a board in a file, on which processes leave handles of their memory and take others'.
 * An entry may be half of two handles, or of memory that is gone: the driver then refuses it.
 *
 * The board begins with the observer's words. The observer can ask all processes to pause, and sees when none
 * has an operation under way. A call that has not returned may hold memory that it will give back, for as
 * long as the machine keeps it waiting. So only in a pause is the driver's report the work of ended calls
 * alone.
 */
#include "storm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PROCESSES = 64, PLACES = 16, WORDS = 8, IPC = 1, ALLOCATION = 2 };

struct place {
    uint64_t kind, pid, fd, size, words[WORDS]; /* atomic, each */
};

/* storm_sandbox.py has the first two in the same order. */
struct board {
    uint32_t pause, under_way[PROCESSES]; /* atomic; each process's operations that have not ended */
    struct place places[PLACES];
};

static struct board *board;
static uint32_t *mine;
static bool alone_in_process; /* atomic */

void board_open(const char *path, unsigned process) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    NEED(process < PROCESSES);
    NEED(fd >= 0 && ftruncate(fd, sizeof *board) == 0);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    NEED(board != MAP_FAILED);
    mine = &board->under_way[process];
    close(fd);
}

static bool must_wait(void) {
    return __atomic_load_n(&board->pause, __ATOMIC_SEQ_CST) ||
           __atomic_load_n(&alone_in_process, __ATOMIC_SEQ_CST);
}

void operation_begins(void) {
    for (;;) {
        while (must_wait())
            usleep(200);
        __atomic_add_fetch(mine, 1, __ATOMIC_SEQ_CST);
        if (!must_wait())
            return;
        operation_ended(); /* a pause came meanwhile, and the observer may have looked before */
    }
}

void operation_ended(void) { __atomic_sub_fetch(mine, 1, __ATOMIC_SEQ_CST); }

void others_wait(bool wait) {
    __atomic_store_n(&alone_in_process, wait, __ATOMIC_SEQ_CST);
    while (wait && __atomic_load_n(mine, __ATOMIC_SEQ_CST) != 1)
        usleep(50);
}

static void put(struct worker *worker, const struct place *what) {
    uint64_t *to = (uint64_t *)&board->places[below(worker, PLACES)];
    const uint64_t *from = (const uint64_t *)what;
    for (size_t i = 0; i < sizeof *what / sizeof *to; i++)
        __atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
}

static struct place take(struct worker *worker) {
    struct place found;
    const uint64_t *from = (const uint64_t *)&board->places[below(worker, PLACES)];
    uint64_t *to = (uint64_t *)&found;
    for (size_t i = 0; i < sizeof found / sizeof *to; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    return found;
}

/* ---- putting ---- */

static void end_pointer(struct thing *old, struct worker *worker) { MUST(cuMemFree_v2(old->pointer)); }

static void end_handle(struct thing *old, struct worker *worker) { MUST(cuMemRelease(old->handle)); }

static struct thing *export_pointer(struct worker *worker) {
    struct thing *made = thing(end_pointer);
    struct place place = {.kind = IPC, .pid = (uint64_t)getpid()};
    CUipcMemHandle handle;
    size_t size = some(worker, 8);
    if (!MAY(cuMemAlloc_v2(&made->pointer, size), (size / MIB + 4) * MIB)) {
        free(made);
        return NULL;
    }
    MUST(cuIpcGetMemHandle(&handle, made->pointer));
    memcpy(place.words, &handle, sizeof place.words);
    put(worker, &place);
    return made;
}

static struct thing *export_handle(struct worker *worker) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct thing *made = thing(end_handle);
    made->size = (size_t)(1 + below(worker, 4)) * 2 * MIB;
    if (!MAY(cuMemCreate(&made->handle, made->size, &properties, 0), made->size)) {
        free(made);
        return NULL;
    }
    MUST(cuMemExportToShareableHandle(&made->fd, made->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    put(worker,
        &(struct place){
            .kind = ALLOCATION, .pid = (uint64_t)getpid(), .fd = (uint64_t)made->fd, .size = made->size});
    return made;
}

struct thing *way_export(struct worker *worker) {
    return below(worker, 2) ? export_pointer(worker) : export_handle(worker);
}

/* ---- taking ---- */

static void end_open(struct thing *old, struct worker *worker) { MUST(cuIpcCloseMemHandle(old->pointer)); }

static void end_external(struct thing *old, struct worker *worker) {
    MUST(cuDestroyExternalMemory(old->external));
}

static bool open_pointer(const struct place *place, struct thing *made) {
    CUipcMemHandle handle;
    memcpy(&handle, place->words, sizeof place->words);
    made->end = end_open;
    return cuIpcOpenMemHandle_v2(&made->pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS;
}

/* A descriptor of another process; -1: the process is gone. */
static int descriptor(const struct place *place) {
    int process = (int)syscall(SYS_pidfd_open, (pid_t)place->pid, 0);
    int fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, (int)place->fd, 0);
    if (process >= 0)
        close(process);
    return fd;
}

static bool open_allocation(int fd, const struct place *place, bool external, struct thing *made) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC description = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle = {.fd = fd}, .size = place->size};
    CUresult result;
    made->end = external ? end_external : end_handle;
    result = external ? cuImportExternalMemory(&made->external, &description)
                      : cuMemImportFromShareableHandle(&made->handle, (void *)(uintptr_t)fd,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (!external || result != CUDA_SUCCESS) /* the driver owns a descriptor that it has imported */
        close(fd);
    return result == CUDA_SUCCESS;
}

struct thing *way_open(struct worker *worker) {
    struct place place = take(worker);
    struct thing *made = thing(NULL);
    bool opened = false;
    if (place.kind == IPC)
        opened = open_pointer(&place, made);
    else if (place.kind == ALLOCATION && place.pid != (uint64_t)getpid()) {
        int fd = descriptor(&place);
        opened = fd >= 0 && open_allocation(fd, &place, below(worker, 4) == 0, made);
    }
    if (opened)
        return made;
    free(made);
    return NULL;
}
