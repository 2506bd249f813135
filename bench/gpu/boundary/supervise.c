/*
 * Whether a supervisor can make a program's allocations itself: supervise [--anyway] [COMMAND...]. It takes a
 * copy of the descriptor (pidfd_getfd), copies the argument of an RM_ALLOC of video memory and its parameters
 * into memory of its own, makes the ioctl there, copies the results back, and answers. The program cannot
 * change the checked argument any more before the driver sees it.
 *
 * The driver gives more to a caller that has CAP_SYS_ADMIN or CAP_SYS_NICE, so this process gives them up
 * first. It finds out whether the memory works as the program's own, to which process NVML counts it, and
 * what it costs; and what the driver tells this process of the card's memory, through the program's own
 * handles.
 */
#define _GNU_SOURCE
#include "memory.h"
#include "nvml.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SECONDS = 18, MIB = 1 << 20, SUBDEVICES = 32 };
static const size_t BYTES = 64ull << 20;
static const unsigned int given_up[] = {CAP_SYS_ADMIN, CAP_SYS_NICE, CAP_PERFMON};

enum { BEGIN, BEFORE, HELD, FREED, TIMING, END };

/* ---- the program ---- */

static uint64_t allocated(enum way way) {
    char what[64];
    uint64_t memory = 0;
    int status = cuda_try(way, BYTES, &memory);
    snprintf(what, sizeof what, "%s of 64 MiB works", cuda_ways[way]);
    if (status)
        value("status", "%d", status);
    return check(status == 0, what) ? memory : 0;
}

static void program(void) {
    cuda_init();
    cuda_context();
    size_t before = cuda_free_bytes();
    mark(BEFORE);
    uint64_t memory = allocated(PLAIN);
    size_t held = cuda_free_bytes();
    mark(HELD);
    if (memory) {
        check(cuda_copies(memory, BYTES), "copies to and from the memory come back");
        check(cuda_computes(memory), "a kernel's result is in the memory");
        cuda_give(PLAIN, memory);
    }
    size_t after = cuda_free_bytes();
    mark(FREED);
    value("free memory, cuMemGetInfo", "%.1f MiB before, %.1f less with 64 MiB, %.1f less afterwards",
          (double)before / MIB, ((double)before - (double)held) / MIB,
          ((double)before - (double)after) / MIB);
    check(held + BYTES <= before + MIB, "64 MiB less are free with the memory");
    check(after + 2 * MIB >= before, "cuMemFree gives it back");
    for (enum way way = POOL; way < WAYS; way++)
        if ((memory = allocated(way)))
            cuda_give(way, memory);
    mark(TIMING);
    cuda_tell_time("made by the supervisor");
    mark(END);
}

/* ---- the supervisor ---- */

static struct {
    unsigned int seen, made, refused, other; /* allocations, by the driver's status; other calls */
    unsigned int status;                     /* of the last allocation that the driver refused */
    int error;
    unsigned int ioctl_size, parameters_size;
    double spent_us, driver_us;
} sum;
static struct {
    struct rm_alloc alloc;
    int fd;
} subdevices[SUBDEVICES];
static unsigned int subdevice_count;
static uint64_t reported[END + 1];

static bool give_up(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data))
        return false;
    for (unsigned int i = 0; i < sizeof given_up / sizeof *given_up; i++) {
        struct __user_cap_data_struct *half = &data[given_up[i] / 32];
        half->effective &= ~(1u << given_up[i] % 32);
        half->permitted &= ~(1u << given_up[i] % 32);
        half->inheritable &= ~(1u << given_up[i] % 32);
    }
    if (syscall(SYS_capset, &header, data) || syscall(SYS_capget, &header, data))
        return false;
    value("capabilities kept", "0x%08x%08x", data[1].effective, data[0].effective);
    return true;
}

/* The driver's answer to a copy of the call, and the results; or an errno. */
static int make(const struct watched *watched, const struct ioctl *one, struct memory_call *call) {
    struct memory_call own = *call;
    uint32_t rights[4] = {0}; /* one word, with room for more than any driver has */
    bool has_rights = one->size >= 40 && call->whole.rights;
    if (has_rights && !watch_read(one->thread, call->whole.rights, rights, sizeof *rights))
        return EFAULT;
    own.head.parameters = (uint64_t)(uintptr_t)&own.parameters;
    if (one->size >= 40)
        own.whole.rights = has_rights ? (uint64_t)(uintptr_t)rights : 0;
    int fd = watch_copy(watched, one->fd);
    if (fd < 0)
        return errno;
    double begin = now_us();
    int error = ioctl(fd, rm_request(RM_ALLOC, one->size), own.bytes) < 0 ? errno : 0;
    sum.driver_us += now_us() - begin;
    close(fd);
    own.head.parameters = call->head.parameters;
    if (one->size >= 40)
        own.whole.rights = call->whole.rights;
    *call = own;
    return error;
}

static void serve(const struct watched *watched, const struct ioctl *one) {
    struct memory_call call;
    struct rm_alloc alloc;
    uint32_t status = 0;
    double begin = now_us();
    if (!memory_read(one, &call)) {
        sum.other++;
        if (subdevice_count < SUBDEVICES && alloc_read(one, &alloc) && alloc.class == CLASS_SUBDEVICE) {
            subdevices[subdevice_count].alloc = alloc;
            subdevices[subdevice_count++].fd = one->fd;
        }
        watch_let(watched, one);
        return;
    }
    sum.seen++;
    sum.ioctl_size = one->size;
    sum.parameters_size = one->size == WHOLE ? call.whole.parameters_size : 0;
    int error = make(watched, one, &call);
    memcpy(&status, call.bytes + status_at(one->size), sizeof status);
    if (error)
        sum.error = error;
    else if (status)
        sum.status = status;
    /* The results come first: the program goes on with the answer. */
    if (!error && (!watch_write(watched, one, call.head.parameters, &call.parameters, call.parameters_size) ||
                   !watch_write(watched, one, one->argument, call.bytes, one->size)))
        error = sum.error = EFAULT;
    sum.made += !error && !status;
    sum.refused += error || status;
    watch_answer(watched, one, error);
    sum.spent_us += now_us() - begin;
}

