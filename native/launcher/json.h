/*
 * JSON read where it lies: enough to find a value's place in a text without changing anything of it.
 *
 * What a caller does not look into is skipped, and checked only as far as its end must be found. Whatever is
 * no JSON, is cut off or is nested deeper than engines write makes `bad`, and every later call returns false.
 */
#ifndef XPU_LAUNCHER_JSON_H
#define XPU_LAUNCHER_JSON_H

#include <stdbool.h>
#include <stddef.h>

struct json {
    const char *at, *end;
    bool bad;
};

/* What is between the quotes of a string, escapes as they are written. */
struct json_text {
    const char *start;
    size_t length;
};

/* Goes past `character`, and blanks before it; false, and nothing has happened, where another one is next. */
bool json_take(struct json *json, char character);

bool json_string(struct json *json, struct json_text *text);

/* Goes past one value of any kind. */
bool json_skip(struct json *json);

/* After the '{' of an object was taken: reads the next member's name, up to its value; false at the end. */
bool json_member(struct json *json, bool first, struct json_text *name);

/* After the '[' of a list was taken: whether an item is next; false at the end. */
bool json_item(struct json *json, bool first);

/* Whether there is nothing more, and all of it was JSON. */
bool json_ends(struct json *json);

/* Whether a member's name is `name`. Go's decoder, which runc has, takes other cases of its letters for it as
 * well: such a name, or one with an escape or beyond ASCII in it, makes `bad`. */
bool json_is(struct json *json, struct json_text found, const char *name);

#endif
