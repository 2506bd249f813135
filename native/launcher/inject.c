/*
 * The new bytes are the engine's own with ours put in at one place, so that nothing else of a spec is ever
 * read and written again. They take the file's name in one step, with its owner, mode and attributes.
 */
#include "inject.h"

#include "json.h"
#include "spec.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MOST_BYTES = 4 << 20 };

/* What is looked for in a spec. */
struct found {
    const char *spec_begins; /* behind its '{' */
    const char *hooks_begin; /* behind the '{' of its hooks; NULL: it has none */
    bool hooks_empty;
    bool hooks_stage;        /* a stage of ours has hooks already */
    bool asks;               /* a variable of ours is set */
    bool cores, about_cores; /* XPU_CORES is; how that is held is */
    bool odd;                /* one of them is not plain, or a member is there twice */
    bool mount, user;        /* namespaces */
};

static bool begins(struct json_text text, const char *with) {
    return text.length >= strlen(with) && memcmp(text.start, with, strlen(with)) == 0;
}

static bool is_one_of(struct json_text text, const char *const *words) {
    for (; *words != NULL; words++)
        if (text.length == strlen(*words) && begins(text, *words))
            return true;
    return false;
}

static bool is_number(struct json_text text) {
    for (size_t i = 0; i < text.length; i++)
        if (!isdigit((unsigned char)text.start[i]))
            return false;
    return text.length > 0 && text.length <= 6 && text.start[0] != '0';
}

/* XPU_COUNT: more devices no machine has (request/parse.py). */
static bool is_count(struct json_text text) { return is_number(text) && text.length <= 2; }

/* A number with a unit of request/units.py: 512M, 4G, 4GiB, 25%. */
static bool is_amount(struct json_text text) {
    static const char *const units[] = {"M", "G", "MiB", "GiB", "MB", "GB", NULL};
    struct json_text number = {text.start, 0};
    while (number.length < text.length && isdigit((unsigned char)text.start[number.length]))
        number.length++;
    struct json_text unit = {text.start + number.length, text.length - number.length};
    bool is_share = number.length <= 2 && unit.length == 1 && *unit.start == '%';
    return is_number(number) && (is_share || is_one_of(unit, units));
}

/* Of the default cores.step, with which most refusals of this variable have to do. */
static bool is_cores(struct json_text text) {
    char last = text.length > 0 ? text.start[text.length - 1] : 'x';
    return is_number(text) && (last == '0' || last == '5') && text.length <= 2;
}

static bool is_sched(struct json_text text) {
    static const char *const words[] = {"fixed", "burst", "weight", NULL};
    return is_one_of(text, words);
}

static bool is_priority(struct json_text text) {
    static const char *const words[] = {"low", "normal", "high", NULL};
    return is_one_of(text, words);
}

/* What images for NVIDIA's devices set besides; the hook reads it. */
static bool is_capabilities(struct json_text text) {
    static const char *const known[] = {"all",      "compute", "utility", "video",
                                        "graphics", "display", "ngx",     NULL};
    const char *end = text.start + text.length;
    for (const char *word = text.start;; word++) {
        const char *comma = memchr(word, ',', (size_t)(end - word));
        struct json_text one = {word, (size_t)((comma != NULL ? comma : end) - word)};
        if (!is_one_of(one, known))
            return false;
        if (comma == NULL)
            return true;
        word = comma;
    }
}

static bool is_all(struct json_text text) { return text.length == 3 && begins(text, "all"); }

/* Whether a value may name a library that an interposer stands before (request/source.py: _bypasses). */
static bool may_bypass(struct json_text text) {
    return memchr(text.start, '$', text.length) != NULL ||
           memmem(text.start, text.length, ".real", 5) != NULL;
}

/* A variable that is none of these, or has another value, is the shim's: it refuses what is wrong in words
 * that reach people whole, and before the low-level runtime has begun. */
