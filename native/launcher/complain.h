/* The launcher's own errors: one line to stderr, and one to the runtime's log, where engines look for it. */
#pragma once

/* `log` and `log_format` as on the command line, or NULL. */
void complain(const char *log, const char *log_format, const char *message);
