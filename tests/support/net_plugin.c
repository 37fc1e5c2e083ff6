/* A net plugin of NCCL over TCP, for tests, on the loopback or the address in TEST_ADDRESS. -DVERSION=5 … 12 is the
 * interface that it exports, -DFAULT_… what goes wrong. NCCL itself can use it: each message has its size before it,
 * since a receiver has room for more than is sent. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 8
#endif
#define PASTED(a, b) a##b
#define NAME(a, b) PASTED(a, b)
enum { QUEUE = 256 };

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);
typedef struct { char *data; size_t size, done; uint64_t length; size_t counted; } Request;  /* counted: bytes of length */
typedef struct { int socket, sending; Request requests[QUEUE]; long next, head; } Comm;
typedef struct { Comm *comm; long number; } Ticket;

static logger out;

#ifdef FAULT_CONSTRUCTOR
__attribute__((constructor)) static void first(void) { abort(); }
#endif
#ifdef FAULT_LOADING
__attribute__((constructor)) static void first(void) { for (;;) pause(); }
#endif

static int begun(logger log) {
    out = log;
    out(3, 16, __FILE__, __LINE__, "NET/TEST version %d of %s", VERSION, "tests");
#ifdef FAULT_INIT
    out(2, 1, __FILE__, __LINE__, "NET/OFI Failed to find CUDA Driver library: %s", "libcuda.so: not here");
    return 2;
#endif
    return 0;
}

static int devices(int *count) {
#ifdef FAULT_DEVICES
    *count = 0;
    return 0;
#endif
    *count = 2;
    return 0;
}

/* Each version's own layout: the fields before speed have grown. */
typedef struct {
    char *name, *path;
    uint64_t guid;
    int memory;
#if VERSION >= 8
    int global;
#endif
#if VERSION >= 9
    int flush;
#endif
    int speed, port;
    float latency;
    int comms, receives;
#if VERSION >= 7
    int offload, offload_version;
#endif
#if VERSION >= 9
    int count, members[4];
    size_t most, most_collective;
#endif
#if VERSION >= 11
    int together;
#endif
#if VERSION >= 12
    int16_t rail, plane;
#endif
} Properties;

static int properties(int device, Properties *p) {
    memset(p, 0, sizeof *p);
    p->name = device ? "second" : "first";
    p->path = "/sys/test";
    p->memory = 1;
    p->speed = 1000 * (device + 1);
    p->port = 3 + device;
    p->comms = 1 << 16;
    p->receives = 1;
#if VERSION >= 9
    p->count = 1;
    p->members[0] = device;
    p->most = p->most_collective = 1 << 30;
#endif
#if VERSION >= 11
    p->together = 1;
#endif
#if VERSION >= 12
    p->rail = p->plane = -1;
#endif
    return 0;
}

static int listening(int device, void *handle, void **comm) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (getenv("TEST_ADDRESS")) inet_pton(AF_INET, getenv("TEST_ADDRESS"), &at.sin_addr);
    socklen_t size = sizeof at;
    Comm *c = calloc(1, sizeof *c);
    (void)device;
    c->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(c->socket, (void *)&at, size) || listen(c->socket, 4) || getsockname(c->socket, (void *)&at, &size)) return 2;
    memcpy(handle, &at, sizeof at);
    *comm = c;
    return 0;
}

static int connecting(void *handle, void **comm) {
    struct sockaddr_in at;
#ifdef FAULT_CONNECT
    return 0;  /* never there */
#endif
#ifdef FAULT_HANG
    for (;;) pause();
#endif
    memcpy(&at, handle, sizeof at);
    Comm *c = calloc(1, sizeof *c);
    c->sending = 1;
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->socket, (void *)&at, sizeof at)) return 2;
    fcntl(c->socket, F_SETFL, O_NONBLOCK);
    *comm = c;
    return 0;
}

static int accepting(void *listener, void **comm) {
    int got = accept4(((Comm *)listener)->socket, NULL, NULL, SOCK_NONBLOCK);
    if (got < 0) return errno == EAGAIN ? 0 : 2;
    Comm *c = calloc(1, sizeof *c);
    c->socket = got;
    *comm = c;
    return 0;
}

static int registering(void **memory) { *memory = "registered"; return 0; }

static int deregister(void *comm, void *memory) { (void)comm; (void)memory; return 0; }

static int posted(Comm *c, void *data, size_t size, void **request) {
    if (c->next - c->head >= 4) { *request = NULL; return 0; }  /* not now */
    Ticket *ticket = malloc(sizeof *ticket);
    c->requests[c->next % QUEUE] = (Request){data, size, 0, c->sending ? size : 0, 0};
    *ticket = (Ticket){c, c->next++};
    *request = ticket;
    return 0;
}

