/*
 * One table has every option that runc and crun know. The words of a subcommand are read twice, as by
 * urfave/cli: first its options, which may be anywhere, then the rest.
 */
#include "argv.h"

#include <stddef.h>
#include <string.h>

enum {
    GLOBAL = 1,
    CREATE = 2,
    RUN = 4,
    RESTORE = 8,
    EXEC = 16,
    UPDATE = 32,
    DELETE = 64,
    KILL = 128,
    EVENTS = 256,
    PS = 512,
    CHECKPOINT = 1024,
    OTHER = 2048, /* for a container, and without options of its own */
    START = CREATE | RUN,
    ANY = CREATE | RUN | RESTORE,
    LATER = EXEC | UPDATE | DELETE | KILL | EVENTS | PS | CHECKPOINT | OTHER,
    MOVED = RESTORE | CHECKPOINT
};

/* The place in struct invocation for the value of an option, or for whether an option without a value was
 * given. Two places are outside it. */
#define PLACE(member) offsetof(struct invocation, member)
enum { IGNORED = sizeof(struct invocation), HELP };

struct option {
    const char *name;
    bool takes_value;
    unsigned short where;
    unsigned short place;
};

/* runc 1.1; crun's cgroup-manager, log-level, config and f; newer runc's pidfd-socket and config. */
static const struct option options[] = {
    {"root", true, GLOBAL, PLACE(root)},
    {"log", true, GLOBAL, PLACE(log)},
    {"log-format", true, GLOBAL, PLACE(log_format)},
    {"log-level", true, GLOBAL, IGNORED},
    {"criu", true, GLOBAL, IGNORED},
    {"rootless", true, GLOBAL, IGNORED},
    {"cgroup-manager", true, GLOBAL, PLACE(cgroup_manager)},
    {"systemd-cgroup", false, GLOBAL, PLACE(systemd_cgroup)},
    {"debug", false, GLOBAL, IGNORED},
    {"version", false, GLOBAL, HELP},
    {"v", false, GLOBAL, HELP},
    {"help", false, GLOBAL | ANY | LATER, HELP},
    {"h", false, GLOBAL | ANY | LATER, HELP},
    {"bundle", true, ANY, PLACE(bundle)},
    {"b", true, ANY, PLACE(bundle)},
    {"console-socket", true, ANY | EXEC, PLACE(console_socket)},
    {"pid-file", true, ANY | EXEC, IGNORED},
    {"no-pivot", false, ANY, IGNORED},
    {"no-new-keyring", false, START, IGNORED},
    {"preserve-fds", true, START | EXEC, IGNORED},
    {"pidfd-socket", true, START | EXEC, PLACE(pidfd_socket)},
    {"config", true, START, PLACE(config)},
    {"f", true, START, PLACE(config)},
    {"detach", false, RUN | RESTORE | EXEC, IGNORED},
    {"d", false, RUN | RESTORE | EXEC, IGNORED},
    {"keep", false, RUN, IGNORED},
    {"no-subreaper", false, RUN | RESTORE, IGNORED},
    {"image-path", true, MOVED, IGNORED},
    {"work-path", true, MOVED, IGNORED},
    {"parent-path", true, MOVED, IGNORED},
    {"manage-cgroups-mode", true, MOVED, IGNORED},
    {"empty-ns", true, MOVED, IGNORED},
    {"lsm-profile", true, RESTORE, IGNORED},
    {"lsm-mount-context", true, RESTORE, IGNORED},
    {"tcp-established", false, MOVED, IGNORED},
    {"ext-unix-sk", false, MOVED, IGNORED},
    {"shell-job", false, MOVED, IGNORED},
    {"file-locks", false, MOVED, IGNORED},
    {"auto-dedup", false, MOVED, IGNORED},
    {"lazy-pages", false, MOVED, IGNORED},
    {"leave-running", false, CHECKPOINT, IGNORED},
    {"pre-dump", false, CHECKPOINT, IGNORED},
    {"status-fd", true, CHECKPOINT, IGNORED},
    {"page-server", true, CHECKPOINT, IGNORED},
    {"cwd", true, EXEC, IGNORED},
    {"env", true, EXEC, IGNORED},
    {"e", true, EXEC, IGNORED},
    {"user", true, EXEC, IGNORED},
    {"u", true, EXEC, IGNORED},
    {"additional-gids", true, EXEC, IGNORED},
    {"g", true, EXEC, IGNORED},
    {"process", true, EXEC, IGNORED},
    {"p", true, EXEC, IGNORED},
    {"process-label", true, EXEC, IGNORED},
    {"apparmor", true, EXEC, IGNORED},
    {"cap", true, EXEC, IGNORED},
    {"c", true, EXEC, IGNORED},
    {"cgroup", true, EXEC, IGNORED},
    {"tty", false, EXEC, IGNORED},
    {"t", false, EXEC, IGNORED},
    {"no-new-privs", false, EXEC, IGNORED},
    {"ignore-paused", false, EXEC, IGNORED},
    {"resources", true, UPDATE, IGNORED},
    {"r", true, UPDATE, IGNORED},
    {"blkio-weight", true, UPDATE, IGNORED},
    {"cpu-period", true, UPDATE, IGNORED},
    {"cpu-quota", true, UPDATE, IGNORED},
    {"cpu-burst", true, UPDATE, IGNORED},
    {"cpu-share", true, UPDATE, IGNORED},
    {"cpu-rt-period", true, UPDATE, IGNORED},
    {"cpu-rt-runtime", true, UPDATE, IGNORED},
    {"cpuset-cpus", true, UPDATE, IGNORED},
    {"cpuset-mems", true, UPDATE, IGNORED},
    {"cpu-idle", true, UPDATE, IGNORED},
    {"kernel-memory", true, UPDATE, IGNORED},
    {"kernel-memory-tcp", true, UPDATE, IGNORED},
    {"memory", true, UPDATE, IGNORED},
    {"memory-reservation", true, UPDATE, IGNORED},
    {"memory-swap", true, UPDATE, IGNORED},
    {"pids-limit", true, UPDATE, IGNORED},
    {"l3-cache-schema", true, UPDATE, IGNORED},
    {"mem-bw-schema", true, UPDATE, IGNORED},
    {"force", false, DELETE, IGNORED},
    {"f", false, DELETE, IGNORED},
    {"all", false, KILL, IGNORED},
    {"a", false, KILL, IGNORED},
    {"interval", true, EVENTS, IGNORED},
    {"stats", false, EVENTS, IGNORED},
    {"format", true, PS, IGNORED},
    {"f", true, PS, IGNORED},
};

