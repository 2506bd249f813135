/*
 * libcuda: memory as the driver gives it, and the file that this process's bytes are in.
 *
 * The file has its greatest length from the start, and takes no memory before a write. Places in it are used
 * once: freed memory is cut out of it, unless another process still has it open.
 */
#define _GNU_SOURCE
#include "../core/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define DATA_SIZE ((uint64_t)1 << 56)

static int data = -1;
static uint64_t data_end;
static bool (*give_spare)(CUdevice device); /* pool.c's, which is above this file */

pthread_mutex_t cuda_memory = PTHREAD_MUTEX_INITIALIZER;

void cuda_when_short(bool (*give)(CUdevice device)) { give_spare = give; }

void cuda_forget_backings(void) {
    if (data >= 0)
        sim_close_after_fork(data);
    data = -1;
    data_end = 0;
}

static bool open_data(void) {
    if (data >= 0)
        return true;
    int fd = memfd_create("nvidia-sim", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct sim_request request = {.operation = SIM_DATA};
    if (fd < 0)
        return false;
    if (ftruncate(fd, (off_t)DATA_SIZE) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0 ||
        sim_call_fd(&request, fd, NULL, 0, NULL) != SIM_OK) {
        close(fd);
        return false;
    }
    data = fd;
    return true;
}

CUresult cuda_take(CUcontext context, CUdevice number, size_t size, bool host, struct backing **backing) {
    const struct cuda_device *device;
    struct sim_reply reply;
    TRY(cuda_device(number, &device));
    struct backing *made = calloc(1, sizeof *made);
    if (!made || !open_data()) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_request request = {.operation = SIM_ALLOCATE,
                                  .device = device->gpu->id,
                                  .mig = device->mig,
                                  .context = context ? context->id : SIM_NO_CONTEXT,
                                  .argument = {size, host ? SIM_HOST_MEMORY : 0}};
    CUresult result = cuda_result(sim_call(&request, NULL, &reply, NULL, 0));
    /* Unused memory in this process's pools is not worth a refusal. */
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !host && give_spare(number))
        result = cuda_result(sim_call(&request, NULL, &reply, NULL, 0));
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *made = (struct backing){.id = reply.value[0],
                             .size = size,
                             .data = -1,
                             .offset = data_end,
                             .device = number,
                             .host = host,
                             .references = 1};
    data_end += round_up(size, PAGE);
    *backing = made;
    return CUDA_SUCCESS;
}

void cuda_hold(struct backing *backing) { backing->references++; }

void cuda_drop(struct backing *backing) {
    if (!backing || --backing->references)
        return;
    struct sim_request request = {.operation = SIM_FREE, .argument = {backing->id}};
    struct sim_reply reply;
    bool own = backing->data < 0;
    if (sim_call(&request, NULL, &reply, NULL, 0) == SIM_OK && own && reply.value[0] == 0)
        (void)fallocate(data, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)backing->offset,
                        (off_t)round_up(backing->size, PAGE));
    if (!own)
        close(backing->data);
    free(backing);
}

uintptr_t cuda_reserve(size_t size, size_t alignment, uintptr_t hint) {
    size_t padded;
    if (alignment < PAGE)
        alignment = PAGE;
    if (__builtin_add_overflow(size, alignment, &padded))
        return 0;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (hint && hint % alignment == 0) {
        void *place = mmap((void *)hint, size, PROT_NONE, flags, -1, 0);
        if (place == (void *)hint)
            return hint;
        if (place != MAP_FAILED)
            munmap(place, size);
    }
    void *wide = mmap(NULL, padded, PROT_NONE, flags, -1, 0);
    if (wide == MAP_FAILED)
        return 0;
    uintptr_t start = (uintptr_t)wide, aligned = round_up(start, alignment);
    if (aligned > start)
        munmap(wide, aligned - start);
    if (start + padded > aligned + size)
        munmap((void *)(aligned + size), start + padded - (aligned + size));
    return aligned;
}

uintptr_t cuda_map(const struct backing *backing, size_t offset, size_t size, uintptr_t at) {
    uintptr_t place = at ? at : cuda_reserve(size, PAGE, 0);
    int file = backing->data < 0 ? data : backing->data;
    if (!place)
        return 0;
    if (mmap((void *)place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
             (off_t)(backing->offset + offset)) != MAP_FAILED)
        return place;
    if (!at)
        munmap((void *)place, size);
    return 0;
}

void cuda_unmap(uintptr_t start, size_t size) { munmap((void *)start, size); }

void cuda_unmap_only(uintptr_t start, size_t size) {
    (void)mmap((void *)start, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
               0);
}

CUresult cuda_share(struct backing *backing) {
    if (backing->shared)
        return CUDA_SUCCESS;
    struct sim_request request = {.operation = SIM_SHARE, .argument = {backing->id, backing->offset}};
    struct sim_reply reply;
    TRY(cuda_result(sim_call(&request, NULL, &reply, NULL, 0)));
    backing->key[0] = reply.value[0];
    backing->key[1] = reply.value[1];
    backing->shared = true;
    return CUDA_SUCCESS;
}

CUresult cuda_export(struct backing *backing, int *handle) {
    TRY(cuda_share(backing));
    struct sim_request request = {.operation = SIM_EXPORT, .argument = {backing->id}};
    CUresult result = cuda_result(sim_call_fd(&request, -1, NULL, 0, handle));
    return result == CUDA_SUCCESS && *handle < 0 ? CUDA_ERROR_UNKNOWN : result;
}

/* This process's number for a device of the driver's. */
static CUresult number_of(const struct sim_opened *opened, CUdevice *number) {
    const struct cuda_device *device;
    for (*number = 0; cuda_device(*number, &device) == CUDA_SUCCESS; ++*number)
        if (device->gpu->id == opened->device && device->mig == opened->mig)
            return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE; /* not visible here */
}

CUresult cuda_open(const uint64_t *key, int handle, struct backing **backing, bool *own) {
    struct sim_request request = {.operation = key ? SIM_OPEN : SIM_IMPORT};
    struct sim_opened opened = {0};
    int file = -1;
    if (key) {
        request.argument[0] = key[0];
        request.argument[1] = key[1];
    }
    TRY(cuda_result(sim_call_fd(&request, handle, &opened, sizeof opened, &file)));
    struct backing *made = file < 0 ? NULL : malloc(sizeof *made);
    CUdevice number = 0;
    CUresult result = made ? number_of(&opened, &number) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        struct sim_request undo = {.operation = SIM_FREE, .argument = {opened.allocation}};
        (void)sim_call(&undo, NULL, NULL, NULL, 0);
        if (file >= 0)
            close(file);
        free(made);
        return result;
    }
    *made = (struct backing){.id = opened.allocation,
                             .size = opened.size,
                             .data = file,
                             .offset = opened.offset,
                             .key = {opened.key[0], opened.key[1]},
                             .device = number,
                             .host = opened.flags == SIM_HOST_MEMORY,
                             .shared = true,
                             .references = 1};
    *backing = made;
    if (own)
        *own = opened.own;
    return CUDA_SUCCESS;
}
