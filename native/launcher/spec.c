/*
 * The file is searched for a few words in overlapping chunks, so that no word is lost between two. A letter
 * may be hidden as \u00XX: a spec that hides one counts as asking.
 */
#include "spec.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Real specs are 10 to 100 KiB. runc reads any size, and so does this. */
enum { CHUNK = 64 * 1024, OVERLAP = 32 };

/* Every asking spec has one of these (`asks` in src/xpu_runtime/request/source.py): variables, or the
 * beginnings of their names, and the annotations' domain. The "/xpu" after the domain is left out, because
 * some JSON writers escape the slash. None is longer than OVERLAP. */
static const char *const words[] = {"XPU_", "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "yoyoworks.com"};

static int hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Whether a printable ASCII character is written as \u00XX, which could hide a letter of a searched word.
 * Go's encoder, which engines use, writes only < > and & that way. */
static bool hides_letters(const char *text, size_t size) {
    static const char prefix[] = "\\u00";
    const char *end = text + size;
    for (const char *at = text; (at = memmem(at, (size_t)(end - at), prefix, 4)) != NULL; at += 4) {
        if (end - at < 6)
            return false; /* the next chunk has all of it */
        int high = hex(at[4]), low = hex(at[5]);
        int character = high * 16 + low;
        if (high >= 2 && high <= 7 && low >= 0 && character != '<' && character != '>' && character != '&')
            return true;
    }
    return false;
}

static bool asks(const char *text, size_t size) {
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memmem(text, size, words[i], strlen(words[i])) != NULL)
            return true;
    return hides_letters(text, size);
}

static enum spec_verdict read_spec(int fd) {
    static char window[OVERLAP + CHUNK];
    size_t kept = 0;
    for (;;) {
        ssize_t got = read(fd, window + kept, CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) /* the runtime may have more luck, so this must not count as plain */
            return SPEC_ASKS;
        if (got == 0)
            return SPEC_PLAIN;
        size_t size = kept + (size_t)got;
        if (asks(window, size))
            return SPEC_ASKS;
        kept = size < OVERLAP ? size : OVERLAP;
        memmove(window, window + size - kept, kept);
    }
}

enum spec_verdict spec_look(const char *bundle, const char *config) {
    if (bundle == NULL || *bundle == '\0')
        bundle = ".";
    /* crun: a spec file's name is relative to the working directory, unless it is config.json. */
    bool in_bundle = config == NULL || strcmp(config, "config.json") == 0;
    int folder = open(bundle, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return SPEC_UNREADABLE;
    enum spec_verdict verdict = SPEC_UNREADABLE;
    int start = in_bundle ? folder : AT_FDCWD;
    const char *name = in_bundle ? "config.json" : config;
    struct stat st;
    int fd = -1;
    /* A FIFO is the runtime's alone, and is not even opened: its writer would go on, and SIGPIPE would kill
     * it at our close. The requests of such a spec are unknown. Without our hooks its container gets no
     * device. */
    if (fstatat(start, name, &st, 0) == 0 && S_ISREG(st.st_mode))
        /* O_NONBLOCK: another file in its place meanwhile must not block us. */
        fd = openat(start, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        verdict = read_spec(fd);
        /* The shim keeps the original beside a spec that it has edited. */
        if (verdict == SPEC_PLAIN && fstatat(folder, "config.json.xpu", &st, AT_SYMLINK_NOFOLLOW) == 0)
            verdict = SPEC_ASKS;
    }
    if (fd >= 0)
        close(fd);
    close(folder);
    return verdict;
}
