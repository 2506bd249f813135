/*
 * A failure before "go" is no error: without the agent a start only takes longer. The time-outs are for an
 * agent that hangs. A busy one serves a start in some milliseconds, and others wait in its queue.
 */
#include "agent.h"

#include "runtime.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Changes with each change of the messages: _PROTOCOL in src/xpu_runtime/worker.py. */
static const char protocol[] = "xpu-start-1";

enum {
    READY_S = 2,    /* in the queue */
    ANSWER_S = 300, /* a lost worker is seen at once, and worker.py ends a hanging one by then */
    MOST_BYTES = 192 * 1024,
    MOST_WORDS = 4096,
    /* The answer has the words of the request, and paths. */
    MOST_BYTES_ASKED = MOST_BYTES / 2,
    MOST_WORDS_ASKED = MOST_WORDS / 2
};

struct message {
    size_t size;
    bool fits;
    char text[MOST_BYTES];
};

static void put(struct message *message, const char *text) {
    size_t length = strlen(text) + 1;
    message->fits = message->fits && length <= MOST_BYTES_ASKED - message->size;
    if (!message->fits)
        return;
    memcpy(message->text + message->size, text, length);
    message->size += length;
}

static void put_variable(struct message *message, const char *name) {
    const char *value = getenv(name);
    put(message, value != NULL ? value : "");
}

static ssize_t receive(int fd, char *text, size_t size, int seconds) {
    struct timeval limit = {.tv_sec = seconds};
    ssize_t got;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    do
        got = recv(fd, text, size, MSG_TRUNC);
    while (got < 0 && errno == EINTR);
    return got > (ssize_t)size ? -1 : got;
}

static bool send_all(int fd, const char *text, size_t size) {
    return send(fd, text, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static int connect_agent(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = READY_S};
    int written = snprintf(address.sun_path, sizeof address.sun_path, "%s/start.sock", run_dir());
    if (written < 0 || (size_t)written >= sizeof address.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); /* a full queue holds connect too */
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

/* "done", the status, the text, and the program's words, if there is a program. */
static bool read_answer(char *text, size_t size, struct agent_answer *answer) {
    static char *words[MOST_WORDS];
    int count = 0;
    if (size == 0 || text[size - 1] != '\0')
        return false;
    for (char *at = text; at < text + size; at += strlen(at) + 1) {
        if (count == MOST_WORDS - 1)
            return false;
        words[count++] = at;
    }
    words[count] = NULL;
    if (count < 3 || strcmp(words[0], "done") != 0)
        return false;
    answer->status = atoi(words[1]);
    answer->text = words[2];
    answer->program = count > 3 ? words + 3 : NULL;
    return true;
}

enum agent_outcome agent_ask(const char *kind, const char *lib, int count, char **words,
                             struct agent_answer *answer) {
    static struct message message;
    static char cwd[4096];
    int fd = connect_agent();
    if (fd < 0)
        return AGENT_NONE;
    message.fits = getcwd(cwd, sizeof cwd) != NULL && count <= MOST_WORDS_ASKED;
    message.size = 0;
    put(&message, protocol);
    put(&message, kind);
    put(&message, lib);
    put_variable(&message, "XPU_CONFIG");
    put_variable(&message, "XPU_RUN_DIR");
    put(&message, cwd);
    for (int i = 0; i < count; i++)
        put(&message, words[i]);
    enum agent_outcome outcome = AGENT_NONE;
    ssize_t got = 0;
    if (message.fits && send_all(fd, message.text, message.size) &&
        (got = receive(fd, message.text, sizeof message.text, READY_S)) == 6 &&
        memcmp(message.text, "ready", 6) == 0 && send_all(fd, "go", 3)) {
        outcome = AGENT_LOST;
        got = receive(fd, message.text, sizeof message.text, ANSWER_S);
        if (got > 0 && read_answer(message.text, (size_t)got, answer))
            outcome = AGENT_DONE;
        else if (got == 9 && memcmp(message.text, "declined", 9) == 0)
            outcome = AGENT_NONE;
    }
    close(fd);
    return outcome;
}
