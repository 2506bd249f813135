/*
 * A record is a symlink, and its target is the text: one system call makes it whole or not at all, and
 * another one reads it. It is in a fixed folder, because its text leads to the other folders. Its name is a
 * number made of the container's id and the runtime's root folder, and the text has both. Python reads it too
 * (src/xpu_runtime/start/created.py).
 */
#include "created.h"

#include "lines.h"
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char parent[] = "/run/xpu";
static const char folder[] = "/run/xpu/created";

static const char format[] = "1";

/* The lines of a record. */
enum { FORMAT, RUNTIME, CONFIG, RUN_DIR, ROOT, ID, LINES };

struct record {
    char path[sizeof folder + 20];
    char text[PATH_MAX];
};

/* `path` relative to the root folder; "" stays. */
static bool absolute(const char *path, char found[PATH_MAX]) {
    size_t length = 0;
    if (*path != '\0' && *path != '/') {
        if (getcwd(found, PATH_MAX) == NULL)
            return false;
        length = strlen(found);
        if (length > 1)
            found[length++] = '/';
    }
    int written = snprintf(found + length, PATH_MAX - length, "%s", path);
    return written >= 0 && (size_t)written < PATH_MAX - length;
}

/* Adds the names of `rest` to the folder `found`, "" being the root folder. None of them exists yet, so a
 * ".." removes the name before it. */
static bool add_names(char found[PATH_MAX], const char *rest) {
    size_t length = strlen(found);
    while (*rest != '\0') {
        size_t size = strcspn(rest, "/");
        if (size == 2 && strncmp(rest, "..", 2) == 0) {
            while (length > 0 && found[--length] != '/')
                ;
        } else if (size > 0 && !(size == 1 && *rest == '.')) {
            if (length + 1 + size >= PATH_MAX)
                return false;
            found[length++] = '/';
            memcpy(found + length, rest, size);
            length += size;
        }
        found[length] = '\0';
        rest += size;
        rest += *rest == '/';
    }
    return true;
}

/* The runtime's root folder by its true name: /var/run/x and /run/x are one. The first container is created
 * before the folder exists, so the missing part of its path gets its future name. */
static bool true_root(const char *root, char found[PATH_MAX]) {
    char path[PATH_MAX];
    if (!absolute(root != NULL ? root : "", path))
        return false;
    size_t end = strlen(path);
    *found = '\0';
    while (end > 0) {
        char kept = path[end];
        path[end] = '\0';
        bool there = realpath(path, found) != NULL;
        path[end] = kept;
        if (there)
            break;
        *found = '\0';
        while (end > 0 && path[--end] != '/')
            ;
    }
    if (strcmp(found, "/") == 0)
        *found = '\0';
    if (!add_names(found, path + end))
        return false;
    if (*found == '\0' && *path != '\0')
        strcpy(found, "/");
    return true;
}

/* FNV-1a, 64 bits, of both texts with their NULs. */
static uint64_t number_of(const char *root, const char *id) {
    uint64_t number = 0xcbf29ce484222325;
    for (const char *texts[] = {root, id}, **text = texts; text < texts + 2; text++)
        for (const char *at = *text;; at++) {
            number = (number ^ (unsigned char)*at) * 0x100000001b3;
            if (*at == '\0')
                break;
        }
    return number;
}

static bool name_record(const struct invocation *line, char root[PATH_MAX], struct record *record) {
    if (!true_root(line->root, root))
        return false;
    snprintf(record->path, sizeof record->path, "%s/%016llx", folder,
             (unsigned long long)number_of(root, line->id));
    return true;
}

/* False if there is none, or another user has made it. */
static bool read_text(struct record *record) {
    struct stat st;
    ssize_t got = readlink(record->path, record->text, sizeof record->text);
    if (got <= 0 || got == sizeof record->text || lstat(record->path, &st) != 0 ||
        (st.st_uid != 0 && st.st_uid != geteuid()))
        return false;
    record->text[got] = '\0';
    return true;
}

/* Its lines, split in the text. False if it is none of ours, or another container's. */
static bool cut_text(struct record *record, const char *root, const char *id, const char *lines[LINES]) {
    char *at = record->text;
    for (int i = 0; i < LINES; i++) {
        lines[i] = at;
        at = strchr(at, '\n');
        if ((at == NULL) != (i == LINES - 1))
            return false;
        if (at != NULL)
            *at++ = '\0';
    }
    return strcmp(lines[FORMAT], format) == 0 && *lines[RUNTIME] == '/' && strcmp(lines[ROOT], root) == 0 &&
           strcmp(lines[ID], id) == 0;
}

