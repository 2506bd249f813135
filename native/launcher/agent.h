/*
 * A call of shim or hook by a start worker of `xpu agent` (src/xpu_runtime/worker.py), which has everything
 * imported, in the place of a new Python.
 *
 * The messages on the socket RUN_DIR/start.sock (SOCK_SEQPACKET) are texts that end with a 0. We ask, the
 * worker says that it is ready, we say go, and it answers or declines. So before "go" nothing has been done,
 * and the asking process may do the work without the agent. After that a lost worker may have done any part
 * of it. Any part of a container's end may be done again.
 */
#pragma once

enum agent_outcome {
    AGENT_NONE, /* there is none, or it declines: nothing was done */
    AGENT_LOST, /* it began, and its progress is unknown */
    AGENT_DONE
};

struct agent_answer {
    int status;       /* to exit with, if there is no program */
    const char *text; /* for stderr, with its line ends; may be empty */
    char **program;   /* the program to become, and its arguments; NULL: none */
};

/* `kind` is "shim" or "hook", `lib` this installation's folder. The answer stays until the next call. */
enum agent_outcome agent_ask(const char *kind, const char *lib, int count, char **words,
                             struct agent_answer *answer);
