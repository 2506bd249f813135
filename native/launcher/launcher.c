/*
 * xpu-container-runtime: what an engine runs in place of runc.
 *
 * Most of what engines ask for (state, start, kill, delete, exec, and containers without an accelerator)
 * is the low-level runtime's alone, so this program becomes that runtime at once, with arguments,
 * environment, file descriptors and signals as they came. Only a container that may ask for an
 * accelerator costs a start of Python. Every descriptor opened here is close-on-exec, and standard
 * streams may be closed: nothing is written unless no program could be started.
 */
#include "argv.h"
#include "complain.h"
#include "handover.h"
#include "runtime.h"
#include "spec.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#ifndef PYTHON
#define PYTHON "/usr/bin/python3"
#endif

extern char **environ;

/* PREFIX/lib/xpu-container-runtime/shim.py for a launcher at PREFIX/bin, wherever PREFIX is. */
static bool find_shim(char path[PATH_MAX]) {
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = '\0';
    } else { /* no /proc here: the name that we were started by */
        const char *started_as = (const char *)getauxval(AT_EXECFN);
        if (started_as == NULL || realpath(started_as, self) == NULL)
            return false;
    }
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(self, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    int written = snprintf(path, PATH_MAX, "%s/lib/xpu-container-runtime/shim.py", self);
    return written > 0 && written < PATH_MAX && access(path, R_OK) == 0;
}

/* Becomes the shim, which is told what was read of the words; returns if that cannot be. */
static void become_shim(const struct invocation *line, int argc, char **argv) {
    static char shim[PATH_MAX], handover[HANDOVER_SIZE];
    if (!find_shim(shim))
        return;
    char **longer = malloc(((size_t)argc + 5) * sizeof *longer);
    if (longer == NULL)
        return;
    longer[0] = (char *)PYTHON;
    longer[1] = (char *)"-I";
    longer[2] = (char *)"-S";
    longer[3] = shim;
    handover_write(handover, line, argc - 1, argv + 1);
    longer[4] = handover;
    memcpy(longer + 5, argv + 1, (size_t)argc * sizeof *argv); /* with the NULL at the end */
    execve(PYTHON, longer, environ);
    int reason = errno;
    free(longer);
    errno = reason;
}

int main(int argc, char **argv) {
    static char runtime[PATH_MAX];
    char *nothing[] = {runtime, NULL};
    if (argc < 1) { /* older kernels let a program be started without even its name */
        argc = 1;
        argv = nothing;
    }

    struct invocation line = invocation_parse(argc - 1, argv + 1);
    enum spec_verdict spec = line.creates ? spec_look(line.bundle, line.config) : SPEC_PLAIN;
    argv[0] = runtime;
    enum runtime_source source = runtime_find(runtime);
    if (source == RUNTIME_KNOWN && spec != SPEC_ASKS)
        execve(runtime, argv, environ);

    /* Either the container asks for something, or which runtime it is must be worked out anew. */
    if (source != RUNTIME_NONE)
        become_shim(&line, argc, argv);
    if (source != RUNTIME_NONE && spec == SPEC_ASKS) {
        complain(
            line.log, line.log_format,
            "this container asks for an accelerator, and the part of xpu-container-runtime that grants it "
            "cannot be started: see that " PYTHON " runs, and install xpu-container-runtime again");
        return EXIT_FAILURE;
    }
    if (!runtime_default(runtime)) {
        complain(line.log, line.log_format,
                 "no runc or crun in the system's bin and sbin folders: install one of them");
        return EXIT_FAILURE;
    }
    execve(runtime, argv, environ);

    char message[PATH_MAX + 200];
    snprintf(message, sizeof message, "cannot start the low-level runtime %s: %s", runtime, strerror(errno));
    complain(line.log, line.log_format, message);
    return EXIT_FAILURE;
}