static void look_at_variable(struct json_text text, struct found *found) {
    static const struct {
        const char *name;
        bool (*is_plain)(struct json_text);
        bool asks, is_cores, is_about_cores;
    } plain[] = {
        {"XPU_MEM=", is_amount, true, false, false},
        {"XPU_COUNT=", is_count, true, false, false},
        {"XPU_CORES=", is_cores, true, true, false},
        {"XPU_SCHED=", is_sched, true, false, true},
        {"XPU_PRIORITY=", is_priority, true, false, true},
        {"NVIDIA_VISIBLE_DEVICES=", is_all, false, false, false},
        {"NVIDIA_DRIVER_CAPABILITIES=", is_capabilities, false, false, false},
    };
    static const char *const ours[] = {"XPU_", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
                                       "NVIDIA_GPU_MEMORY"};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        size_t length = strlen(plain[i].name);
        if (begins(text, plain[i].name) &&
            plain[i].is_plain((struct json_text){text.start + length, text.length - length})) {
            found->asks = found->asks || plain[i].asks;
            found->cores = found->cores || plain[i].is_cores;
            found->about_cores = found->about_cores || plain[i].is_about_cores;
            return;
        }
    }
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        found->odd = found->odd || begins(text, ours[i]);
    found->odd = found->odd || may_bypass(text);
}

static void look_at_process(struct json *json, struct found *found) {
    struct json_text name, text;
    bool seen = false;
    if (!json_take(json, '{'))
        found->odd = true;
    else
        for (bool first = true; json_member(json, first, &name); first = false) {
            if (!json_is(json, name, "env")) {
                json_skip(json);
                continue;
            }
            found->odd = found->odd || seen || !json_take(json, '[');
            seen = true;
            for (bool item = true; !found->odd && json_item(json, item); item = false)
                if (json_string(json, &text))
                    look_at_variable(text, found);
        }
}

static void look_at_namespace(struct json *json, struct found *found) {
    struct json_text name, text;
    bool seen = false;
    if (!json_take(json, '{'))
        found->odd = true;
    else
        for (bool first = true; json_member(json, first, &name); first = false) {
            if (!json_is(json, name, "type")) {
                json_skip(json);
                continue;
            }
            if (!json_string(json, &text))
                return;
            found->odd = found->odd || seen; /* Go takes the last one */
            seen = true;
            found->mount = found->mount || (text.length == 5 && begins(text, "mount"));
            found->user = found->user || (text.length == 4 && begins(text, "user"));
        }
}

static void look_at_linux(struct json *json, struct found *found) {
    struct json_text name;
    bool seen = false;
    if (!json_take(json, '{'))
        found->odd = true;
    else
        for (bool first = true; json_member(json, first, &name); first = false) {
            if (!json_is(json, name, "namespaces")) {
                json_skip(json);
                continue;
            }
            found->odd = found->odd || seen || !json_take(json, '[');
            seen = true;
            for (bool item = true; !found->odd && json_item(json, item); item = false)
                look_at_namespace(json, found);
        }
}

static void look_at_hooks(struct json *json, struct found *found, const char *stage) {
    struct json_text name;
    if (!json_take(json, '{')) {
        found->odd = true;
        return;
    }
    found->hooks_begin = json->at;
    found->hooks_empty = true;
    for (bool first = true; json_member(json, first, &name); first = false) {
        found->hooks_empty = false;
        found->hooks_stage =
            json_is(json, name, stage) || json_is(json, name, "poststop") || found->hooks_stage;
        json_skip(json);
    }
}

/* Whether the spec is one that the hooks can be put into here. */
static bool look(const char *text, size_t size, const char *stage, struct found *found) {
    struct json json = {text, text + size, false};
    struct json_text name;
    bool hooks = false, process = false, linux_ = false;
    if (!json_take(&json, '{'))
        return false;
    found->spec_begins = json.at;
    for (bool first = true; !found->odd && json_member(&json, first, &name); first = false) {
        bool is_hooks = json_is(&json, name, "hooks"), is_process = json_is(&json, name, "process");
        bool is_linux = json_is(&json, name, "linux");
        /* Go takes a part of each, Python the last one. */
        found->odd = (is_hooks && hooks) || (is_process && process) || (is_linux && linux_);
        hooks = hooks || is_hooks;
        process = process || is_process;
        linux_ = linux_ || is_linux;
        if (is_hooks)
            look_at_hooks(&json, found, stage);
        else if (is_process)
            look_at_process(&json, found);
        else if (is_linux)
            look_at_linux(&json, found);
        else
            json_skip(&json);
    }
    return json_ends(&json) && !found->odd && found->asks && (found->cores || !found->about_cores) &&
           !found->hooks_stage && found->mount && !found->user;
}

