/* /proc/self/exe, or without /proc the name that we were started by, leads to the installation. */
#include "installation.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char **environ;

bool installation_find(char lib[PATH_MAX]) {
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = '\0';
    } else {
        const char *started_as = (const char *)getauxval(AT_EXECFN);
        if (started_as == NULL || realpath(started_as, self) == NULL)
            return false;
    }
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(self, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    int written = snprintf(lib, PATH_MAX, "%s/lib/xpu-container-runtime", self);
    return written > 0 && written < PATH_MAX;
}

void become_python(const char *lib, const char *name, int count, char **words) {
    static char path[PATH_MAX];
    int written = snprintf(path, sizeof path, "%s/%s", lib, name);
    if (written < 0 || written >= PATH_MAX || access(path, R_OK) != 0)
        return;
    char **longer = malloc(((size_t)count + 5) * sizeof *longer);
    if (longer == NULL)
        return;
    longer[0] = (char *)PYTHON;
    longer[1] = (char *)"-I";
    longer[2] = (char *)"-S";
    longer[3] = path;
    memcpy(longer + 4, words, (size_t)count * sizeof *words);
    longer[4 + count] = NULL;
    void (*before)(int) = signal(SIGCHLD, SIG_DFL);
    execve(PYTHON, longer, environ);
    int reason = errno;
    signal(SIGCHLD, before);
    free(longer);
    errno = reason;
}
