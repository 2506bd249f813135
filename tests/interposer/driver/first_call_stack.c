/*
 * How much of a thread's stack the first calls of CUDA in a process need. Run it as `first_call_stack LIBRARY
 * SIZE`, with a libcuda and the bytes of the threads' stacks. Each call runs in a thread of its own. It
 * prints the bytes that each used: [when the call returned, when the thread had ended].
 *
 * The stack is painted before; bytes that have changed afterwards were in use. The thread itself paints and
 * looks too, because its start and its end need more than a small call with newer versions of glibc (2.41,
 * 2.43).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAINT = 0xa5, GUARD = 4096 };

static void *library, *context;
static unsigned long long pointer;
static size_t stack_size;

#define FIND(name, ...) ((int (*)(__VA_ARGS__))dlsym(library, #name))

static void *nothing(void *unused) { return unused; }
static void *init(void *unused) { return unused ? NULL : (void *)(long)FIND(cuInit, unsigned)(0); }

static void *retain(void *unused) {
    return unused ? NULL : (void *)(long)FIND(cuDevicePrimaryCtxRetain, void **, int)(&context, 0);
}

static void *allocate(void *unused) {
    int result = unused ? 1 : FIND(cuCtxSetCurrent, void *)(context);
    if (!result)
        result = FIND(cuMemAlloc_v2, unsigned long long *, size_t)(&pointer, 4 << 20);
    return (void *)(long)result;
}

static void *look(void *unused) {
    size_t free_bytes, total;
    int result = unused ? 1 : FIND(cuCtxSetCurrent, void *)(context);
    if (!result)
        result = FIND(cuMemGetInfo_v2, size_t *, size_t *)(&free_bytes, &total);
    return (void *)(long)result;
}

struct used {
    size_t returned, ended; /* bytes */
};

struct work {
    void *(*call)(void *);
    unsigned char *stack;
    size_t returned;
};

static size_t used_of(const unsigned char *stack) {
    size_t untouched = 0;
    while (untouched < stack_size && stack[untouched] == PAINT)
        untouched++;
    return stack_size - untouched;
}

/* Paints up to this frame and the 128 bytes below it that a function may use without moving the pointer. */
__attribute__((noinline)) static void paint(unsigned char *stack) {
    volatile unsigned char *end = (unsigned char *)__builtin_frame_address(0) - 256;
    for (volatile unsigned char *byte = stack; byte < end; byte++)
        *byte = PAINT;
}

static void *run(void *data) {
    struct work *work = data;
    paint(work->stack);
    void *result = work->call(NULL);
    work->returned = used_of(work->stack);
    return result;
}

/* The used part of the thread's stack. A call that needs more than the stack dies in the guard. */
static struct used used_by(void *(*call)(void *)) {
    unsigned char *whole =
        mmap(NULL, GUARD + stack_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct work work = {.call = call, .stack = whole + GUARD};
    pthread_attr_t attributes;
    pthread_t thread;
    void *result = NULL;
    if (whole == MAP_FAILED || mprotect(whole, GUARD, PROT_NONE))
        exit(1);
    memset(whole + GUARD, PAINT, stack_size);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, whole + GUARD, stack_size) ||
        pthread_create(&thread, &attributes, run, &work) || pthread_join(thread, &result) || result) {
        fprintf(stderr, "failed: %ld\n", (long)result);
        exit(1);
    }
    struct used used = {work.returned, used_of(work.stack)};
    munmap(whole, GUARD + stack_size);
    return used;
}

/* Prints the use beyond that of the thread itself. */
static void tell(const char *before, const char *name, void *(*call)(void *), struct used base) {
    struct used used = used_by(call);
    printf("%s\"%s\": [%zu, %zu]", before, name, used.returned - base.returned, used.ended - base.ended);
}

int main(int argc, char **argv) {
    library = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    stack_size = argc > 2 ? (size_t)atol(argv[2]) : 0;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    struct used base = used_by(nothing);
    tell("{", "cuInit", init, base);
    tell(", ", "cuDevicePrimaryCtxRetain", retain, base);
    tell(", ", "cuMemAlloc", allocate, base);
    tell(", ", "cuMemGetInfo", look, base);
    puts("}");
    return 0;
}
