/*
 * xpu-container-runtime: engines run it in place of runc.
 *
 * Most of an engine's calls (state, start, kill, exec, and containers without an accelerator) are the
 * low-level runtime's alone. So this program becomes that runtime at once, with arguments, environment, file
 * descriptors and signals unchanged. For a container with a record (created.h) it becomes the recorded
 * runtime, with the recorded XPU_CONFIG and XPU_RUN_DIR. It runs `delete` as a child, and removes the record
 * once that has succeeded. A container that may ask for an accelerator is the shim's. A start worker of `xpu
 * agent` runs the shim, or otherwise a new Python, which comes back here for the record. Every descriptor
 * opened here is close-on-exec. Standard streams may be closed, so nothing is written unless no program could
 * be started.
 */
#include "agent.h"
#include "argv.h"
#include "complain.h"
#include "created.h"
#include "handover.h"
#include "installation.h"
#include "runtime.h"
#include "spec.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdnoreturn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* The first word if the shim has prepared a container. The program to become and its words follow, including
 * "create" (src/xpu_runtime/shim.py). */
static const char prepared[] = "xpu-prepared-1";

static noreturn void fail(const struct invocation *line, const char *message) {
    complain(line->log, line->log_format, message);
    exit(EXIT_FAILURE);
}

static noreturn void become_runtime(const struct invocation *line, char **words) {
    const char *program = line->creates ? created_keep(line, words[0]) : words[0];
    execve(program, words, environ);
    char message[2 * PATH_MAX];
    if (line->refers)
        snprintf(
            message, sizeof message,
            "container %.300s cannot be reached: %s has created it, and cannot be started (%s): install it "
            "again",
            line->id, program, strerror(errno));
    else
        snprintf(message, sizeof message, "cannot start the low-level runtime %s: %s", program,
                 strerror(errno));
    fail(line, message);
}

/* Makes the runtime delete the container, whose record then has no more use. Only the runtime's exit status
 * shows that the container is gone. So this program stays until then, and otherwise behaves like the runtime:
 * it ends as the runtime does, and the runtime ends with it. */
static noreturn void have_it_deleted(const struct invocation *line, char **words) {
    void (*before)(int) = signal(SIGCHLD, SIG_DFL); /* an ignored SIGCHLD loses the status */
    pid_t launcher = getpid();
    pid_t child = fork();
    if (child <= 0) {
        signal(SIGCHLD, before);
        if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher))
            _exit(EXIT_FAILURE);
        become_runtime(line, words);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    if (status == 0)
        created_forget(line);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE);
}

/* Has a start worker of `xpu agent` do the shim's work. Returns if nothing was done. */
static void have_it_prepared(const struct invocation *line, const char *lib, int count, char **words) {
    struct agent_answer answer;
    void (*before)(int);
    switch (agent_ask("shim", lib, count, words, &answer)) {
    case AGENT_NONE:
        return;
    case AGENT_LOST:
        fail(line, "xpu agent ended, or did not answer, while it prepared this container: start it again");
    case AGENT_DONE:
        before = signal(SIGPIPE, SIG_IGN); /* it may have no reader */
        dprintf(STDERR_FILENO, "%s", answer.text);
        signal(SIGPIPE, before);
        if (answer.program == NULL)
            exit(answer.status);
        become_runtime(line, answer.program);
    }
}

/* Becomes the shim, which gets the parsed words, or with `by_agent` the program to become. Returns on
 * failure. */
static void become_shim(const struct invocation *line, int argc, char **argv, bool by_agent) {
    static char lib[PATH_MAX], handover[HANDOVER_SIZE];
    char **words = malloc((size_t)argc * sizeof *words);
    if (words == NULL || !installation_find(lib))
        return;
    handover_write(handover, line, argc - 1, argv + 1);
    words[0] = handover;
    memcpy(words + 1, argv + 1, ((size_t)argc - 1) * sizeof *argv);
    if (by_agent)
        have_it_prepared(line, lib, argc, words);
    become_python(lib, "shim.py", argc, words);
    free(words);
}

int main(int argc, char **argv) {
    static char runtime[PATH_MAX];
    char *nothing[] = {runtime, NULL};
    if (argc < 1) { /* older kernels start a program even without its name */
        argc = 1;
        argv = nothing;
    }

    if (argc > 2 && strcmp(argv[1], prepared) == 0) {
        struct invocation line = invocation_parse(argc - 3, argv + 3);
        become_runtime(&line, argv + 2);
    }
    struct invocation line = invocation_parse(argc - 1, argv + 1);
    argv[0] = runtime;
    if (line.refers && created_find(&line, runtime)) {
        if (strcmp(line.subcommand, "delete") == 0)
            have_it_deleted(&line, argv);
        become_runtime(&line, argv);
    }
    line.refers = false; /* as far as is known here */

    enum spec_verdict spec = line.creates ? spec_look(line.bundle, line.config) : SPEC_PLAIN;
    enum runtime_source source = runtime_find(runtime);
    if (source == RUNTIME_KNOWN && spec != SPEC_ASKS)
        execve(line.creates ? created_keep(&line, runtime) : runtime, argv, environ);

    /* The container asks for something, or the runtime must be determined anew. */
    if (source != RUNTIME_NONE)
        become_shim(&line, argc, argv, source == RUNTIME_KNOWN);
    if (source != RUNTIME_NONE && spec == SPEC_ASKS)
        fail(&line,
             "this container asks for an accelerator, and the part of xpu-container-runtime that grants it "
             "cannot be started: see that " PYTHON " runs, and install xpu-container-runtime again");
    if (!runtime_default(runtime))
        fail(&line, "no runc or crun in the system's bin and sbin folders: install one of them");
    become_runtime(&line, argv);
}
