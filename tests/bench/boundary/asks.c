/*
 * asks FILE STEP...: makes libcuda's calls for video memory on a file that is no device, and prints the
 * answers. A step is a size in MiB to allocate, `w` and a size for a wrapped call, or `free`, which frees the
 * oldest.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 16 };
static uint32_t held[MOST], first, count;

/* A system call: driver.c may stand in for the C library's ioctl(). */
static int call(int fd, unsigned long request, void *argument) {
    return (int)syscall(SYS_ioctl, fd, request, argument);
}

static void allocate(int fd, uint64_t bytes, int is_wrapped) {
    unsigned char memory[128] = {0};
    struct {
        uint32_t root, parent, object, class;
        uint64_t at, rights;
        uint32_t bytes, flags, status, pad;
    } alloc = {1, 2, 100 + count, 0x40, (uintptr_t)memory, 0, sizeof memory, 0, 0xffff, 0};
    struct {
        uint32_t command, size;
        uint64_t at;
    } wrapped = {0x2b, sizeof alloc, (uintptr_t)&alloc};
    uint64_t offset;
    memcpy(memory + 64, &bytes, sizeof bytes);
    held[count++] = alloc.object;
    int result =
        is_wrapped ? call(fd, _IOWR('F', 211, wrapped), &wrapped) : call(fd, _IOWR('F', 0x2b, alloc), &alloc);
    int error = result < 0 ? errno : 0;
    memcpy(&offset, memory + 80, sizeof offset);
    printf("asked: %llu MiB, error %d, status 0x%x, at 0x%llx, own addresses %d\n",
           (unsigned long long)bytes >> 20, error, alloc.status, (unsigned long long)offset,
           alloc.at == (uintptr_t)memory && alloc.rights == 0);
    fflush(stdout);
}

int main(int words_count, char **words) {
    int fd = open(words[1], O_RDWR);
    for (int i = 2; i < words_count && count < MOST; i++) {
        uint32_t gone[4] = {1, 2, held[first], 0};
        if (strcmp(words[i], "free") == 0) {
            (void)call(fd, _IOWR('F', 0x29, gone), gone);
            first++;
        } else {
            int is_wrapped = *words[i] == 'w';
            allocate(fd, strtoull(words[i] + is_wrapped, 0, 10) << 20, is_wrapped);
        }
    }
    /* The filter must not match these: another type's ioctl, and nvidia-uvm's. */
    return call(fd, 0x2b, 0) == 0 || call(fd, 0x21, 0) == 0;
}
