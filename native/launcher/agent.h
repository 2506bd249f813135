/*
 * A call of shim or hook, done by a start worker of `xpu agent` (src/xpu_runtime/worker.py), which has
 * everything imported, in the place of a Python of our own.
 *
 * Over the socket RUN_DIR/start.sock go messages (SOCK_SEQPACKET) of texts that end with a 0: we ask, the
 * worker says that it is ready, we say go, it answers or declines. So until "go" nothing has been done, and
 * the asking process may do the same without the agent. After that a lost worker may have done any part of
 * it. Of a container's end any part may be done again.
 */
#ifndef XPU_LAUNCHER_AGENT_H
#define XPU_LAUNCHER_AGENT_H

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

#endif
