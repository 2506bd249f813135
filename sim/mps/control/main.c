/*
 * The options, and the front end: commands go to the running daemon, in its protocol.
 */
#define _GNU_SOURCE
#include "control.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Sends its input, line by line, and prints the answers. */
static int run_commands(int fd) {
    char line[MAX_COMMAND];
    while (fgets(line, sizeof line, stdin)) {
        if (send(fd, line, strlen(line), MSG_NOSIGNAL) < 0)
            return 1;
        ssize_t size = recv(fd, answer, sizeof answer - 1, 0);
        if (size <= 0)
            return strncmp(line, "quit", 4) != 0;
        answer[size] = 0;
        fputs(answer, stdout);
    }
    return 0;
}

/* One command of protocol 3: `module verb …`. */
static int run_command(int fd, int count, char **words) {
    char line[MAX_COMMAND] = "";
    for (int i = 0; i < count; i++)
        if (strlen(line) + strlen(words[i]) + 2 < sizeof line)
            strcat(strcat(line, words[i]), " ");
    ssize_t size =
        send(fd, line, strlen(line), MSG_NOSIGNAL) < 0 ? -1 : recv(fd, answer, sizeof answer - 1, 0);
    if (size <= 0)
        return strcmp(words[0], "quit") != 0;
    answer[size] = 0;
    bool wrong = strncmp(answer, MPS_WRONG, strlen(MPS_WRONG)) == 0;
    fputs(answer, wrong ? stderr : stdout);
    return wrong;
}

static int to_daemon(int count, char **words) {
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    /* Protocol 3 has one socket, and commands of words. */
    const char *const names[] = {"control_privileged", "control"};
    for (int i = geteuid() == 0 ? 0 : 1; fd >= 0 && i < (geteuid() || count ? 2 : 1); i++) {
        if (named(&address, names[i]) && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return count ? run_command(fd, count, words) : run_commands(fd);
    }
    printf("Cannot find MPS control daemon process\n");
    return 1;
}

static int usage(void) {
    fprintf(stderr, "usage: nvidia-cuda-mps-control [-d | -f] [-multiuser-server]\n"
                    "       nvidia-cuda-mps-control -p 3 [-d | -f] [-m] [-a FILE]\n"
                    "       nvidia-cuda-mps-control -q | MODULE VERB [WORD...]\n");
    return 1;
}

int main(int argc, char **argv) {
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY"), *protocol = getenv("CUDA_MPS_PROTOCOL_VERSION"),
               *configuration = NULL, *asked = NULL;
    bool as_daemon = false, background = false;
    char *quits[] = {"quit"};
    int i = 1;
    snprintf(pipe_folder, sizeof pipe_folder, "%s", folder && *folder ? folder : MPS_DEFAULT_PIPE);
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *word = argv[i];
        bool more = i + 1 < argc;
        if (strcmp(word, "-d") == 0 || strcmp(word, "--daemon") == 0)
            as_daemon = background = true;
        else if (strcmp(word, "-f") == 0 || strcmp(word, "--foreground") == 0)
            as_daemon = true;
        else if (strcmp(word, "-multiuser-server") == 0 || strcmp(word, "-m") == 0 ||
                 strcmp(word, "--multiuser") == 0)
            options.multiuser = true;
        else if ((strcmp(word, "-p") == 0 || strcmp(word, "--protocol") == 0) && more)
            asked = argv[++i];
        else if ((strcmp(word, "-a") == 0 || strcmp(word, "--apply") == 0) && more)
            configuration = argv[++i];
        else if (strcmp(word, "-q") == 0 || strcmp(word, "--quit") == 0)
            return to_daemon(1, quits);
        else
            return usage();
    }
    protocol = protocol && *protocol ? protocol : asked; /* in this order */
    options.protocol = protocol ? atoi(protocol) : 2;
    if ((options.protocol != 2 && options.protocol != 3) || (configuration && options.protocol != 3))
        return usage();
    if (as_daemon)
        run_daemon(background, configuration);
    return to_daemon(argc - i, argv + i);
}
