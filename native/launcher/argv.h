/*
 * The command line of an OCI runtime, as runc reads it.
 *
 * runc 1.x parses with urfave/cli v1 over Go's flag package: `-x` and `--x` are the same, a value follows an
 * equals sign or is the next word, and the first word that is no option is the subcommand. Only this file
 * knows these rules: the shim gets the result (handover.h). tests/integration/launcher compares it with the
 * real runc and crun.
 */
#pragma once

#include <stdbool.h>

struct invocation {
    /* The runtime makes a container if it accepts this line: create, run or restore, only options that we
     * know, exactly one id, no request for help. */
    bool creates;
    /* It is for an earlier container, and has only options that we know. */
    bool refers;
    const char *subcommand; /* NULL: none, or the words before it are invalid */
    const char *id;         /* of create, run and restore with exactly one id, or of a line that `refers` */
    const char *root;       /* the folder of the low-level runtime's state, as given; NULL or "": its own */
    const char *bundle;     /* as given; NULL or "": the working directory */
    const char *config;     /* the spec file, if the runtime has an option for it; otherwise NULL */
    const char *console_socket, *pidfd_socket; /* as given, or NULL */
    const char *log;                           /* as given, or NULL */
    const char *log_format;                    /* as given, or NULL */
    const char *cgroup_manager;                /* crun's, as given, or NULL */
    bool systemd_cgroup;                       /* runc's */
};

/* Reads the words after the program's name. The result points into them. */
struct invocation invocation_parse(int count, char **words);