/* The driver's own figures, by a control on a copy of a descriptor; list: NV2080_CTRL_FB_INFO. */
static void tell_card(const struct watched *watched) {
    enum { TOTAL, HEAP, HEAP_FREE, ASKED, LIST = 0x80 };
    struct {
        uint32_t count;
        struct {
            uint32_t index, kib;
        } list[LIST];
    } info;
    struct rm_control control = {.status = UINT32_MAX};
    uint64_t total = 0, used = 0;
    int error = 0;
    memset(&info, 0, sizeof info);
    /* The last subdevice comes first: some have ended with the client that cuInit used. */
    for (unsigned int i = subdevice_count; i-- > 0 && (error || control.status);) {
        const struct rm_alloc *subdevice = &subdevices[i].alloc;
        info.count = ASKED;
        info.list[TOTAL].index = 0x08;
        info.list[HEAP].index = 0x09;
        info.list[HEAP_FREE].index = 0x16;
        control = (struct rm_control){
            subdevice->root, subdevice->object, 0x20801303, 0, (uint64_t)(uintptr_t)&info,
            sizeof info,     UINT32_MAX,
        };
        int fd = watch_copy(watched, subdevices[i].fd);
        error = fd < 0 || ioctl(fd, rm_request(RM_CONTROL, sizeof control), &control) < 0 ? errno : 0;
        if (fd >= 0)
            close(fd);
    }
    bool has = nvml_card(&total, &used);
    value(
        "FB_GET_INFO_V2",
        "status 0x%x, errno %d, %u subdevices; MiB: total %.1f, heap %.1f, free %.1f, so used %.1f; NVML%s: "
        "total %.1f, used %.1f",
        control.status, error, subdevice_count, info.list[TOTAL].kib / 1024.0, info.list[HEAP].kib / 1024.0,
        info.list[HEAP_FREE].kib / 1024.0,
        ((double)info.list[HEAP].kib - (double)info.list[HEAP_FREE].kib) / 1024, has ? "" : " has none",
        (double)total / MIB, (double)used / MIB);
}

static void begin_step(const struct watched *watched, unsigned int step) {
    static const char *const names[] = {[BEFORE] = "before", [HELD] = "with it", [FREED] = "afterwards"};
    char name[64], others[256];
    if (step < BEFORE || step > FREED)
        return;
    reported[step] = nvml_settled(watched->pid, reported[step - 1]);
    uint64_t own = nvml_process(getpid(), NULL, 0);
    (void)nvml_process(watched->pid, others, sizeof others);
    snprintf(name, sizeof name, "NVML, %s", names[step]);
    value(name, "the program (%d) %.1f MiB, the supervisor (%d) %.1f MiB; others: %s", (int)watched->pid,
          (double)reported[step] / MIB, (int)getpid(), (double)own / MIB, *others ? others : "none");
    if (step == HELD)
        tell_card(watched);
    if (step == FREED)
        value("NVML counts the memory to the program", "%s",
              reported[HELD] >= reported[BEFORE] + BYTES && reported[FREED] + BYTES <= reported[HELD] ? "yes"
                                                                                                      : "no");
    /* The context's memory is not part of the timed work. */
    if (step == BEFORE)
        value("allocations at the context", "%u", sum.seen);
}

static void tell(bool is_command) {
    value("allocations", "%u seen, %u made, %u refused (the last: status 0x%x, errno %d); %u other calls",
          sum.seen, sum.made, sum.refused, sum.status, sum.error, sum.other);
    value("argument", "%u bytes, which says %u of parameters", sum.ioctl_size, sum.parameters_size);
    if (sum.seen)
        value("us of an allocation", "%.1f in the supervisor, of which %.1f in the driver",
              sum.spent_us / sum.seen, sum.driver_us / sum.seen);
    check(sum.made > 0, "the driver makes an allocation for another process");
    if (!is_command)
        check(sum.refused == 0, "it makes each of them");
}

int main(int count, char **words) {
    (void)count;
    char **command = arguments(words);
    bool is_command = *command != NULL, ended;
    unsigned int step = BEGIN;
    struct ioctl one;
    /* NVML's first card must be CUDA's. */
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    if (!check(give_up(), "CAP_SYS_ADMIN, CAP_SYS_NICE and CAP_PERFMON are given up"))
        return 1;
    if (!is_command)
        check(watch_none(cuda_alone, SECONDS) == 0, "the program without a filter comes to its end");
    watch_only(memory_requests, sizeof memory_requests / sizeof *memory_requests);
    struct watched watched = watch_start(program, command, SECONDS);
    /* This comes after the fork: NVML has threads and descriptors of its own. */
    if (!nvml_begin())
        value("NVML", "there is none, or it has no card");
    while (watch_next(&watched, &one, -1, &ended)) {
        if (one.is_mark) {
            step = one.step;
            if (!is_command)
                begin_step(&watched, step);
            watch_let(&watched, &one);
        } else {
            serve(&watched, &one);
        }
    }
    tell(is_command);
    check(watch_end(&watched) == 0, "the program comes to its end");
    if (!is_command)
        check(step == END, "the program has all its steps behind it");
    return status_of_checks();
}
