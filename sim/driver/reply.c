/*
 * Replies to clients.
 */
#define _GNU_SOURCE
#include "state.h"

#include <string.h>
#include <sys/socket.h>

void answer(struct client *client, uint64_t seq, enum sim_status status, const struct answer *said) {
    struct sim_reply head = {.seq = seq, .status = status};
    union {
        struct cmsghdr header;
        char buffer[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec parts[2] = {{&head, sizeof head}, {NULL, 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1};
    if (status == SIM_OK && said) {
        memcpy(head.value, said->value, sizeof head.value);
        head.payload = (uint32_t)said->size;
        parts[1] = (struct iovec){(void *)said->payload, said->size};
        message.msg_iovlen = said->size ? 2 : 1;
        if (said->fd >= 0) {
            memcpy(CMSG_DATA(&control.header), &said->fd, sizeof said->fd);
            message.msg_control = &control;
            message.msg_controllen = sizeof control.buffer;
        }
    }
    /* The driver does not wait for a client that does not read its replies. */
    if (sendmsg(client->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        client->doomed = true;
}
