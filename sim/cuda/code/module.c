/*
 * libcuda: modules, and their contents. Images are not searched: any name is found in any module, and a
 * kernel's name gives its time: busy_500us, busy_20ms (also in C++'s form, _Z9busy_20msv). Some names do
 * more, and may end with a time as well: spin_until_3 runs until a kernel raise_3 of the same context has
 * ended; fault_illegal_address and fault_assert end their context.
 *
 * An image that is recognised (an ELF file, a fat binary, PTX) takes device memory by its size: at the first
 * use of something in it, or at once with CUDA_MODULE_LOADING=EAGER.
 */
#define _GNU_SOURCE
#include "../core/work.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GLOBAL_SIZE = 4096 };

struct global {
    char *name;
    CUdeviceptr pointer;
    struct global *next;
};

struct CUmod_st {
    uint32_t magic;
    CUcontext context;
    CUlibrary library; /* its library, or NULL */
    size_t cost;       /* bytes of device memory */
    struct backing *backing;
    struct CUfunc_st *functions;
    struct global *globals;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the objects of modules and libraries */

void cuda_forget_modules(void) { lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }

/* A number at *text, which is moved behind it. False: there is none, or one above `most`. */
static bool number_at(const char **text, const char *end, uint64_t most, uint64_t *number) {
    const char *from = *text;
    for (*number = 0; *text < end && **text >= '0' && **text <= '9'; ++*text) {
        *number = *number * 10 + (uint64_t)(**text - '0');
        if (*number > most)
            return false;
    }
    return *text > from;
}

/* A time such as 500us, up to the end; 0: it is no time. */
static uint64_t time_at(const char *text, const char *end) {
    static const struct {
        const char *unit;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
    uint64_t amount;
    if (!number_at(&text, end, SIM_MAX_KERNEL_NS, &amount))
        return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strlen(units[i].unit) == (size_t)(end - text) &&
            strncmp(text, units[i].unit, (size_t)(end - text)) == 0)
            return amount * units[i].ns <= SIM_MAX_KERNEL_NS ? amount * units[i].ns : SIM_MAX_KERNEL_NS;
    return 0;
}

/* A kernel's work by its name. */
static void set_nature(struct CUfunc_st *function) {
    static const struct {
        const char *start;
        enum sim_kind kind;
        unsigned number; /* 0: the name has it */
    } kinds[] = {{"busy", SIM_KERNEL, 1},
                 {"spin_until_", SIM_SPIN, 0},
                 {"raise_", SIM_RAISE, 0},
                 {"fault_illegal_address", SIM_FAULT, SIM_ILLEGAL_ADDRESS},
                 {"fault_assert", SIM_FAULT, SIM_ASSERT}};
    const char *name = function->name;
    size_t length = strlen(name);
    if (strncmp(name, "_Z", 2) == 0) {
        char *text;
        size_t said = strtoul(name + 2, &text, 10);
        length = said < strlen(text) ? said : strlen(text);
        name = text;
    }
    const char *end = name + length;
    function->kind = SIM_KERNEL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *rest = name + strlen(kinds[i].start);
        uint64_t number = kinds[i].number;
        if (strncmp(name, kinds[i].start, strlen(kinds[i].start)) != 0 || rest > end ||
            (!number && !number_at(&rest, end, SIM_MAX_FLAGS - 1, &number)))
            continue;
        uint64_t ns = rest < end && *rest == '_' ? time_at(rest + 1, end) : 0;
        if (rest < end && !ns)
            continue;
        function->kind = kinds[i].kind;
        function->flag_number = kinds[i].kind == SIM_KERNEL ? 0 : (unsigned)number;
        function->ns = ns;
    }
}

static bool starts(const void *image, const void *with, size_t size) {
    const unsigned char *one = image, *other = with;
    for (size_t i = 0; i < size; i++)
        if (one[i] != other[i]) /* not memcmp: an image may be shorter */
            return false;
    return true;
}

size_t cuda_image_size(const void *image) {
    static const uint32_t wrapper = 0x466243b1,
                          binary = 0xba55ed50; /* nvcc's; the first points to the second */
    if (starts(image, &wrapper, sizeof wrapper)) {
        const void *inner;
        memcpy(&inner, (const char *)image + 8, sizeof inner);
        image = inner;
    }
    if (starts(image, &binary, sizeof binary)) {
        uint16_t header;
        uint64_t size;
        memcpy(&header, (const char *)image + 6, sizeof header);
        memcpy(&size, (const char *)image + 8, sizeof size);
        return (size_t)(header + size);
    }
    if (starts(image, ELFMAG, SELFMAG)) {
        Elf64_Ehdr header;
        memcpy(&header, image, sizeof header);
        return (size_t)(header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize);
    }
    return starts(image, ".version", 8) || starts(image, "//", 2) ? strlen(image) : 0;
}

