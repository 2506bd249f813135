/*
 * The commands of "Legacy MPS v2 Interface", a line each.
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

static const char *word(char **rest) { return strtok_r(NULL, " \t\r\n", rest); }

void carry_out2(char *text, bool privileged) {
    char *rest = NULL;
    const char *command = strtok_r(text, " \t\r\n", &rest), *first, *second;
    if (!command)
        return;
    if (!privileged && strncmp(command, "get_", 4) != 0 && strcmp(command, "ps") != 0) {
        say("Insufficient permissions\n");
    } else if (strcmp(command, "get_server_list") == 0) {
        if (server)
            say("%d\n", server);
    } else if (strcmp(command, "get_server_status") == 0) {
        static const char *const names[] = {"INITIALIZING", "INITIALIZING", "ACTIVE", "FAULT"};
        if (is_server(word(&rest)))
            say("%s\n", names[ask_server(MPS_STATUS, 0).status & 3]);
    } else if (strcmp(command, "start_server") == 0) {
        first = word(&rest);
        second = word(&rest);
        if (!first || strcmp(first, "-uid") != 0 || !second)
            say("usage: start_server -uid <user id>\n");
        else if (!server)
            start_server((uid_t)atol(second));
    } else if (strcmp(command, "get_client_list") == 0) {
        if (is_server(word(&rest)))
            list_clients();
    } else if (strcmp(command, "ps") == 0) {
        list_clients();
    } else if (strcmp(command, "set_default_active_thread_percentage") == 0) {
        if (read_percent(word(&rest), &default_percent))
            say("%.1f\n", default_percent);
    } else if (strcmp(command, "get_default_active_thread_percentage") == 0) {
        say("%.1f\n", default_percent);
    } else if (strcmp(command, "set_active_thread_percentage") == 0) {
        if (is_server(word(&rest)) && read_percent(word(&rest), &server_percent))
            say("%.1f\n", server_percent);
    } else if (strcmp(command, "get_active_thread_percentage") == 0) {
        if (is_server(word(&rest)))
            say("%.1f\n", server_percent);
    } else if (strcmp(command, "set_default_device_pinned_mem_limit") == 0) {
        first = word(&rest);
        set_pinned(default_pinned, first, word(&rest));
    } else if (strcmp(command, "get_default_device_pinned_mem_limit") == 0) {
        get_pinned(default_pinned, word(&rest));
    } else if (strcmp(command, "set_device_pinned_mem_limit") == 0) {
        if (is_server(word(&rest))) {
            first = word(&rest);
            set_pinned(server_pinned, first, word(&rest));
        }
    } else if (strcmp(command, "get_device_pinned_mem_limit") == 0) {
        if (is_server(word(&rest)))
            get_pinned(server_pinned, word(&rest));
    } else if (strcmp(command, "terminate_client") == 0) {
        if (is_server(word(&rest)) && (first = word(&rest)))
            say("%d\n", ask_server(MPS_TERMINATE, (pid_t)atol(first)).status ? 0 : 1);
    } else if (strcmp(command, "quit") == 0) {
        first = word(&rest);
        second = word(&rest);
        quit(first && strcmp(first, "-t") == 0 && second ? atoi(second) : 0);
    } else {
        say("Unrecognized command: %s\n", command);
    }
}
