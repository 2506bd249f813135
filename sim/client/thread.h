/*
 * The thread that NVIDIA's libraries have in each process that uses them.
 */
#pragma once

/* Starts it, once in a process, and anew in a child of fork, which does not have the parent's. It takes no
 * signal and does nothing: a call that needs a process of one thread fails here as on a card. */
void sim_start_thread(void);
