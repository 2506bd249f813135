/*
 * The state of xpu-sim-driver. One thread owns all of it; nothing here is shared with a client.
 *
 * Memory and kernels are accounted to a unit: a device, or one MIG device of it. A context is a client's work
 * on one unit. A block is memory, booked on the unit and on the cgroup that the process was in at the
 * allocation. It lives until the last slot (a client's hold on it) and the last handle (a file descriptor on
 * its way somewhere) are gone. It is in a process's reported usage only as long as its allocator has it.
 */
#pragma once

#include "../protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum {
    MAX_CONNECTIONS = 8192,
    MAX_CONNECTIONS_PER_PROCESS = 16,
    MAX_WAITS_PER_CONNECTION = 64,
    MAX_SLOTS = 1 << 20,
    MAX_ALL_CONTEXTS = 16384,
    MAX_HANDLES = 4096,
    MAX_HANDLES_PER_CONNECTION = 256,
    MAX_QUEUED = 1 << 22,                /* the space for all clients' commands */
    MAX_QUEUED_PER_CONNECTION = 1 << 19, /* 8 full channels of each of its contexts */
    UNITS_PER_DEVICE = 1 + SIM_MAX_MIG,
    METER_SAMPLES = 102, /* kept samples, including the present one */
};
#define METER_SAMPLE_NS 166666667ull /* the shortest interval of real cards: 1/6 s */

/* Busy time by samples. */
struct meter {
    uint64_t newest; /* number of the newest sample, from the clock's zero */
    uint32_t ns[METER_SAMPLES];
    uint64_t total; /* ns in all */
};

struct context;

struct unit {
    uint64_t used;            /* bytes */
    struct context *contexts; /* those with a queue, by `next_of_unit` */
    struct context *ring;     /* one of those with commands, which take turns; NULL: none */
    struct context *running;  /* the context that runs; NULL: none */
    uint32_t last;            /* serial of the last one that ran: there is no switch to it */
    uint64_t clock;           /* its work is simulated up to here, ns */
    uint64_t slice_left;      /* of the running context, ns */
    uint64_t switch_left;     /* until the running context runs, ns */
    struct meter meter;
};

struct device {
    struct sim_device info;
    struct unit units[UNITS_PER_DEVICE];
};

/* A context that may have ended: its place in `state.contexts`, and its number. */
struct reference {
    uint32_t place, serial;
};

/* A command that has been taken. */
struct command {
    uint64_t stamp; /* it can begin then */
    uint64_t end;   /* the channel's device time at its end, ns */
    uint64_t value; /* SIM_WAIT: position */
    struct reference target;
    uint16_t kind, channel; /* SIM_WAIT: the target's channel */
    bool across;            /* SIM_WAIT: for another unit's work */
    uint32_t number,
        generation; /* SIM_RECORD: the event; SIM_SPIN, SIM_RAISE: the flag; SIM_FAULT: the status */
};

/* A hardware queue: its commands run one after the other. */
struct channel {
    struct command *queue; /* `capacity` places, by position; a power of two */
    uint32_t capacity;
    uint64_t accepted, completed; /* positions */
    uint64_t work, executed;      /* ns of device time: of all accepted commands, and so far */
};

struct shared_event;

struct event {
    bool taken;
    uint32_t generation; /* counts the events that have had this number */
    uint32_t channel;
    uint64_t position; /* of its latest record here; 0: none */
    uint64_t time;     /* its completion */
    struct shared_event *shared;
};

struct client;

struct context {
    struct client *client;
    struct unit *unit;
    uint32_t device, mig;
    struct reference self;
    uint32_t id;             /* the client's name for it: its slot, and the number of that slot's uses */
    struct sim_queue *queue; /* shared with the client; NULL: not requested yet */
    uint64_t taken;          /* commands taken from it */
    uint64_t latest;         /* stamp of the last of those */
    enum sim_status fault;   /* SIM_OK, or the error that ended its work for good */
    struct channel channels[SIM_MAX_CHANNELS];
    uint64_t active; /* the channels with commands, by bit */
    uint64_t carry;  /* a rest of device time that was too small to divide, ns */
    uint64_t flags[SIM_MAX_FLAGS / 64];
    struct event *events; /* by number */
    uint32_t event_count;
    struct context *next, *previous; /* in the unit's ring */
    bool in_ring;
    struct context *next_of_unit;
    struct meter meter;
};

