/*
 * Both forms of runc's log, text and JSON, are printed by hand: they quote alike. A log that cannot be opened
 * is left out without a wait: stderr already has the message.
 */
#include "complain.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* `message` inside a string of JSON, or of logrus's text form, which quotes the same way. */
static void quote(const char *message, char *quoted, size_t size) {
    size_t filled = 0;
    for (; *message != '\0' && filled + 7 < size; message++) {
        unsigned char c = (unsigned char)*message;
        if (c == '"' || c == '\\')
            filled += (size_t)snprintf(quoted + filled, size - filled, "\\%c", c);
        else if (c < ' ')
            filled += (size_t)snprintf(quoted + filled, size - filled, "\\u%04x", c);
        else
            quoted[filled++] = (char)c;
    }
    quoted[filled] = '\0';
}

void complain(const char *log, const char *log_format, const char *message) {
    char quoted[4096], line[4352], now[32] = "";
    time_t seconds = time(NULL);
    struct tm utc;
    if (gmtime_r(&seconds, &utc) != NULL)
        strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
    quote(message, quoted, sizeof quoted);
    bool json = log_format != NULL && strcmp(log_format, "json") == 0;
    /* The forms of runc's logrus. */
    snprintf(line, sizeof line,
             json ? "{\"level\":\"error\",\"msg\":\"%2$s\",\"time\":\"%1$s\"}\n"
                  : "time=\"%1$s\" level=error msg=\"%2$s\"\n",
             now, quoted);

    dprintf(STDERR_FILENO, "xpu-container-runtime: %s\n", message);
    if (log == NULL || *log == '\0')
        return;
    int fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    dprintf(fd, "%s", line);
    close(fd);
}
