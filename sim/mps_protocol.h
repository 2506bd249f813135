/*
 * The messages between the stand-ins for NVIDIA's MPS. The real ones' protocol is not public: only the names
 * and places of files, the commands and their effects are as theirs.
 */
#pragma once

#include <stdint.h>

#define MPS_DEFAULT_PIPE "/tmp/nvidia-mps"
#define MPS_DEFAULT_LOG "/var/log/nvidia-mps"

/* The beginning of the answer to a failed command of protocol 3. */
#define MPS_WRONG "Error: "

/* A client's first message to the control daemon, and the answer: on the socket `control`, which it keeps. */
#define MPS_CLIENT "client"

enum mps_answer {
    MPS_SERVED = 1, /* by the server of this key */
    MPS_NOT_READY,  /* the server blocks on another client's fault */
    MPS_FAILED,     /* there is no server */
};

struct mps_reply {
    uint32_t answer;
    uint32_t percent; /* the server's active thread percentage */
    uint64_t pinned;  /* bytes of device memory; 0: no limit */
    uint64_t key;     /* names the server to the driver */
    uint32_t decides; /* the percentage is a namespace's: the client's own has no effect */
    uint32_t zero;
};

/* From the control daemon to its server, on the descriptor that the server gets. The server answers each. */
#define MPS_SERVER_FD 3

#define MPS_STATUS "status"

enum mps_status { MPS_INITIALIZING = 1, MPS_ACTIVE, MPS_FAULT };

struct mps_report {
    uint32_t status;
    uint32_t zero;
    uint64_t key;
};