static void set(const char *name, const char *value) {
    const char *there = getenv(name);
    if (strcmp(there != NULL ? there : "", value) == 0)
        return; /* saves an allocation */
    if (*value != '\0')
        setenv(name, value, 1);
    else
        unsetenv(name);
}

bool created_find(const struct invocation *line, char runtime[PATH_MAX]) {
    static struct record record;
    char root[PATH_MAX];
    const char *lines[LINES];
    if (!name_record(line, root, &record) || !read_text(&record) || !cut_text(&record, root, line->id, lines))
        return false;
    runtime_again(lines[RUNTIME], runtime);
    set("XPU_CONFIG", lines[CONFIG]);
    set("XPU_RUN_DIR", lines[RUN_DIR]);
    return true;
}

static bool write_text(struct record *record, const struct invocation *line, const char *root,
                       const char *runtime) {
    char config[PATH_MAX], run_folder[PATH_MAX];
    const char *values[] = {getenv("XPU_CONFIG"), getenv("XPU_RUN_DIR")};
    if (!absolute(values[0] != NULL ? values[0] : "", config) ||
        !absolute(values[1] != NULL ? values[1] : "", run_folder))
        return false;
    int written = snprintf(record->text, sizeof record->text, "%s\n%s\n%s\n%s\n%s\n%s", format, runtime,
                           config, run_folder, root, line->id);
    int ends = 0;
    for (const char *at = record->text; (at = strchr(at, '\n')) != NULL; at++)
        ends++;
    return written > 0 && (size_t)written < sizeof record->text && ends == LINES - 1;
}

/* Whether the runtime at `program` says that it has the container, or does not answer in time: the container
 * may then exist. */
static bool has_container(const char *program, const struct invocation *line) {
    bool has_root = line->root != NULL && *line->root != '\0';
    const char *in_root[] = {program, "--root", line->root, "state", line->id, NULL};
    const char *in_its_own[] = {program, "state", line->id, NULL};
    const char **words = has_root ? in_root : in_its_own;
    void (*before)(int) = signal(SIGCHLD, SIG_DFL); /* an ignored SIGCHLD loses the status */
    pid_t child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR);
        for (int fd = 0; fd <= 2; fd++)
            dup2(nothing, fd);
        execv(program, (char **)words);
        _exit(EXIT_FAILURE);
    }
    enum { PATIENCE_MS = 5000 };
    struct pollfd ended = {.fd = child > 0 ? (int)syscall(SYS_pidfd_open, child, 0) : -1, .events = POLLIN};
    bool answers = ended.fd < 0 || poll(&ended, 1, PATIENCE_MS) != 0;
    if (!answers)
        kill(child, SIGKILL);
    if (ended.fd >= 0)
        close(ended.fd);
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    signal(SIGCHLD, before);
    return child > 0 && (!answers || status == 0);
}

static bool make_folder(void) {
    if (mkdir(parent, 0755) == 0)
        chmod(parent, 0755); /* the engine may have any umask */
    return mkdir(folder, 0700) == 0 || errno == EEXIST;
}

/* False with EEXIST if there is one already. */
static bool put(const struct record *record) {
    enum { TRIES = 5 }; /* the process that removes the last record removes the folders */
    for (int i = 0; i < TRIES; i++)
        if (symlink(record->text, record->path) == 0)
            return true;
        else if (errno != ENOENT || (!make_folder() && errno != ENOENT))
            return false;
    return false;
}

const char *created_keep(const struct invocation *line, const char *runtime) {
    static struct record record, there;
    static char then[PATH_MAX];
    char root[PATH_MAX];
    const char *lines[LINES];
    if (!name_record(line, root, &record) || !write_text(&record, line, root, runtime) || put(&record))
        return runtime;
    if (errno != EEXIST)
        return runtime;
    there = record;
    /* An ended container left it, unless its runtime says otherwise. */
    bool readable = read_text(&there);
    if (readable && strcmp(there.text, record.text) == 0) {
        /* `xpu gc` takes this for the container's begin, and may have removed the record meanwhile. */
        if (utimensat(AT_FDCWD, record.path, NULL, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
            return runtime;
    } else if (readable && cut_text(&there, root, line->id, lines)) {
        runtime_again(lines[RUNTIME], then);
        if (has_container(then, line))
            return then;
    }
    unlink(record.path);
    put(&record);
    return runtime;
}

void created_forget(const struct invocation *line) {
    static struct record record;
    char root[PATH_MAX];
    if (name_record(line, root, &record) && unlink(record.path) == 0 && rmdir(folder) == 0)
        rmdir(parent); /* both folders are ours: neither remains without records */
}
