/*
 * A program can shift or scale the time that it sees: by a library in the place of clock_gettime
 * (libfaketime), or by a time namespace (time_namespaces(7)). With such a clock it would get more of the
 * device than its share, or owe a day for a second's use, together with its container's other programs.
 *
 * So this calls the kernel's own function, which is mapped into each process (vdso(7)), and subtracts the
 * offset of the time namespace. The mapped object has no fixed layout but ELF's. If the function is not
 * found, the system call does the same and takes longer.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

typedef int clock_function(clockid_t clock, struct timespec *time);

static clock_function *kernels; /* atomic */
static int registered;          /* atomic */
static int64_t offset;          /* of this process's time namespace, ns; atomic */

/* ---- the function that the kernel maps ---- */

#if defined(__x86_64__)
static const char name_of_it[] = "__vdso_clock_gettime";
#else
static const char name_of_it[] = "__kernel_clock_gettime";
#endif

struct image {
    const char *bias; /* the base of its addresses */
    const Elf64_Sym *symbols;
    const char *names;
    const uint32_t *hash, *gnu_hash;
};

static const void *at(const struct image *image, uint64_t address) { return image->bias + address; }

static void read_dynamic(struct image *image, const Elf64_Dyn *entry) {
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            image->symbols = at(image, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_STRTAB)
            image->names = at(image, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_HASH)
            image->hash = at(image, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_GNU_HASH)
            image->gnu_hash = at(image, entry->d_un.d_ptr);
    }
}

static bool read_image(struct image *image, const char *base) {
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)base;
    const Elf64_Phdr *segments = (const Elf64_Phdr *)(base + head->e_phoff);
    const Elf64_Dyn *dynamic = NULL;
    for (int i = 0; i < head->e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD && !image->bias)
            image->bias = base + segments[i].p_offset - segments[i].p_vaddr;
        else if (segments[i].p_type == PT_DYNAMIC)
            dynamic = (const Elf64_Dyn *)(base + segments[i].p_offset);
    }
    if (!image->bias || !dynamic)
        return false;
    read_dynamic(image, dynamic);
    return image->symbols && image->names && (image->hash || image->gnu_hash);
}

/* The number of symbols. Newer kernels have only the GNU table: its last chain ends with the last symbol. */
static uint32_t count_symbols(const struct image *image) {
    if (image->hash)
        return image->hash[1];
    uint32_t buckets = image->gnu_hash[0], first = image->gnu_hash[1], words = image->gnu_hash[2], last = 0;
    const uint32_t *bucket = image->gnu_hash + 4 + 2 * words, *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++)
        last = bucket[i] > last ? bucket[i] : last;
    if (last < first)
        return 0;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

static clock_function *find(void) {
    const char *base = (const char *)getauxval(AT_SYSINFO_EHDR);
    struct image image = {0};
    if (!base || !read_image(&image, base))
        return NULL;
    uint32_t count = count_symbols(&image);
    for (uint32_t i = 0; i < count; i++)
        if (image.symbols[i].st_shndx != SHN_UNDEF &&
            strcmp(image.names + image.symbols[i].st_name, name_of_it) == 0) {
            clock_function *found;
            const void *address = at(&image, image.symbols[i].st_value);
            memcpy(&found, &address, sizeof found);
            return found;
        }
    return NULL;
}

/* Not by way of libc, in which it may have been replaced as well. */
static int by_system_call(clockid_t clock, struct timespec *time) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(228L), "D"((long)clock), "S"(time)
                     : "rcx", "r11", "memory");
    return (int)result;
#else
    register long number __asm__("x8") = 113, result __asm__("x0") = clock;
    register struct timespec *place __asm__("x1") = time;
    __asm__ volatile("svc #0" : "+r"(result) : "r"(number), "r"(place) : "memory");
    return (int)result;
#endif
}

/* ---- the time namespace ---- */

static bool is_own(void) {
    char own[64] = "", childrens[64] = "";
    if (readlink("/proc/self/ns/time", own, sizeof own - 1) < 0 ||
        readlink("/proc/self/ns/time_for_children", childrens, sizeof childrens - 1) < 0)
        return false;
    return strcmp(own, childrens) == 0;
}

/* The file has the offset of the children's namespace, maybe another one. It is missing before Linux 5.6. */
static int64_t read_offset(void) {
    static const char key[] = "monotonic";
    char text[256] = "", *rest;
    int file = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0 || !is_own() || strncmp(text, key, sizeof key - 1) != 0)
        return 0;
    long long seconds = strtoll(text + sizeof key - 1, &rest, 10), nanoseconds = strtoll(rest, NULL, 10);
    return (int64_t)seconds * 1000000000 + (int64_t)nanoseconds;
}

static void look(void) { __atomic_store_n(&offset, read_offset(), __ATOMIC_RELAXED); }

/* Not when the library is loaded: few programs ask for the time. Two threads may be here together, and find
 * the same. */
static clock_function *prepare(void) {
    clock_function *found = find();
    look();
    /* A child may be the first process of another time namespace. */
    if (!__atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED))
        pthread_atfork(NULL, NULL, look);
    found = found ? found : by_system_call;
    __atomic_store_n(&kernels, found, __ATOMIC_RELEASE);
    return found;
}

uint64_t xpu_now(void) {
    struct timespec now;
    clock_function *function = __atomic_load_n(&kernels, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!function, 0))
        function = prepare();
    (void)function(CLOCK_MONOTONIC, &now);
    return (uint64_t)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec -
                      __atomic_load_n(&offset, __ATOMIC_RELAXED));
}
