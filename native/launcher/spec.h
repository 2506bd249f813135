/*
 * Whether a bundle's spec may ask for an accelerator, without reading its JSON.
 *
 * The answer may err on one side only: an asking spec never counts as plain. A spec that only looks like one
 * costs a call of the shim, by a start worker or in a new Python, which reads it properly.
 */
#pragma once

enum spec_verdict {
    SPEC_PLAIN,     /* asks for nothing */
    SPEC_ASKS,      /* names an accelerator's variable or annotation, or was edited for one before */
    SPEC_UNREADABLE /* missing, no regular file, or not readable: the runtime itself prints the error */
};

/* `bundle` NULL or "": the working directory; `config` NULL: config.json in the bundle. Never blocks. */
enum spec_verdict spec_look(const char *bundle, const char *config);
