/*
 * Reads command lines and prints what the launcher makes of them, for the tests.
 * In: a decimal count and a newline, then that many words, each ended by a NUL. Out: seven fields, each
 * ended by a NUL: '+' and the value, or '-' for none.
 */
#include "argv.h"

#include <stdio.h>
#include <stdlib.h>

static void put(const char *value) {
    printf("%s%s", value != NULL ? "+" : "-", value != NULL ? value : "");
    putchar('\0');
}

int main(void) {
    int count;
    while (scanf("%d", &count) == 1 && getchar() == '\n') {
        /* Not one word more than there is: the sanitizer sees a read past the end. */
        char **words = malloc((size_t)count * sizeof *words);
        for (int i = 0; i < count; i++) {
            size_t size = 0;
            words[i] = NULL;
            if (getdelim(&words[i], &size, '\0', stdin) < 0)
                return EXIT_FAILURE;
        }
        struct invocation found = invocation_parse(count, words);
        put(found.creates ? "" : NULL);
        put(found.subcommand);
        put(found.id);
        put(found.bundle);
        put(found.config);
        put(found.log);
        put(found.log_format);
        fflush(stdout);
        for (int i = 0; i < count; i++)
            free(words[i]);
        free(words);
    }
    return EXIT_SUCCESS;
}
