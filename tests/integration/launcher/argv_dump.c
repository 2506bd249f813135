/*
 * Reads command lines and prints the words that the launcher hands to the shim for them, for the tests.
 * In: a decimal count and a newline, then that many words, each ended by a NUL. Out: one word and a newline.
 */
#include "argv.h"
#include "handover.h"

#include <stdio.h>
#include <stdlib.h>

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
        char handover[HANDOVER_SIZE];
        handover_write(handover, &found, count, words);
        puts(handover);
        fflush(stdout);
        for (int i = 0; i < count; i++)
            free(words[i]);
        free(words);
    }
    return EXIT_SUCCESS;
}