/* The option called `name` (up to its end or an equals sign) that applies in `where`, or NULL. */
static const struct option *option_named(const char *name, unsigned where) {
    size_t length = strcspn(name, "=");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if ((options[i].where & where) && strlen(options[i].name) == length &&
            memcmp(options[i].name, name, length) == 0)
            return &options[i];
    return NULL;
}

/* urfave/cli's argIsFlag: three dashes count as two there, and Go's flag package refuses them later. */
static bool looks_like_option(const char *word, unsigned where) {
    if (word[0] != '-' || word[1] == '\0' || strcmp(word, "--") == 0)
        return false;
    word += word[1] == '-' ? 2 : 1;
    return option_named(*word == '-' ? word + 1 : word, where) != NULL;
}

/*
 * The words in the order in which the flag package sees them. For a subcommand urfave/cli (reorderArgs,
 * v1.22.9) first moves its options to the front. It takes the word behind an option with it, unless the
 * option has an equals sign or that word is an option too. Then comes "--" if there was one; then the rest.
 */
struct words {
    char **words;
    int count;
    unsigned where;
    enum { OPTIONS, DELIMITER, REST } pass;
    int at;
    int delimiter; /* the index of "--", or count */
    bool value_next;
};

/* Whether the word at `at` belongs to the options. Steps over it. */
static bool step(struct words *w) {
    const char *word = w->words[w->at++];
    bool option = looks_like_option(word, w->where);
    bool value = w->value_next && !option;
    w->value_next = option && strchr(word, '=') == NULL;
    return option || value;
}

