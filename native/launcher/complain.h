/* The launcher's own errors: one line to stderr, and one to the runtime's log, where engines look for it. */
#ifndef XPU_LAUNCHER_COMPLAIN_H
#define XPU_LAUNCHER_COMPLAIN_H

/* `log` and `log_format` as on the command line, or NULL. */
void complain(const char *log, const char *log_format, const char *message);

#endif
