/*
 * What is killed in between leaves the note where it was, and a grant whose container is gone, which the next
 * start reaps. A rename needs no space on the disk, and is there whole or not at all.
 */
#include "end.h"

#include "json.h"
#include "lines.h"
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* FORMAT in src/xpu_runtime/ledger/ends.py, which writes the note. */
static const char format[] = "1";

enum { LONGEST_ID = 200, LONGEST_NUMBER = 20 };

/* A path below the run folder; false where it is too long. */
static bool below_run_dir(char path[PATH_MAX], const char *names, ...) {
    int folder = snprintf(path, PATH_MAX, "%s", run_dir());
    if (folder < 0 || folder >= PATH_MAX)
        return false;
    va_list values;
    va_start(values, names);
    int rest = vsnprintf(path + folder, (size_t)(PATH_MAX - folder), names, values);
    va_end(values);
    return rest >= 0 && rest < PATH_MAX - folder;
}

static bool are_all(struct piece piece, const char *letters) {
    for (size_t i = 0; i < piece.length; i++)
        if (piece.start[i] == '\0' || strchr(letters, piece.start[i]) == NULL)
            return false;
    return piece.start != NULL && piece.length > 0;
}

/* As is_plain in ends.py: an id that can be a file's name. */
static bool is_plain(struct json_text id) {
    struct piece piece = {id.start, id.length};
    return id.length <= LONGEST_ID && id.length > 0 && id.start[0] != '.' &&
           are_all(piece,
                   "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-."); /* runc's rule */
}

static bool has_escape(struct json_text text) { return memchr(text.start, '\\', text.length) != NULL; }

/* The id and the bundle in a state, as they are there; false where Python may read it otherwise. */
static bool read_state(const char *state, size_t size, struct json_text *id, struct json_text *bundle) {
    struct json json = {state, state + size, false};
    struct json_text name;
    bool has_id = false, has_bundle = false;
    if (!json_take(&json, '{'))
        return false;
    for (bool first = true; json_member(&json, first, &name); first = false) {
        if (json_is(&json, name, "id")) {
            if (has_id || !json_string(&json, id))
                return false;
            has_id = true;
        } else if (json_is(&json, name, "bundle")) {
            if (has_bundle || !json_string(&json, bundle))
                return false;
            has_bundle = true;
        } else {
            json_skip(&json);
        }
    }
    return json_ends(&json) && has_id && has_bundle && is_plain(*id) && !has_escape(*bundle);
}

/* Whether the process "PID START_TIME" has ended, as linux/proc.py tells; false where that cannot be told. */
static bool has_ended(struct piece process) {
    char path[64], stat[1024];
    const char *blank = process.start != NULL ? memchr(process.start, ' ', process.length) : NULL;
    struct piece pid = {process.start, blank != NULL ? (size_t)(blank - process.start) : 0};
    struct piece started = {blank != NULL ? blank + 1 : NULL, process.length - pid.length - 1};
    if (!are_all(pid, "0123456789") || pid.length > LONGEST_NUMBER || !are_all(started, "0123456789"))
        return false;
    snprintf(path, sizeof path, "/proc/%.*s/stat", (int)pid.length, pid.start);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    ssize_t got = read(fd, stat, sizeof stat - 1);
    bool gone = got < 0 && errno == ESRCH;
    close(fd);
    if (got <= 0)
        return gone;
    stat[got] = '\0';
    /* The name in brackets is set by the process. Behind it are the state and, 19 fields on, its start. */
    const char *field = strrchr(stat, ')');
    if (field == NULL || field[1] != ' ')
        return false;
    field += 2;
    if (strchr("ZXx", *field) != NULL)
        return true;
    for (int i = 0; i < 19 && field != NULL; i++)
        field = (field = strchr(field, ' ')) != NULL ? field + 1 : NULL;
    return field != NULL &&
           !(strncmp(field, started.start, started.length) == 0 && field[started.length] == ' ');
}

/* Whether process ids mean here what they meant to whoever wrote the note. */
static bool is_our_pid_namespace(struct piece namespace) {
    struct stat st;
    char number[32];
    if (stat("/proc/self/ns/pid", &st) != 0)
        return false;
    snprintf(number, sizeof number, "%llu", (unsigned long long)st.st_ino);
    return is_text(namespace, number);
}

/* The low-level runtime removes the cgroup before it calls us, and the limits on it go with it. One that is
 * left has limits to lift. */
static bool is_gone(struct piece cgroup) {
    char path[PATH_MAX];
    struct stat st;
    if (cgroup.start == NULL || cgroup.length >= sizeof path)
        return false;
    if (cgroup.length == 0)
        return true; /* it had none of its own */
    memcpy(path, cgroup.start, cgroup.length);
    path[cgroup.length] = '\0';
    return path[0] == '/' && lstat(path, &st) != 0 && errno == ENOENT;
}

/* Of the form NUMBER-CREATED. */
static bool is_name_of_grant(struct piece name) {
    const char *dash = name.start != NULL ? memchr(name.start, '-', name.length) : NULL;
    if (dash == NULL || name.length > 2 * LONGEST_NUMBER)
        return false;
    struct piece number = {name.start, (size_t)(dash - name.start)};
    struct piece created = {dash + 1, name.length - number.length - 1};
    return are_all(number, "0123456789") && are_all(created, "0123456789");
}

static bool is_number_of(const char *grant, struct piece name) {
    size_t length = strlen(grant);
    return length < name.length && memcmp(grant, name.start, length) == 0 && name.start[length] == '-';
}

/* As limits/folders.py does; no error where there is none. */
static bool remove_folder(struct piece name) {
    char path[PATH_MAX];
    if (!below_run_dir(path, "/slices/%.*s", (int)name.length, name.start))
        return false;
    while (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
        ; /* a call that was killed can have left a mount below another */
    rmdir(path);
    return true;
}

static bool move_note(const char *note, struct piece name) {
    char ended[PATH_MAX];
    struct timespec now;
    /* Not the kernel's own time of a change, which is up to a tick behind that of the events before it. */
    if (!below_run_dir(ended, "/ended/%.*s", (int)name.length, name.start) ||
        clock_gettime(CLOCK_REALTIME, &now) != 0)
        return false;
    const struct timespec times[2] = {now, now};
    return utimensat(AT_FDCWD, note, times, AT_SYMLINK_NOFOLLOW) == 0 && rename(note, ended) == 0;
}

bool enter_end(const char *state, size_t size, const char *grant) {
    static char note[PATH_MAX], text[4 * PATH_MAX];
    struct json_text id, bundle;
    if (!read_state(state, size, &id, &bundle) ||
        !below_run_dir(note, "/running/%.*s", (int)id.length, id.start) ||
        !read_lines(note, text, sizeof text) || !is_text(value_of(text, "format"), format))
        return false;
    struct piece name = value_of(text, "grant"), of = value_of(text, "bundle");
    /* A runtime with another --root may have a container of the same id, and the note is that one's then. */
    return is_name_of_grant(name) && (grant == NULL || is_number_of(grant, name)) && of.start != NULL &&
           of.length == bundle.length && memcmp(of.start, bundle.start, of.length) == 0 &&
           is_our_pid_namespace(value_of(text, "pid_namespace")) && has_ended(value_of(text, "process")) &&
           is_gone(value_of(text, "cgroup")) && remove_folder(name) && move_note(note, name);
}
