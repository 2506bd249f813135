#include "json.h"

#include <string.h>
#include <strings.h>

enum { DEEPEST = 64 };

static bool fail(struct json *json) {
    json->bad = true;
    json->at = json->end;
    return false;
}

static void skip_blanks(struct json *json) {
    while (json->at < json->end &&
           (*json->at == ' ' || *json->at == '\n' || *json->at == '\t' || *json->at == '\r'))
        json->at++;
}

bool json_take(struct json *json, char character) {
    skip_blanks(json);
    if (json->at == json->end || *json->at != character)
        return false;
    json->at++;
    return true;
}

bool json_string(struct json *json, struct json_text *text) {
    if (!json_take(json, '"'))
        return fail(json);
    text->start = json->at;
    for (; json->at < json->end && *json->at != '"'; json->at++) {
        if ((unsigned char)*json->at < ' ' || (*json->at == '\\' && ++json->at == json->end))
            return fail(json);
    }
    if (json->at == json->end)
        return fail(json);
    text->length = (size_t)(json->at++ - text->start);
    return true;
}

/* A number, true, false or null. */
static bool skip_word(struct json *json) {
    static const char letters[] = "0123456789+-.abcdefghijklmnopqrstuvwxyzE";
    const char *start = json->at;
    while (json->at < json->end && memchr(letters, *json->at, sizeof letters - 1) != NULL)
        json->at++;
    return json->at > start || fail(json);
}

static bool skip(struct json *json, int depth) {
    struct json_text text;
    skip_blanks(json);
    if (depth == DEEPEST || json->at == json->end)
        return fail(json);
    if (*json->at == '"')
        return json_string(json, &text);
    if (json_take(json, '{')) {
        for (bool first = true; json_member(json, first, &text); first = false)
            skip(json, depth + 1);
        return !json->bad;
    }
    if (json_take(json, '[')) {
        for (bool first = true; json_item(json, first); first = false)
            skip(json, depth + 1);
        return !json->bad;
    }
    return skip_word(json);
}

bool json_skip(struct json *json) { return skip(json, 0); }

bool json_member(struct json *json, bool first, struct json_text *name) {
    if (json->bad || json_take(json, '}'))
        return false;
    if (!first && !json_take(json, ','))
        return fail(json);
    return json_string(json, name) && (json_take(json, ':') || fail(json));
}

bool json_item(struct json *json, bool first) {
    if (json->bad || json_take(json, ']'))
        return false;
    if (!first && !json_take(json, ','))
        return fail(json);
    skip_blanks(json);
    /* "[1,]" is no list. */
    return first || (json->at < json->end && *json->at != ']') || fail(json);
}

bool json_ends(struct json *json) {
    skip_blanks(json);
    return json->at == json->end && !json->bad;
}

bool json_is(struct json *json, struct json_text found, const char *name) {
    for (size_t i = 0; i < found.length; i++)
        if ((unsigned char)found.start[i] > '~' || found.start[i] == '\\')
            return fail(json);
    if (found.length != strlen(name) || strncasecmp(found.start, name, found.length) != 0)
        return false;
    return memcmp(found.start, name, found.length) == 0 || fail(json);
}