static const char *next_reordered(struct words *w) {
    if (w->pass == OPTIONS) {
        while (w->at < w->count) {
            const char *word = w->words[w->at];
            if (!w->value_next && strcmp(word, "--") == 0) {
                w->delimiter = w->at;
                break;
            }
            if (step(w))
                return word;
        }
        w->pass = DELIMITER;
    }
    if (w->pass == DELIMITER) {
        w->pass = REST;
        w->at = 0;
        w->value_next = false;
        if (w->delimiter < w->count)
            return "--";
    }
    while (w->at < w->count) {
        const char *word = w->words[w->at];
        if (w->at > w->delimiter) {
            w->at++;
            return word;
        }
        if (w->at == w->delimiter)
            w->at++;
        else if (!step(w))
            return word;
    }
    return NULL;
}

/* runc's exec and ps leave the words as they are (SkipArgReorder): those behind the id belong to the process,
 * or to ps(1). */
static const char *next(struct words *w) {
    if (!(w->where & (GLOBAL | EXEC | PS)))
        return next_reordered(w);
    return w->at < w->count ? w->words[w->at++] : NULL;
}

/* strconv.ParseBool: 1 true, 0 false, -1 neither. */
static int parse_bool(const char *text) {
    static const char *const yes[] = {"1", "t", "T", "TRUE", "true", "True"};
    static const char *const no[] = {"0", "f", "F", "FALSE", "false", "False"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) {
        if (strcmp(text, yes[i]) == 0)
            return 1;
        if (strcmp(text, no[i]) == 0)
            return 0;
    }
    return -1;
}

/*
 * Go's flag.FlagSet.Parse: options up to the first positional word, which goes to *first (NULL: there is
 * none). False: the runtime refuses these words, or may know an option that we do not.
 */
static bool parse_options(struct words *w, struct invocation *found, bool *help, const char **first) {
    const char *word;
    *first = NULL;
    while ((word = next(w)) != NULL) {
        if (word[0] != '-' || word[1] == '\0') {
            *first = word;
            return true;
        }
        if (strcmp(word, "--") == 0) {
            *first = next(w);
            return true;
        }
        const char *name = word + (word[1] == '-' ? 2 : 1);
        const struct option *option = option_named(name, w->where);
        if (option == NULL)
            return false;
        const char *value = strchr(name, '=');
        if (value != NULL)
            value++;
        if (option->takes_value) {
            if (value == NULL && (value = next(w)) == NULL)
                return false;
            if (option->place != IGNORED)
                *(const char **)((char *)found + option->place) = value;
        } else {
            int yes = value == NULL ? 1 : parse_bool(value);
            if (yes < 0)
                return false;
            if (option->place == HELP)
                *help |= yes;
            else if (option->place != IGNORED)
                *(bool *)((char *)found + option->place) = yes;
        }
    }
    return true;
}

static unsigned named(const char *subcommand) {
    static const struct {
        const char *name;
        unsigned where;
    } subcommands[] = {
        {"create", CREATE},   {"run", RUN},
        {"restore", RESTORE}, {"exec", EXEC},
        {"update", UPDATE},   {"delete", DELETE},
        {"kill", KILL},       {"events", EVENTS},
        {"ps", PS},           {"checkpoint", CHECKPOINT},
        {"start", OTHER},     {"state", OTHER},
        {"pause", OTHER},     {"resume", OTHER},
    };
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++)
        if (strcmp(subcommand, subcommands[i].name) == 0)
            return subcommands[i].where;
    return 0;
}

struct invocation invocation_parse(int count, char **words) {
    struct invocation found = {0};
    struct words w = {.words = words, .count = count, .where = GLOBAL};
    bool help = false;
    const char *first;

    if (!parse_options(&w, &found, &help, &first) || first == NULL)
        return found;
    found.subcommand = first;
    unsigned where = named(first);
    if (where == 0)
        return found;

    struct words own = {.words = words + w.at, .count = count - w.at, .where = where};
    own.delimiter = own.count;
    if (!parse_options(&own, &found, &help, &first) || first == NULL)
        return found;
    if ((where & ANY) && next(&own) != NULL)
        return found;
    found.id = first;
    *(where & ANY ? &found.creates : &found.refers) = !help && *first != '\0';
    return found;
}
