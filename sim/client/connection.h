/*
 * One process's connection to the simulated driver, shared by its threads.
 *
 * Threads send their requests as they come. The first of them to wait reads for all, so that a wait for a
 * long kernel does not hold up others. After a fork the child starts without a connection.
 */
#pragma once

#include "../protocol.h"

#include <stdbool.h>
#include <stddef.h>

/* Connects to the driver, whose place follows from this library's own. SIM_OK if there already is a
 * connection. */
enum sim_status sim_connect(void);
void sim_disconnect(void);
bool sim_connected(void);
/* Called in the child after a fork, so that the library forgets the parent's objects. */
void sim_on_fork(void (*forget)(void));
/* close() for the functions called there: ThreadSanitizer of GCC 14 has a close of its own, which crashes in
 * a child before its fork() returns. */
void sim_close_after_fork(int fd);

/*
 * One request and its reply. `request` needs its operation and arguments only; `path` is NULL except for the
 * limit operations. At most `capacity` bytes of the reply's payload go to `payload`.
 */
enum sim_status sim_call(struct sim_request *request, const char *path, struct sim_reply *reply,
                         void *payload, size_t capacity);
/* The same with descriptors. `passed` (-1: none) is sent, and stays the caller's. The reply's descriptor (-1:
 * none) becomes the caller's too. */
enum sim_status sim_call_fd(struct sim_request *request, int passed, void *payload, size_t capacity,
                            int *received);
