/*
 * The compiled answer counts only if its format is known here (FORMAT in src/xpu_runtime/config/cache.py), if
 * it names the configuration file with its time, size and inode, and if only root or this user can write it.
 * Any doubt is RUNTIME_STALE, and Python looks.
 */
#include "runtime.h"

#include "lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

static const char default_config[] = "/etc/xpu/config.yaml";
static const char default_run_dir[] = "/run/xpu";

static const char format[] = "3";

static const char *from_environment(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : fallback;
}

const char *run_dir(void) { return from_environment("XPU_RUN_DIR", default_run_dir); }

/* This program under any name: executing it again would never end. */
static bool is_ourselves(const struct stat *candidate) {
    struct stat self;
    if (stat("/proc/self/exe", &self) != 0) {
        const char *started_as = (const char *)getauxval(AT_EXECFN);
        if (started_as == NULL || stat(started_as, &self) != 0)
            return false;
    }
    return candidate->st_dev == self.st_dev && candidate->st_ino == self.st_ino;
}

static bool is_program(const char *path, struct stat *st) {
    return stat(path, st) == 0 && S_ISREG(st->st_mode) && access(path, X_OK) == 0 && !is_ourselves(st);
}

static bool find_named(const char *name, char path[PATH_MAX]) {
    static const char *const folders[] = {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin",        "/usr/bin",
                                          "/sbin",           "/bin",           "/usr/libexec/crio"};
    struct stat st;
    for (size_t folder = 0; folder < sizeof folders / sizeof *folders; folder++) {
        int written = snprintf(path, PATH_MAX, "%s/%s", folders[folder], name);
        if (written > 0 && written < PATH_MAX && is_program(path, &st))
            return true;
    }
    return false;
}

bool runtime_default(char path[PATH_MAX]) { return find_named("runc", path) || find_named("crun", path); }

void runtime_again(const char *before, char path[PATH_MAX]) {
    struct stat st;
    if (!is_program(before, &st) && find_named(strrchr(before, '/') + 1, path))
        return;
    snprintf(path, PATH_MAX, "%s", before);
}

/* The identity of a file, as compile.py and low_level_runtime.py write it. */
static bool is_stamp(struct piece value, const struct stat *st) {
    char stamp[80];
    long long mtime_ns = (long long)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
    snprintf(stamp, sizeof stamp, "%lld:%lld:%llu", mtime_ns, (long long)st->st_size,
             (unsigned long long)st->st_ino);
    return is_text(value, stamp);
}

enum runtime_source runtime_find(char path[PATH_MAX]) {
    static char text[4 * PATH_MAX];
    const char *config = from_environment("XPU_CONFIG", default_config);
    struct stat st;
    if (stat(config, &st) != 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            return RUNTIME_STALE;
        return runtime_default(path) ? RUNTIME_KNOWN : RUNTIME_NONE;
    }

    int written = snprintf(path, PATH_MAX, "%s/launcher.conf", run_dir());
    if (written < 0 || written >= PATH_MAX || !read_lines(path, text, sizeof text))
        return RUNTIME_STALE;

    struct piece runtime = value_of(text, "runtime");
    if (!is_text(value_of(text, "format"), format) || !is_text(value_of(text, "config"), config) ||
        !is_stamp(value_of(text, "stamp"), &st) || runtime.start == NULL || *runtime.start != '/' ||
        runtime.length >= PATH_MAX)
        return RUNTIME_STALE;
    memcpy(path, runtime.start, runtime.length);
    path[runtime.length] = '\0';
    return is_program(path, &st) && is_trusted(&st) ? RUNTIME_KNOWN : RUNTIME_STALE;
}