/* A text that grows; `fits` is false once it is too long, or had what JSON would need an escape for. */
struct line {
    char text[4 * PATH_MAX];
    size_t length;
    bool fits;
};

static void put(struct line *line, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int written = vsnprintf(line->text + line->length, sizeof line->text - line->length, format, values);
    va_end(values);
    line->fits = line->fits && written >= 0 && (size_t)written < sizeof line->text - line->length;
    if (line->fits)
        line->length += (size_t)written;
}

static void put_string(struct line *line, const char *before, const char *value) {
    for (const char *at = value; *at != '\0'; at++)
        if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
            line->fits = false;
    put(line, "\"%s%s\"", before, value);
}

static void put_variable(struct line *line, const char *name, const char *before) {
    const char *value = getenv(name);
    if (value == NULL || *value == '\0')
        return;
    put(line, ",");
    put_string(line, before, value);
}

/* As add_hooks in start/hooks_in_spec.py does: the image's variables must not reach the hook. */
static void put_hook(struct line *line, const struct invocation *call, const char *hook, const char *stage) {
    put(line, "\"%s\":[{\"path\":", stage);
    put_string(line, "", hook);
    put(line, ",\"args\":[\"xpu-container-runtime-hook\",\"%s\"", stage);
    if (call->log != NULL) {
        put(line, ",\"--log\",");
        put_string(line, "", call->log);
        put(line, ",\"--log-format\",");
        put_string(line, "", call->log_format != NULL ? call->log_format : "text");
    }
    put(line, "],\"env\":[\"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"");
    put_variable(line, "XPU_CONFIG", "XPU_CONFIG=");
    put_variable(line, "XPU_RUN_DIR", "XPU_RUN_DIR=");
    put(line, "]}]");
}

/* The labels and attributes of the file `from`, for the file `to`. */
static bool copy_attributes(int from, int to) {
    char names[1024], value[4096];
    ssize_t size = flistxattr(from, names, sizeof names);
    if (size < 0)
        return errno == ENOTSUP;
    for (const char *name = names; name < names + size; name += strlen(name) + 1) {
        ssize_t length = fgetxattr(from, name, value, sizeof value);
        if (length < 0 || fsetxattr(to, name, value, (size_t)length, 0) != 0)
            return false;
    }
    return true;
}

static bool write_all(int fd, const char *text, size_t size) {
    while (size > 0) {
        ssize_t put = write(fd, text, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        text += put;
        size -= (size_t)put;
    }
    return true;
}

/* Puts `line` into the file's `text` at `place`; false, and the old file is there, if that cannot be. */
static bool replace(int folder, int fd, const struct stat *st, const char *text, const char *place,
                    const struct line *line) {
    char name[64];
    snprintf(name, sizeof name, ".config.json.%ld", (long)getpid());
    int copy = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (copy < 0)
        return false;
    size_t before = (size_t)(place - text);
    struct stat mine;
    void (*limited)(int) =
        signal(SIGXFSZ, SIG_IGN); /* a file that may not be so large is the shim's to say */
    bool done = fstat(copy, &mine) == 0 &&
                ((mine.st_uid == st->st_uid && mine.st_gid == st->st_gid) ||
                 fchown(copy, st->st_uid, st->st_gid) == 0) &&
                fchmod(copy, st->st_mode & 07777) == 0 && copy_attributes(fd, copy) &&
                write_all(copy, text, before) && write_all(copy, line->text, line->length) &&
                write_all(copy, place, (size_t)st->st_size - before) &&
                renameat(folder, name, folder, "config.json") == 0;
    close(copy);
    signal(SIGXFSZ, limited);
    if (!done)
        unlinkat(folder, name, 0);
    return done;
}

static char *read_whole(int fd, size_t size) {
    char *text = malloc(size + 1);
    size_t filled = 0;
    ssize_t got = 1;
    while (text != NULL && filled <= size && got > 0) {
        got = read(fd, text + filled, size + 1 - filled);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            filled += (size_t)got;
    }
    if (got == 0 && filled == size)
        return text;
    free(text);
    return NULL;
}

/* Whether this may be a container of a pod: engines' annotations say so (request/pod.py). */
static bool is_of_pod(const char *text, size_t size) {
    return memmem(text, size, "io.kubernetes.", 14) != NULL;
}

static bool inject(const struct invocation *call, int folder, int fd, const char *hook, const char *stage,
                   bool pods) {
    static struct line line;
    struct stat st;
    /* With another hard link, or a kept original beside it, there is more to do. */
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_size > MOST_BYTES)
        return false;
    size_t size = (size_t)st.st_size;
    char *text = read_whole(fd, size);
    struct found found = {0};
    bool done = false;
    /* Annotations may ask for something too. */
    if (text != NULL && memmem(text, size, "yoyoworks.com", 13) == NULL && !spec_hides_letters(text, size) &&
        (pods || !is_of_pod(text, size)) && look(text, size, stage, &found)) {
        line = (struct line){.fits = true};
        if (found.hooks_begin == NULL)
            put(&line, "\"hooks\":{");
        put_hook(&line, call, hook, stage);
        put(&line, ",");
        put_hook(&line, call, hook, "poststop");
        put(&line, found.hooks_begin == NULL ? "}," : found.hooks_empty ? "" : ",");
        const char *place = found.hooks_begin != NULL ? found.hooks_begin : found.spec_begins;
        done = line.fits && replace(folder, fd, &st, text, place, &line);
    }
    free(text);
    return done;
}

/* Or not there. */
static bool is_absolute(const char *path) { return path == NULL || *path == '\0' || *path == '/'; }

/* The hook that belongs to the installation in `lib`; false where a part of it is missing, as after a removal
 * that has left the hook to containers that run. */
static bool find_hook(const char *lib, char hook[PATH_MAX]) {
    static const char below[] = "/lib/xpu-container-runtime";
    size_t length = strlen(lib);
    int written = snprintf(hook, PATH_MAX, "%s/hook.py", lib);
    if (length < sizeof below || written < 0 || written >= PATH_MAX || access(hook, R_OK) != 0)
        return false;
    written = snprintf(hook, PATH_MAX, "%.*s/bin/xpu-container-runtime-hook",
                       (int)(length - (sizeof below - 1)), lib);
    return written > 0 && written < PATH_MAX && access(hook, X_OK) == 0;
}

bool inject_hooks(const struct invocation *call, const char *lib, const char *stage, bool pods) {
    char hook[PATH_MAX];
    /* The hook's working directory is another. */
    if (!find_hook(lib, hook) || !is_absolute(getenv("XPU_CONFIG")) || !is_absolute(getenv("XPU_RUN_DIR")) ||
        !is_absolute(call->log) || call->systemd_cgroup || call->cgroup_manager != NULL ||
        (call->config != NULL && strcmp(call->config, "config.json") != 0))
        return false;
    const char *bundle = call->bundle != NULL && *call->bundle != '\0' ? call->bundle : ".";
    int folder = open(bundle, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return false;
    struct stat st;
    int fd = -1;
    /* The shim keeps the original beside a spec that it has edited, and takes its edit back first. */
    if (fstatat(folder, "config.json.xpu", &st, AT_SYMLINK_NOFOLLOW) != 0)
        fd = openat(folder, "config.json", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bool done = fd >= 0 && inject(call, folder, fd, hook, stage, pods);
    if (fd >= 0)
        close(fd);
    close(folder);
    return done;
}