_Static_assert(SIM_MAX_CHANNELS <= 64, "channels are bits of a word");

struct cgroup {
    struct cgroup *parent, *children, *sibling;
    uint64_t inode;
    uint32_t references; /* charges, limits and clients; children hold their parents by their existence */
    bool dead;           /* its folder is gone, or is another one now */
    uint64_t used[SIM_MAX_DEVICES]; /* bytes, with all below it */
    uint64_t soft[SIM_MAX_DEVICES], hard[SIM_MAX_DEVICES];
    bool limited; /* at least one limit is set; holds one reference */
    char name[];
};

/* The file with the bytes of a client's memory. */
struct data {
    int fd;
    uint32_t references; /* the client, and its shared blocks */
};

struct block {
    uint64_t size;
    struct cgroup *cgroup; /* NULL: host memory, which is charged to no unit */
    uint32_t device, mig;
    struct client *owner;          /* its reported usage includes this; NULL: none does any more */
    uint32_t owned;                /* slots of the owner's */
    uint32_t references;           /* slots and handles */
    struct data *data;             /* NULL: not shared */
    uint64_t offset, key[2];       /* of a shared block */
    struct block *next, *previous; /* among the shared ones */
};

struct slot {
    struct block *block; /* NULL: free */
    uint32_t context;    /* its owner; SIM_NO_CONTEXT: the client */
    uint32_t generation;
};

/* A descriptor that stands for a block anywhere: its other end. */
struct handle {
    int fd;
    ino_t inode;          /* of both ends */
    struct client *maker; /* NULL: gone */
    struct block *block;
    struct handle *next;
};

/* MPS: a server has a key, and its clients have a server. */
struct mps {
    uint64_t key;
    struct client *server;
    uint32_t percent;      /* the most of the device's multiprocessors that it may use */
    uint64_t pinned, held; /* bytes of device memory: the limit (0: none), and its allocations */
    bool struck;           /* a fault was its own, or another's under its server */
    enum sim_status fault; /* SIM_OK, or the reason why it has lost everything */
};

struct client {
    int socket, pidfd;
    struct mps mps;
    pid_t pid;
    uid_t uid;
    bool doomed; /* closed at the end of this round of events */
    struct context *contexts[SIM_MAX_CONTEXTS];
    uint32_t context_uses[SIM_MAX_CONTEXTS]; /* number of each slot's uses */
    struct slot *slots;
    uint32_t slot_count, slot_capacity, waits, handles;
    uint32_t queued;                                   /* places in its channels' queues */
    uint32_t first_free;                               /* slots below it are taken */
    uint64_t usage[SIM_MAX_DEVICES][UNITS_PER_DEVICE]; /* bytes: its reported usage */
    uint64_t busy[SIM_MAX_DEVICES][UNITS_PER_DEVICE];  /* ns: of ended contexts */
    uint64_t since;                                    /* the time when it came */
    struct data *data;
    struct cgroup *cgroup; /* the last known cgroup of the process */
    char *cgroup_path;
    struct client *next;
};

/* A request whose reply comes later: when a position is done. */
struct wait {
    struct client *client;
    struct context *context;
    uint64_t seq, position;
    uint32_t channel;
    struct wait *next;
};

struct state {
    uint32_t device_count;
    struct device devices[SIM_MAX_DEVICES];
    char driver_version[32], nvml_version[32];
    int32_t cuda_version;
    uint32_t memory_limits;
    uint64_t time_slice, switch_time; /* ns */
    char socket_dir[SIM_MAX_PATH], pid_file[SIM_MAX_PATH], log_file[SIM_MAX_PATH];
    struct client *clients;
    uint32_t client_count, slot_count, context_count, handle_count;
    struct wait *waits;
    struct handle *handles;
    struct context *contexts[MAX_ALL_CONTEXTS]; /* by place */
    uint32_t last_serial;
    uint32_t queued;      /* as in a client */
    struct block *shared; /* all shared blocks */
    int epoll_fd;
    uint32_t across; /* commands that wait for the work of another unit */
};