/* Moves what can be moved now: 0 when all is, 1 when some is left, negative when the other end is gone. */
static int moved(Comm *c, char *data, size_t *done, size_t size) {
    while (*done < size) {
        ssize_t n = c->sending ? send(c->socket, data + *done, size - *done, MSG_NOSIGNAL)
                               : recv(c->socket, data + *done, size - *done, 0);
        if (n < 0 && errno == EAGAIN) return 1;
        if (n <= 0) return -1;
        *done += (size_t)n;
    }
    return 0;
}

static int test(void *request, int *done, int *size) {
    Ticket *ticket = request;
    Comm *c = ticket->comm;
    while (c->head <= ticket->number) {
        Request *r = &c->requests[c->head % QUEUE];
#ifdef FAULT_STUCK
        if (c->head == 3) break;
#endif
        int left = moved(c, (char *)&r->length, &r->counted, sizeof r->length);
        if (!left && r->length > r->size) return 6;
        if (!left) left = moved(c, r->data, &r->done, r->length);
        if (left > 0) break;
        if (left < 0) return 6;
#ifdef FAULT_DAMAGE
        if (!c->sending && c->head == 5) r->data[r->length / 2] ^= 1;
#endif
        c->head++;
    }
    *done = c->head > ticket->number;
    if (*done) {
        if (size) *size = (int)c->requests[ticket->number % QUEUE].length;
        free(ticket);
    }
    return 0;
}

static int closing(void *comm) { close(((Comm *)comm)->socket); free(comm); return 0; }

static int flush(void) { return 3; }

/* --- what differs by version --- */
#if VERSION >= 11
static int context;
static int init(void **c, uint64_t id, void *config, logger log, void *profile) {
    (void)id; (void)profile;
    if (*(int *)config != -1) return 4;
    *c = &context;
    return begun(log);
}
static int listen_(void *c, int d, void *h, void **comm) { return c == &context ? listening(d, h, comm) : 4; }
static int connect_(void *c, int d, void *h, void **comm, void **o) {
    (void)d; (void)o;
    return c == &context ? connecting(h, comm) : 4;
}
static int finalize(void *c) { return c == &context ? 0 : 4; }
#elif VERSION == 10
static int init(logger log, void *profile) { (void)profile; return begun(log); }
static int connect_(int d, void *config, void *h, void **comm, void **o) {
    (void)d; (void)o;
    return *(int *)config == -1 ? connecting(h, comm) : 4;
}
#define listen_ listening
#else
#define init begun
#define listen_ listening
#if VERSION >= 7
static int connect_(int d, void *h, void **comm, void **o) { (void)d; (void)o; return connecting(h, comm); }
#else
static int connect_(int d, void *h, void **comm) { (void)d; return connecting(h, comm); }
#endif
#endif
#if VERSION >= 7
static int accept_(void *l, void **comm, void **o) { (void)o; return accepting(l, comm); }
#else
#define accept_ accepting
#endif
#if VERSION >= 8
static int reg(void *c, void *d, size_t s, int t, void **m) { (void)c; (void)d; (void)s; return t == 1 ? registering(m) : 4; }
#else
static int reg(void *c, void *d, int s, int t, void **m) { (void)c; (void)d; return t == 1 && s > 0 ? registering(m) : 4; }
#endif
static int known(void *memory) { return memory && !strcmp(memory, "registered"); }
#if VERSION >= 10
static int isend(void *c, void *d, size_t s, int t, void *m, void *p, void **r) {
    (void)t;
    (void)p;
    return known(m) ? posted(c, d, s, r) : 4;
}
static int irecv(void *c, int n, void **d, size_t *s, int *t, void **m, void **p, void **r) {
    (void)t;
    (void)p;
    return n == 1 && known(*m) ? posted(c, *d, *s, r) : 4;
}
#elif VERSION == 9
static int isend(void *c, void *d, size_t s, int t, void *m, void **r) { (void)t; return known(m) ? posted(c, d, s, r) : 4; }
static int irecv(void *c, int n, void **d, size_t *s, int *t, void **m, void **r) {
    (void)t;
    return n == 1 && known(*m) ? posted(c, *d, *s, r) : 4;
}
#else
static int isend(void *c, void *d, int s, int t, void *m, void **r) {
    (void)t;
    return known(m) ? posted(c, d, (size_t)s, r) : 4;
}
static int irecv(void *c, int n, void **d, int *s, int *t, void **m, void **r) {
    (void)t;
    return n == 1 && known(*m) ? posted(c, *d, (size_t)*s, r) : 4;
}
#endif

void *NAME(ncclNetPlugin_v, VERSION)[] = {
    "Test", init, devices, properties, listen_, connect_, accept_, reg,
#if VERSION >= 6
    flush,  /* regMrDmaBuf */
#endif
    deregister, isend, irecv, flush, test, closing, closing, closing,
#if VERSION >= 7
    0, 0,  /* getDeviceMr, irecvConsumed: NCCL calls them where they are there */
#endif
#if VERSION >= 9
    0,  /* makeVDevice */
#endif
#if VERSION >= 11
    finalize, 0,
#endif
};
