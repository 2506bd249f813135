/*
 * xpu-container-runtime-hook: the OCI hook, as low-level runtimes and engines' hooks.d call it.
 *
 * It gives the container's state to a start worker of `xpu agent`, or without one to a Python of its own. The
 * end of a container may be done twice. Its start may not: a lost worker may have set the limit and not made
 * the devices, and a second call would find a granted slice and do nothing more.
 */
#include "agent.h"
#include "complain.h"
#include "installation.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MOST_STATE = 64 * 1024,
    /* It has some kilobytes. The hook in Python reads at most this much (oci/state.py). */
    MOST_READ = 128 << 20,
    /* A pipe of any size takes this much (pipe(7)). */
    MOST_PIPED = 4096
};

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

static ssize_t read_some(char *text, size_t size) {
    ssize_t got;
    do
        got = read(STDIN_FILENO, text, size);
    while (got < 0 && errno == EINTR);
    return got;
}

/* Makes a state that was read completely the standard input again. */
static bool put_back_in_pipe(const char *text, size_t size) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return false;
    bool kept = write_all(ends[1], text, size) && fcntl(ends[0], F_SETFL, 0) == 0 &&
                dup2(ends[0], STDIN_FILENO) == STDIN_FILENO;
    close(ends[0]);
    close(ends[1]);
    return kept;
}

/* The same for a larger state, with the rest of it. */
static bool put_back_in_file(const char *text, size_t size) {
    static char more[MOST_STATE];
    int fd = memfd_create("state", MFD_CLOEXEC);
    bool kept = fd >= 0 && write_all(fd, text, size);
    size_t written = size;
    ssize_t got = 0;
    while (kept && written <= MOST_READ && (got = read_some(more, sizeof more)) > 0) {
        kept = write_all(fd, more, (size_t)got);
        written += (size_t)got;
    }
    kept = kept && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO;
    if (fd >= 0)
        close(fd);
    return kept;
}

static const char *option(const char *name, int argc, char **argv) {
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return NULL;
}

int main(int argc, char **argv) {
    static char lib[PATH_MAX], state[MOST_STATE + 1];
    bool found = installation_find(lib);
    bool stops = argc > 1 && strcmp(argv[1], "poststop") == 0;
    bool starts = argc > 1 && (strcmp(argv[1], "createRuntime") == 0 || strcmp(argv[1], "prestart") == 0);
    if (found && (starts || stops)) {
        size_t size = 0;
        ssize_t got = 0;
        while (size < MOST_STATE && (got = read_some(state + size, MOST_STATE - size)) > 0)
            size += (size_t)got;
        enum agent_outcome outcome = AGENT_NONE;
        struct agent_answer answer;
        char **words = malloc(((size_t)argc + 1) * sizeof *words);
        if (got == 0 && words != NULL && memchr(state, '\0', size) == NULL) {
            memcpy(words, argv + 1, ((size_t)argc - 1) * sizeof *words);
            words[argc - 1] = state;
            outcome = agent_ask("hook", lib, argc, words, &answer);
        }
        if (outcome == AGENT_DONE) {
            signal(SIGPIPE, SIG_IGN); /* it may have no reader: the work is done already */
            write_all(STDERR_FILENO, answer.text, strlen(answer.text));
            return answer.status;
        }
        if (outcome == AGENT_LOST && starts) {
            complain(
                option("--log", argc, argv), option("--log-format", argc, argv),
                "xpu agent ended, or did not answer, while it gave this container its slice, which may be "
                "there in part: start the container again");
            return EXIT_FAILURE;
        }
        bool whole = got == 0 && size <= MOST_PIPED;
        /* Without standard input, Python prints the error. */
        if (got >= 0 && !(whole ? put_back_in_pipe(state, size) : put_back_in_file(state, size)))
            found = false;
    }
    if (found)
        become_python(lib, "hook.py", argc - 1, argv + 1);
    complain(option("--log", argc, argv), option("--log-format", argc, argv),
             "the hook of xpu-container-runtime cannot be started: see that " PYTHON
             " runs, and install xpu-container-runtime again");
    return EXIT_FAILURE;
}