extern struct state state;

/* state.c */
struct unit *unit_of(uint32_t device, uint32_t mig);
struct context *context_of(struct client *client, uint32_t id);
/* NULL: it has ended. */
struct context *context_behind(struct reference reference);
/* The lowest bits of an event's pointer tell its kind. */
enum { WATCH_CLIENT = 0, WATCH_DEATH = 1, WATCH_HANDLE = 2 };
bool watch(int fd, void *what, unsigned kind);
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* config.c: fills `state` from a file of key=value lines; false: `problem` says why not. */
bool config_read(const char *path, char *problem, size_t size);

/* cgroup.c */
void cgroup_setup(void);
/* The node of a client's process's present cgroup (the root's, if that is unknown). */
struct cgroup *cgroup_of(struct client *client);
enum sim_status cgroup_named(const char *path, bool create, struct cgroup **found);
void cgroup_release(struct cgroup *group);
/* The nearest limited cgroup at or above `group`, or NULL. */
struct cgroup *cgroup_limit(struct cgroup *group, uint32_t device);
enum sim_status cgroup_set_limits(struct cgroup *group, uint32_t device, uint64_t soft, uint64_t hard);
bool cgroup_charge(struct cgroup *group, uint32_t device, uint64_t size);
void cgroup_uncharge(struct cgroup *group, uint32_t device, uint64_t size);

/* memory.c */
/* For a context, or (SIM_NO_CONTEXT) for the client, on a unit. */
enum sim_status memory_allocate(struct client *client, const struct sim_request *request, uint64_t *id);
enum sim_status memory_take(struct client *client, uint32_t context, struct block *wanted, uint64_t *id);
/* *shared: another process still has it. */
enum sim_status memory_free(struct client *client, uint64_t id, bool *shared);
struct block *memory_block(struct client *client, uint64_t id);
/* Adds one hold of a client on a block. */
enum sim_status memory_join(struct client *client, uint32_t context, struct block *block, uint64_t *id);
void memory_unref(struct block *block);
/* Removes one hold of the file with a client's bytes; NULL: nothing. */
void data_release(struct data *data);
void memory_free_context(struct client *client, uint32_t context);
void memory_free_client(struct client *client);
/* The values of SIM_MEMORY. The reserved memory is in neither of the others. */
void memory_report(struct client *client, uint32_t device, uint32_t mig, uint64_t *value);

/* share.c; it closes the descriptors that it is given, unless it takes them */
enum sim_status share_data(struct client *client, int fd);
enum sim_status share_block(struct client *client, uint64_t id, uint64_t offset, uint64_t *key);
enum sim_status share_open(struct client *client, const uint64_t *key, struct sim_opened *opened, int *data);
enum sim_status share_export(struct client *client, uint64_t id, int *handle);
enum sim_status share_import(struct client *client, int fd, struct sim_opened *opened, int *data);
void share_forget_client(struct client *client);
/* No process has the descriptor any more. */
void share_hangup(struct handle *handle);

/* context.c */
enum sim_status context_create(struct client *client, uint32_t device, uint32_t mig, uint64_t *id);
enum sim_status context_destroy(struct client *client, uint32_t id);
/* *fd: the memory for the client to map, closed after the reply */
enum sim_status context_queue(struct context *context, int *fd);

/* event.c; a number that is no event of the context: SIM_INVALID */
bool event_exists(const struct context *context, uint64_t number);
enum sim_status event_create(struct context *context, uint64_t *number);
enum sim_status event_destroy(struct context *context, uint64_t number);
void event_forget_context(struct context *context);
/* The latest command of the channel is a record of it. Returns its generation, or 0 without such an event. */
uint32_t event_recorded(struct context *context, uint64_t number, uint32_t channel);
/* A record of it is complete. */
void event_complete(struct context *context, uint32_t number, uint32_t generation, uint64_t time);
/* SIM_PENDING: its latest record here is not complete. */
enum sim_status event_time(const struct context *context, uint64_t number, uint64_t *time);
enum sim_status event_share(struct context *context, uint64_t number, uint64_t *key);
/* *number 0: it is the client's own. */
enum sim_status event_open(struct context *context, const uint64_t *key, uint64_t *number);
/* The place of its latest record, and whose work that is in; NULL: it is complete. */
struct context *event_latest(struct context *context, uint64_t number, uint32_t *channel, uint64_t *position);