static bool eager(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode && strcmp(mode, "EAGER") == 0;
}

CUDA_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    TRY(cuda_ready());
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuda_module_ready(CUmodule module) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&cuda_memory);
    if (module->cost && !module->backing)
        result = cuda_take(module->context, module->context->device, module->cost, false, &module->backing);
    return cuda_leave(result);
}

CUresult cuda_module_load(CUmodule *module, size_t bytes, CUlibrary library) {
    CUcontext context;
    TRY(cuda_current(&context));
    struct CUmod_st *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->magic = MODULE_MAGIC;
    made->context = context;
    made->library = library;
    made->cost = round_up(bytes, PAGE);
    CUresult result = eager() ? cuda_module_ready(made) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *module = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUcontext context;
    TRY(cuda_current(&context));
    if (!module || !image)
        return CUDA_ERROR_INVALID_VALUE;
    return cuda_module_load(module, cuda_image_size(image), NULL);
}

CUDA_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                     CUjit_option *options, void **values) {
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    return cuModuleLoadData(module, image);
}

CUDA_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

CUresult cuda_file_read(const char *path, void **image, size_t *size) {
    FILE *file = path ? fopen(path, "re") : NULL;
    size_t capacity = 65536;
    char *bytes = NULL;
    if (!file)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    *size = 0;
    do {
        char *larger = realloc(bytes, capacity *= 2);
        if (!larger)
            break;
        bytes = larger;
        *size += fread(bytes + *size, 1, capacity - *size - 1, file);
    } while (*size == capacity - 1);
    bool bad = !bytes || *size == capacity - 1 || ferror(file);
    fclose(file);
    if (bad) {
        free(bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bytes[*size] = 0;
    *image = bytes;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    void *image;
    size_t size;
    TRY(cuda_file_read(path, &image, &size));
    CUresult result = cuModuleLoadData(module, image);
    free(image);
    return result;
}

void cuda_functions_free(struct CUfunc_st *functions) {
    while (functions) {
        struct CUfunc_st *next = functions->next;
        functions->magic = 0;
        free(functions->name);
        free(functions);
        functions = next;
    }
}

CUDA_API CUresult cuModuleUnload(CUmodule module) {
    TRY(cuda_ready());
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    module->magic = 0;
    cuda_functions_free(module->functions);
    while (module->globals) {
        struct global *next = module->globals->next;
        (void)cuMemFree_v2(module->globals->pointer);
        free(module->globals->name);
        free(module->globals);
        module->globals = next;
    }
    pthread_mutex_lock(&cuda_memory);
    cuda_drop(module->backing);
    pthread_mutex_unlock(&cuda_memory);
    free(module);
    return CUDA_SUCCESS;
}

struct CUfunc_st *cuda_function_of(struct CUfunc_st **functions, const char *name) {
    pthread_mutex_lock(&lock);
    struct CUfunc_st *function = *functions;
    while (function && strcmp(function->name, name) != 0)
        function = function->next;
    if (!function)
        function = calloc(1, sizeof *function);
    if (function && !function->magic) {
        function->name = strdup(name);
        function->magic = FUNCTION_MAGIC;
        set_nature(function);
        function->next = *functions;
        *functions = function;
    }
    pthread_mutex_unlock(&lock);
    return function;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    TRY(cuda_ready());
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(cuda_module_ready(module));
    *function = cuda_function_of(&module->functions, name);
    if (!*function)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*function)->module = module;
    return CUDA_SUCCESS;
}

/* A variable of a module: always of one size, and memory like any other. */
CUDA_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                                       const char *name) {
    TRY(cuda_ready());
    if (!module || module->magic != MODULE_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuda_module_ready(module);
    pthread_mutex_lock(&lock);
    struct global *global = module->globals;
    while (global && strcmp(global->name, name) != 0)
        global = global->next;
    if (!global && result == CUDA_SUCCESS) {
        CUdeviceptr made = 0;
        result = cuMemAlloc_v2(&made, GLOBAL_SIZE);
        global = result == CUDA_SUCCESS ? malloc(sizeof *global) : NULL;
        if (global) {
            *global = (struct global){strdup(name), made, module->globals};
            module->globals = global;
        }
    }
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS && global && pointer)
        *pointer = global->pointer;
    if (result == CUDA_SUCCESS && bytes)
        *bytes = GLOBAL_SIZE;
    return result;
}
