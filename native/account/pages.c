/*
 * Opens the container's two pages and checks that they fit this library's build. If they do not, the answer
 * is a sentence for people, and the callers refuse the device: never a card without a limit. Nothing here
 * keeps a descriptor, as the program may close or reuse any number.
 */
#define _GNU_SOURCE
#include "pages.h"
#include "atomic.h"
#include "log.h"
#include "process_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AGAIN "start the container anew with the XPU runtime"

enum { UNKNOWN, GOOD, BAD };
static int state; /* atomic */
struct xpu_pages xpu_pages_opened;
static char reason[512];
static bool may_pass; /* the reason may be gone at the next call */
static dev_t usage_device;
static ino_t usage_inode;

__attribute__((format(printf, 1, 2))) static bool because(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    return false;
}

/* By number: glibc's own is newer than the oldest image, or a cancellation point. */
static int open_raw(const char *path, int flags) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NOCTTY);
}

static int stat_raw(int fd, struct stat *found) { return (int)syscall(SYS_fstat, fd, found); }

void xpu_close(int fd) { syscall(SYS_close, fd); }

/* Half a byte at a time: bit by bit this would take a fifth of a program's start. */
static uint32_t crc32_more(uint32_t crc, const uint8_t *bytes, size_t size) {
    static const uint32_t of_half[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    for (size_t at = 0; at < size; at++) {
        crc ^= bytes[at];
        crc = crc >> 4 ^ of_half[crc & 15];
        crc = crc >> 4 ^ of_half[crc & 15];
    }
    return crc;
}

static uint32_t crc_of(const struct xpu_quota *quota) {
    const uint8_t *bytes = (const uint8_t *)quota;
    const size_t at = offsetof(struct xpu_quota, crc), after = at + sizeof quota->crc;
    uint32_t crc = crc32_more(0xffffffff, bytes, at);
    crc = crc32_more(crc, (const uint8_t[sizeof quota->crc]){0}, sizeof quota->crc);
    return ~crc32_more(crc, bytes + after, XPU_QUOTA_FIXED - after);
}

static bool abi_known(const char *path, uint32_t abi) {
    if (abi > XPU_ABI)
        return because("%s was written by a newer XPU runtime than these interposer libraries (layout "
                       "%u, known is %d): see that the host has one version of the runtime, then " AGAIN,
                       path, abi, XPU_ABI);
    if (abi < XPU_ABI)
        return because("%s was written by an older XPU runtime than these interposer libraries (layout "
                       "%u, known is %d): " AGAIN,
                       path, abi, XPU_ABI);
    return true;
}

static bool passes(int error) {
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN || error == EINTR;
}

static void cannot_open(const char *path, bool writable, int error) {
    may_pass = passes(error);
    if (error == ENOENT || error == ENOTDIR)
        because("%s is missing: this container has no slice of a device, or its file was covered; " AGAIN,
                path);
    else if (error == EMFILE || error == ENFILE)
        because(
            "%s cannot be opened, as there is no file descriptor left: close some or raise `ulimit -n`; the "
            "next call tries again",
            path);
    else
        because("%s cannot be opened for %s (errno %d): see that this process may use it, or " AGAIN, path,
                writable ? "writing" : "reading", error);
}

/* Maps `size` bytes of the file at `path`; NULL, with the reason, if it is missing or shorter. */
static void *map(const char *path, bool writable, uint64_t size, struct stat *found) {
    int fd = open_raw(path, writable ? O_RDWR : O_RDONLY);
    if (fd < 0) {
        cannot_open(path, writable, errno);
        return NULL;
    }
    void *mapped = MAP_FAILED;
    if (stat_raw(fd, found) != 0)
        because("%s cannot be examined (errno %d): " AGAIN, path, errno);
    else if (!S_ISREG(found->st_mode) || (uint64_t)found->st_size < size)
        because("%s is cut off (%lld bytes of %llu): " AGAIN, path, (long long)found->st_size,
                (unsigned long long)size);
    else {
        mapped = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
        may_pass = mapped == MAP_FAILED && passes(errno);
        if (mapped == MAP_FAILED)
            because("%s cannot be mapped (errno %d): see that the process may have %llu bytes more of "
                    "address space",
                    path, errno, (unsigned long long)size);
    }
    xpu_close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static uint64_t usage_size(const struct xpu_quota *quota) {
    uint64_t stride = sizeof(struct xpu_slot) + quota->device_count * sizeof(struct xpu_slot_device);
    return XPU_USAGE_HEADER + (quota->slot_count + 63) / 64 * 64 + quota->slot_count * stride;
}

static bool quota_good(const struct xpu_quota *quota) {
    if (memcmp(quota->magic, "XPUQUOTA", sizeof quota->magic) != 0)
        return because("%s is no quota page: " AGAIN, XPU_QUOTA_PATH);
    if (!abi_known(XPU_QUOTA_PATH, quota->abi))
        return false;
    if (quota->crc != crc_of(quota))
        return because("%s is damaged (its checksum is wrong): " AGAIN, XPU_QUOTA_PATH);
    if (quota->device_count > XPU_DEVICES || quota->slot_count < 1 || quota->slot_count > XPU_SLOTS_MAX ||
        quota->usage_size != usage_size(quota))
        return because("%s contradicts itself: " AGAIN, XPU_QUOTA_PATH);
    return true;
}

static bool usage_good(const struct xpu_usage *usage) {
    if (memcmp(usage->magic, "XPUUSAGE", sizeof usage->magic) != 0)
        return because("%s is no usage page: " AGAIN, XPU_USAGE_PATH);
    return abi_known(XPU_USAGE_PATH, usage->abi);
}

static bool open_both(void) {
    struct stat found;
    struct xpu_quota *quota = map(XPU_QUOTA_PATH, false, XPU_QUOTA_SIZE, &found);
    if (!quota)
        return false;
    uint64_t size = 0;
    struct xpu_usage *usage = NULL;
    if (quota_good(quota)) {
        size = quota->usage_size;
        usage = map(XPU_USAGE_PATH, true, size, &found);
    }
    if (!usage || !usage_good(usage)) {
        if (usage)
            munmap(usage, size);
        munmap(quota, XPU_QUOTA_SIZE);
        return false;
    }
    usage_device = found.st_dev;
    usage_inode = found.st_ino;
    xpu_pages_opened.usage = usage;
    __atomic_store_n(&xpu_pages_opened.quota, quota, __ATOMIC_RELEASE);
    return true;
}

const struct xpu_pages *xpu_pages_find(const char **why) {
    int known = XPU_LOAD(state);
    if (known == UNKNOWN) {
        if (!xpu_lock()) {
            *why = XPU_NO_LOCK;
            return NULL;
        }
        known = XPU_LOAD(state);
        if (known == UNKNOWN) {
            xpu_log_open();
            may_pass = false;
            known = open_both() ? GOOD : BAD;
            /* A lack of descriptors or of memory may pass: the next call tries again. */
            if (known == GOOD || !may_pass)
                XPU_STORE(state, known);
            XPU_DEBUG("pages: %s", known == GOOD ? "good" : reason);
        }
        xpu_unlock();
    }
    if (known == GOOD)
        return &xpu_pages_opened;
    *why = reason;
    return NULL;
}

bool xpu_lacks_descriptors(void) {
    int fd = open_raw("/", O_RDONLY | O_DIRECTORY);
    if (fd >= 0)
        xpu_close(fd);
    return fd < 0 && (errno == EMFILE || errno == ENFILE);
}

int xpu_usage_descriptor(void) {
    int fd = open_raw(XPU_USAGE_PATH, O_RDWR);
    struct stat found;
    /* After chroot or a mount the path may lead to another file: by its locks all processes would be dead. */
    if (fd >= 0 &&
        (stat_raw(fd, &found) != 0 || found.st_dev != usage_device || found.st_ino != usage_inode)) {
        xpu_close(fd);
        return -1;
    }
    return fd;
}

int xpu_device_index(const uint8_t uuid[16]) {
    const char *why;
    const struct xpu_pages *pages = xpu_pages_open(&why);
    for (unsigned device = 0; pages && device < pages->quota->device_count; device++)
        if (memcmp(pages->quota->devices[device].uuid, uuid, 16) == 0)
            return (int)device;
    return -1;
}

bool xpu_is_device(int device) {
    const char *why;
    return xpu_pages_open(&why) && device >= 0 && (unsigned)device < xpu_pages()->quota->device_count;
}