/* queue.c */
/* Takes the client's commands from a context's queue; `now`: as of this time. */
void queue_take(struct context *context, uint64_t now);
/* The first command of a channel is done. */
void queue_done(struct context *context, uint32_t channel);
/* All commands are done or dropped: the context has failed, or goes away. */
void queue_clear(struct context *context);
/* All work of a context ends with a fault, for good. */
void context_fail(struct context *context, enum sim_status fault);
/* The same for all that run under its MPS server on the unit. */
void context_fault(struct context *context, enum sim_status fault);
static inline struct command *queue_head(const struct channel *channel) {
    return &channel->queue[(channel->completed + 1) & (channel->capacity - 1)];
}

/* clock.c */
uint64_t clock_now(void);
/* Its time in us since 1970. It does not jump with the system's clock. */
uint64_t clock_date(uint64_t time);
uint64_t clock_of_date(uint64_t date);
/* The unit or context was busy in that time (clock, ns). */
void meter_add(struct meter *meter, uint64_t from, uint64_t to);
/* The latest visible sample, in percent. It is late by one. */
uint32_t meter_percent(const struct meter *meter, uint64_t now);
/* The mean of the kept samples that were taken after `since` (clock, ns); *time: that of the last one that is
 * not 0. */
uint32_t meter_percent_since(const struct meter *meter, uint64_t now, uint64_t since, uint64_t *time);

/* runlist.c: contexts with commands take turns. Those of one MPS server's clients share a time slice. */
/* A context has its first command, or none any more. */
void context_join(struct context *context);
void context_leave(struct context *context);
/* Whether two contexts have one time slice together: those of one MPS server's clients, or the same one. */
bool share_time_slice(const struct context *one, const struct context *other);
/* The next one with commands that shares the time slice of `from`; NULL if there is no other. */
struct context *companion(struct context *from);
/* Of the contexts that share a time slice only the oldest is in the ring, for all of them. */
bool leads_time_slice(struct context *context);
/* The time slice's number: that of its context, or of the MPS server. */
uint32_t time_slice_of(const struct context *context);
/* The unit's time slice is over. */
void end_time_slice(struct unit *unit);

/* schedule.c */
/* Takes and simulates the unit's work up to `now`. */
void unit_advance(struct unit *unit, uint64_t now);
/* A time by which a position is done, ns; 0: not before another event. */
uint64_t context_due(const struct context *context, uint32_t channel, uint64_t position);
/* mps.c */
enum sim_status mps_request(struct client *client, const struct sim_request *request, uint64_t *value);
/* A client ends. With a server, all of its clients' objects end too. */
void mps_leave(struct client *gone);

/* process.c: /proc's facts about a client. */
bool process_on_host(pid_t pid);
uint32_t process_list(struct client *asker, const struct sim_request *request, struct sim_process *found);
uint32_t process_users(uint32_t *pids);

/* reply.c */
/* A reply's contents besides its status. The payload need not outlive the call. */
struct answer {
    uint64_t value[3];
    const void *payload;
    size_t size;
    int fd;     /* -1: none */
    bool close; /* fd, once it is sent */
};
void answer(struct client *client, uint64_t seq, enum sim_status status, const struct answer *said);

/* requests.c */
/* `fd` came with it, or is -1. It is closed here. */
void request_handle(struct client *client, const char *message, size_t size, int fd);
/* waits.c */
enum sim_status wait_for(struct client *client, struct context *context, uint64_t seq, uint32_t channel,
                         uint64_t position);
/* Answers every wait that is due. Returns the time of the next look, ns (0: never). */
uint64_t waits_resolve(uint64_t now);
void waits_drop_context(struct context *context, enum sim_status status);
void waits_drop_client(struct client *client);

/* start.c */
extern int ready_fd; /* the daemon's start is waited for on it, or -1 */
/* Writes a line there, once. */
void report(const char *line);
_Noreturn void give_up(const char *what, const char *where);
void become_daemon(void);
void write_pid_file(const char *path);
