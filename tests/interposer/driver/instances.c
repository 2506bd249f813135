/*
 * A program with two instances of libcuda, each in a namespace of the loader's own (dlmopen), as plugins and
 * tools are loaded. Both use the device. The account is read outside. Each line on stdin is a step:
 *
 *     NUMBER start [DEVICE] | alloc MIB | free | info
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct instance {
    void *library;
    unsigned long long pointer;
} instances[2];

#define CALL(name, types, ...) ((int(*) types)dlsym(each->library, #name))(__VA_ARGS__)

static int step(struct instance *each, const char *what, long number) {
    void *context;
    size_t free_bytes, total;
    if (strcmp(what, "start") == 0) {
        int result = CALL(cuInit, (unsigned), 0);
        if (!result)
            result = CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, (int)number);
        return result ? result : CALL(cuCtxSetCurrent, (void *), context);
    }
    if (strcmp(what, "alloc") == 0)
        return CALL(cuMemAlloc_v2, (unsigned long long *, size_t), &each->pointer, (size_t)number << 20);
    if (strcmp(what, "info") == 0)
        return CALL(cuMemGetInfo_v2, (size_t *, size_t *), &free_bytes, &total);
    return CALL(cuMemFree_v2, (unsigned long long), each->pointer);
}

int main(void) {
    char line[80], what[80];
    int instance;
    for (int i = 0; i < 2; i++)
        if (!(instances[i].library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW))) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    while (fgets(line, sizeof line, stdin)) {
        long number = 0;
        if (sscanf(line, "%d %79s %ld", &instance, what, &number) < 2)
            return 1;
        printf("%d\n", step(&instances[instance], what, number));
        fflush(stdout);
    }
    return 0;
}
