/* A gate before a local ZooKeeper: connections of other users of this machine are closed before Java sees them.
 *
 * Preloaded (LD_PRELOAD) into the server's Java, it takes the place of the C library's `accept`. See zookeeper_server.py, which
 * tells what it is for. The kernel is asked for the user of the peer's socket by its four numbers. Root, and who runs
 * the server, come in; so does a peer that is on another machine, where the server listens beyond the loopback
 * interface; and everybody where the kernel cannot be asked.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum answer { OURS, FOREIGN, NONE, UNKNOWN };

/* Whose the TCP socket is that has `here` as its own end and `there` as its other. */
static enum answer
owner_of(const struct sockaddr_in *here, const struct sockaddr_in *there)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } request = {
        .head = {.nlmsg_len = sizeof(request), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        .body = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u},
    };
    struct {
        struct nlmsghdr head;
        union {
            struct inet_diag_msg found;
            struct nlmsgerr error;
        } body;
        char more[512];
    } reply;
    struct timeval patience = {.tv_sec = 1};
    enum answer answer = UNKNOWN;
    int kernel = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

    if (kernel < 0) {
        return UNKNOWN;
    }
    request.body.id.idiag_sport = here->sin_port;
    request.body.id.idiag_dport = there->sin_port;
    request.body.id.idiag_src[0] = here->sin_addr.s_addr;
    request.body.id.idiag_dst[0] = there->sin_addr.s_addr;
    request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    setsockopt(kernel, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (send(kernel, &request, sizeof(request), 0) == (ssize_t)sizeof(request)) {
        ssize_t length = recv(kernel, &reply, sizeof(reply), 0);
        if (length >= (ssize_t)(sizeof(reply.head) + sizeof(reply.body.found)) &&
            reply.head.nlmsg_type == SOCK_DIAG_BY_FAMILY) {
            uint32_t user = reply.body.found.idiag_uid;
            /* A socket that its process has closed is shown as root's, without an inode. */
            answer = reply.body.found.idiag_inode != 0 && (user == geteuid() || user == 0) ? OURS : FOREIGN;
        } else if (length >= (ssize_t)(sizeof(reply.head) + sizeof(int)) && reply.head.nlmsg_type == NLMSG_ERROR &&
                   reply.body.error.error == -ENOENT) {
            answer = NONE;
        }
    }
    close(kernel);
    return answer;
}

static int
may_enter(int connection)
{
    struct sockaddr_in here, there;
    socklen_t here_size = sizeof(here), there_size = sizeof(there);

    if (getsockname(connection, (struct sockaddr *)&here, &here_size) < 0 || here.sin_family != AF_INET) {
        return 1;
    }
    if (getpeername(connection, (struct sockaddr *)&there, &there_size) < 0) {
        return 0; /* it is gone already */
    }
    switch (owner_of(&there, &here)) {
    case OURS:
    case UNKNOWN:
        return 1;
    case FOREIGN:
        return 0;
    case NONE:
        break;
    }
    if (ntohl(here.sin_addr.s_addr) >> 24 != IN_LOOPBACKNET) {
        return 1; /* the peer's socket is another machine's */
    }
    return owner_of(&here, &there) == NONE; /* the kernel does not even know our own end: it knows nothing of TCP */
}

int
accept4(int listener, struct sockaddr *address, socklen_t *size, int flags)
{
    socklen_t room = size == NULL ? 0 : *size;
    int turned_away = 0;

    for (;;) {
        int connection = (int)syscall(SYS_accept4, listener, address, size, flags);
        if (connection < 0) {
            /* Java waits for a connection after the kernel has told of one. For one that was turned away it gets a
             * socket of another kind: ZooKeeper drops that at once, and without a word. */
            return turned_away && (errno == EAGAIN || errno == EWOULDBLOCK)
                       ? socket(AF_UNIX, SOCK_STREAM | (flags & (SOCK_CLOEXEC | SOCK_NONBLOCK)), 0)
                       : connection;
        }
        if (may_enter(connection)) {
            return connection;
        }
        close(connection);
        turned_away = 1;
        if (size != NULL) {
            *size = room;
        }
    }
}

int
accept(int listener, struct sockaddr *address, socklen_t *size)
{
    return accept4(listener, address, size, 0);
}
