/*
 * Commands of "Legacy MPS v2 Interface", a line each.
 */
#define _GNU_SOURCE
#include "control.h"

#include <stdlib.h>
#include <string.h>

static bool is_server(const char *word) {
    if (word && server && atol(word) == server)
        return true;
    say("Server %s not found\n", word ? word : "");
    return false;
}

int carry_out2(char *text, bool privileged) {
    char *rest = NULL;
    const char *words[3], *command;
    for (int i = 0; i < 3; i++)
        words[i] = strtok_r(i ? NULL : text, " \t\r\n", &rest);
    command = words[0];
    if (!command)
        return -1;
    if (!privileged && strncmp(command, "get_", 4) != 0) {
        say("Insufficient permissions\n");
    } else if (strcmp(command, "get_server_list") == 0) {
        if (server)
            say("%d\n", server);
    } else if (strcmp(command, "get_server_status") == 0) {
        static const char *const names[] = {"INITIALIZING", "INITIALIZING", "ACTIVE", "FAULT"};
        if (is_server(words[1]))
            say("%s\n", names[ask_server().status & 3]);
    } else if (strcmp(command, "start_server") == 0) {
        if (!words[1] || strcmp(words[1], "-uid") != 0 || !words[2])
            say("usage: start_server -uid <user id>\n");
        else if (!server)
            start_server((uid_t)atol(words[2]));
    } else if (strcmp(command, "get_client_list") == 0) {
        bool known = is_server(words[1]);
        for (int i = 0; known && i < MAX_CONNECTIONS; i++)
            if (connections[i].kind == CLIENT)
                say("%d\n", connections[i].pid);
    } else if (strcmp(command, "get_default_active_thread_percentage") == 0) {
        say("100.0\n"); /* no command here sets another value */
    } else if (strcmp(command, "quit") == 0) {
        return words[1] && strcmp(words[1], "-t") == 0 && words[2] ? atoi(words[2]) : 0;
    } else {
        say("Unrecognized command: %s\n", command);
    }
    return -1;
}
