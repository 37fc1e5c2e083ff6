/* The wire proof: moves a pattern between two processes through a net plugin of NCCL or RCCL, without NCCL and without
 * a GPU. fairlead.proof.wire starts both, each in a process of its own: a plugin may end the process that loads it.
 *
 * It does what NCCL does: opens the plugin by RTLD_NOW | RTLD_LOCAL, looks for ncclNetPlugin_vN from the newest down,
 * init, devices, getProperties, listen, connect and accept until both are there, regMr of host memory, and then several
 * isend and irecv in flight in either direction, each polled by test. What arrives is compared byte by byte.
 *
 * The handles go through files in a folder that both see. What happens is written to `events.RANK` there, a JSON object
 * a line, as it happens: what a process that ended or hangs did last is known.
 *
 * Like the witness it includes no header, links nothing and names no symbol version, so that one file serves in every
 * image. The interface is NCCL's published one, versions 5 to 12: a struct of pointers, the first of which is the name.
 */

typedef unsigned long size_t;
typedef unsigned long word;

int open(const char *, int, ...), close(int), rename(const char *, const char *), snprintf(char *, size_t, const char *, ...);
int vsnprintf(char *, size_t, const char *, __builtin_va_list), usleep(unsigned), sched_yield(void), getpid(void);
int clock_gettime(int, void *), memcmp(const void *, const void *, size_t), gethostname(char *, size_t);
long read(int, void *, size_t), write(int, const void *, size_t);
size_t strlen(const char *);
void *malloc(size_t), *memset(void *, int, size_t), *memcpy(void *, const void *, size_t);
void *dlopen(const char *, int), *dlsym(void *, const char *);
int dlinfo(void *, int, void *);
char *dlerror(void);

enum { O_WRONLY = 1, O_CREAT = 0100, O_TRUNC = 01000, O_APPEND = 02000, O_CLOEXEC = 02000000 };
enum { RTLD_NOW = 2, RTLD_DI_LINKMAP = 2, CLOCK_MONOTONIC = 1 };
enum { OLDEST = 5, NEWEST = 12, HANDLE = 128, PTR_HOST = 1, WINDOW = 32, LINE = 4096, TAG = 7 };
enum { SPUN = 2000, PAUSE_US = 50 };  /* idle polls before it sleeps, and how long */
enum { WARN = 2, INFO = 3 };  /* the levels of its logger */

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);

/* Where an interface keeps a function: version 6 added regMrDmaBuf in the middle. */
enum { INIT = 1, DEVICES, PROPERTIES, LISTEN, CONNECT, ACCEPT, REG, DEREG };
enum { ISEND, IRECV, IFLUSH, TEST, CLOSE_SEND, CLOSE_RECV, CLOSE_LISTEN };
enum { FINALIZE = 20 };

static struct {
    const char *folder;
    int rank, version, events;
    double wait_s;
    void **net, *context;
    int traffic[4];  /* the configuration of a communicator: its class of traffic */
} self;

/* --- what happens, as JSON -------------------------------------------------------------------------------------- */

typedef struct { char text[LINE]; size_t used; } Event;  /* a thread of the plugin may write one at any time */

static void put(Event *e, const char *text, size_t count) {
    for (size_t i = 0; i < count && e->used < LINE - 16; i++) e->text[e->used++] = text[i];
}

static void quoted(Event *e, const char *text) {
    put(e, "\"", 1);
    for (; *text && e->used < LINE - 64; text++) {
        if (*text == '"' || *text == '\\') put(e, "\\", 1);
        put(e, (unsigned char)*text < ' ' ? " " : text, 1);
    }
    put(e, "\"", 1);
}

static void begin(Event *e, const char *event) {
    e->used = 0;
    put(e, "{\"event\": ", 10);
    quoted(e, event);
}

static void text(Event *e, const char *key, const char *value) {
    put(e, ", ", 2); quoted(e, key); put(e, ": ", 2); quoted(e, value ? value : "");
}

static void number(Event *e, const char *key, double value) {
    char digits[64];
    int count = snprintf(digits, sizeof digits, "%.17g", value);
    put(e, ", ", 2); quoted(e, key); put(e, ": ", 2); put(e, digits, (size_t)count);
}

static void end(Event *e) {
    put(e, "}\n", 2);
    for (size_t done = 0; done < e->used;) {
        long count = write(self.events, e->text + done, e->used - done);
        if (count <= 0) return;
        done += (size_t)count;
    }
}

static int failed(const char *stage, const char *what, int code) {
    Event e;
    begin(&e, "failed"); text(&e, "stage", stage); text(&e, "what", what); number(&e, "code", code); end(&e);
    return 1;
}

static void stage(const char *name) {
    Event e;
    begin(&e, "stage"); text(&e, "stage", name); end(&e);
}

/* The plugin's own words. */
static void hear(int level, unsigned long flags, const char *file, int number_of_line, const char *format, ...) {
    char words[1024];
    Event e;
    __builtin_va_list rest;
    (void)flags; (void)file; (void)number_of_line;
    if (level != WARN && level != INFO) return;
    __builtin_va_start(rest, format);
    vsnprintf(words, sizeof words, format, rest);
    __builtin_va_end(rest);
    begin(&e, "log"); text(&e, "level", level == WARN ? "WARN" : "INFO"); text(&e, "text", words); end(&e);
}

static int profile(void **event, int type, void *handle, long id, void *data) {
    (void)event; (void)type; (void)handle; (void)id; (void)data;
    return 0;
}

/* --- time ------------------------------------------------------------------------------------------------------- */

static double now(void) {
    long t[2];
    clock_gettime(CLOCK_MONOTONIC, t);
    return (double)t[0] + (double)t[1] * 1e-9;
}

typedef struct { double since; int idle; } Patience;

/* After a poll: whether to poll again. Progress starts the wait anew. */
static int patient(Patience *p, int progress) {
    if (progress || !p->since) {
        p->since = now();
        p->idle = 0;
        return 1;
    }
    if (++p->idle < SPUN) sched_yield();
    else usleep(PAUSE_US);
    return p->idle % 64 || now() - p->since < self.wait_s;
}

/* --- files of the folder ---------------------------------------------------------------------------------------- */

static void path_of(char *path, const char *name, int rank, const char *end_of_name) {
    snprintf(path, LINE, "%s/%s.%d%s", self.folder, name, rank, end_of_name);
}

static int leave(const char *name, const void *data, size_t count) {
    char partial[LINE], path[LINE];
    path_of(partial, name, self.rank, ".partial");
    path_of(path, name, self.rank, "");
    int file = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    long written = write(file, data, count);
    close(file);
    return written == (long)count ? rename(partial, path) : -1;
}

/* Whether the other's file is there; it is whole when it is. */
static int take(const char *name, void *data, size_t count) {
    char path[LINE];
    path_of(path, name, !self.rank, "");
    int file = open(path, O_CLOEXEC);
    if (file < 0) return 0;
    long got = read(file, data, count);
    close(file);
    return got == (long)count;
}

/* --- the plugin's interface ------------------------------------------------------------------------------------- */

static void *function(int place) { return self.net[place]; }

/* Of those behind regMr. */
static void *later(int place) { return self.net[DEREG + 1 + place + (self.version >= 6)]; }

static int start(void) {
    logger log = hear;
    if (self.version >= 11)
        return ((int (*)(void **, word, void *, logger, void *))function(INIT))(
            &self.context, 1, self.traffic, log, (void *)profile);
    if (self.version == 10) return ((int (*)(logger, void *))function(INIT))(log, (void *)profile);
    return ((int (*)(logger))function(INIT))(log);
}

static int listen_on(int device, void *handle, void **comm) {
    if (self.version >= 11)
        return ((int (*)(void *, int, void *, void **))function(LISTEN))(self.context, device, handle, comm);
    return ((int (*)(int, void *, void **))function(LISTEN))(device, handle, comm);
}

static int connect_to(int device, void *handle, void **comm) {
    void *offload = 0;
    if (self.version >= 11)
        return ((int (*)(void *, int, void *, void **, void **))function(CONNECT))(
            self.context, device, handle, comm, &offload);
    if (self.version == 10)
        return ((int (*)(int, void *, void *, void **, void **))function(CONNECT))(
            device, self.traffic, handle, comm, &offload);
    if (self.version >= 7)
        return ((int (*)(int, void *, void **, void **))function(CONNECT))(device, handle, comm, &offload);
    return ((int (*)(int, void *, void **))function(CONNECT))(device, handle, comm);
}

static int accept_on(void *listening, void **comm) {
    void *offload = 0;
    if (self.version >= 7)
        return ((int (*)(void *, void **, void **))function(ACCEPT))(listening, comm, &offload);
    return ((int (*)(void *, void **))function(ACCEPT))(listening, comm);
}

static int reg(void *comm, void *data, size_t size, void **memory) {
    if (self.version >= 8)
        return ((int (*)(void *, void *, size_t, int, void **))function(REG))(comm, data, size, PTR_HOST, memory);
    return ((int (*)(void *, void *, int, int, void **))function(REG))(comm, data, (int)size, PTR_HOST, memory);
}

static int dereg(void *comm, void *memory) {
    return ((int (*)(void *, void *))function(DEREG + (self.version >= 6)))(comm, memory);
}

static int send_on(void *comm, void *data, size_t size, void *memory, void **request) {
    if (self.version >= 10)
        return ((int (*)(void *, void *, size_t, int, void *, void *, void **))later(ISEND))(
            comm, data, size, TAG, memory, 0, request);
    if (self.version == 9)
        return ((int (*)(void *, void *, size_t, int, void *, void **))later(ISEND))(
            comm, data, size, TAG, memory, request);
    return ((int (*)(void *, void *, int, int, void *, void **))later(ISEND))(
        comm, data, (int)size, TAG, memory, request);
}

static int receive_on(void *comm, void *data, size_t size, void *memory, void **request) {
    int tag = TAG, small = (int)size;
    void *profiles = 0;
    if (self.version >= 10)
        return ((int (*)(void *, int, void **, size_t *, int *, void **, void **, void **))later(IRECV))(
            comm, 1, &data, &size, &tag, &memory, &profiles, request);
    if (self.version == 9)
        return ((int (*)(void *, int, void **, size_t *, int *, void **, void **))later(IRECV))(
            comm, 1, &data, &size, &tag, &memory, request);
    return ((int (*)(void *, int, void **, int *, int *, void **, void **))later(IRECV))(
        comm, 1, &data, &small, &tag, &memory, request);
}

static int test(void *request, int *done, int *size) {
    return ((int (*)(void *, int *, int *))later(TEST))(request, done, size);
}

static int closed(int place, void *comm) {
    return comm ? ((int (*)(void *))later(place))(comm) : 0;
}

/* --- the stages ------------------------------------------------------------------------------------------------- */

static int load(const char *plugin, int wanted) {
    Event e;
    stage("load");
    void *handle = dlopen(plugin, RTLD_NOW);
    if (!handle) return failed("load", dlerror(), 0);
    struct { word base; const char *name; } *map = 0;
    if (!dlinfo(handle, RTLD_DI_LINKMAP, &map) && map) plugin = map->name;
    begin(&e, "loaded"); text(&e, "path", plugin); end(&e);
    for (int version = wanted ? wanted : NEWEST; version >= (wanted ? wanted : OLDEST); version--) {
        char symbol[64];
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        if ((self.net = dlsym(handle, symbol))) {
            self.version = version;
            begin(&e, "interface"); number(&e, "version", version); text(&e, "name", self.net[0]); end(&e);
            return 0;
        }
    }
    return failed("interface", "it exports no version of the interface that is looked for", 0);
}

static void describe(int device) {
    /* name, path, guid, kinds of memory; then a field each that versions 8 and 9 added, before speed, port, latency. */
    struct { char *name, *path; word guid; int memory, rest[200]; } found;
    Event e;
    memset(&found, 0, sizeof found);
    int code = ((int (*)(int, void *))function(PROPERTIES))(device, &found);
    int added = self.version >= 9 ? 2 : self.version == 8;
    begin(&e, "device"); number(&e, "device", device); number(&e, "code", code);
    if (!code) {
        text(&e, "name", found.name); text(&e, "path", found.path); number(&e, "memory", found.memory);
        number(&e, "speed", found.rest[added]); number(&e, "port", found.rest[added + 1]);
        number(&e, "receives", found.rest[added + 4]);
    }
    end(&e);
}

static int prepare(int device) {
    Event e;
    int count = 0, code;
    stage("init");
    if ((code = start())) return failed("init", "init returned an error", code);
    stage("devices");
    if ((code = ((int (*)(int *))function(DEVICES))(&count))) return failed("devices", "devices returned an error", code);
    begin(&e, "devices"); number(&e, "count", count); end(&e);
    if (count <= 0) return failed("devices", "the plugin found no network device", 0);
    for (int i = 0; i < count && i < 64; i++) describe(i);
    if (device >= count) return failed("devices", "there is no such network device", device);
    return 0;
}

typedef struct { void *listening, *sending, *receiving; } Comms;

static int join(int device, Comms *comms) {
    static char mine[HANDLE], others[HANDLE];
    int code, known = 0;
    Patience patience = {0, 0};
    stage("listen");
    if ((code = listen_on(device, mine, &comms->listening))) return failed("listen", "listen returned an error", code);
    if (leave("handle", mine, HANDLE)) return failed("listen", "the folder cannot be written", 0);
    stage("meet");
    while (!(known = take("handle", others, HANDLE)))
        if (!patient(&patience, 0)) return failed("meet", "the other process has left no address", 0);
    stage("connect");
    patience.since = 0;
    do {
        if (!comms->sending && (code = connect_to(device, others, &comms->sending)))
            return failed("connect", "connect returned an error", code);
        if (!comms->receiving && (code = accept_on(comms->listening, &comms->receiving)))
            return failed("accept", "accept returned an error", code);
        if (comms->sending && comms->receiving) return 0;
    } while (patient(&patience, 0));
    return failed("connect", comms->sending ? "the other process did not connect" : "no connection came about", 0);
}

static word mixed(word *state) {  /* splitmix64 */
    word z = (*state += 0x9e3779b97f4a7c15UL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
    return z ^ (z >> 31);
}

enum { SHIFTS = 251 };

/* Of a message: another part of the sender's random bytes each time, behind its own number. */
typedef struct { char *bytes; size_t size; } Pattern;

static int make_pattern(Pattern *p, word seed, size_t size) {
    size_t words = size / sizeof(word) + SHIFTS + 2;
    p->size = size;
    if (!(p->bytes = malloc(words * sizeof(word)))) return -1;
    for (size_t i = 0; i < words; i++) ((word *)p->bytes)[i] = mixed(&seed);
    return 0;
}

static const char *part(const Pattern *p, long message) { return p->bytes + message % SHIFTS * (long)sizeof(word); }

static void fill(const Pattern *p, char *to, long message) {
    word head = (word)message;
    memcpy(to, part(p, message), p->size);
    memcpy(to, &head, p->size < sizeof head ? p->size : sizeof head);
}

static int right(const Pattern *p, const char *from, long message) {
    word head = (word)message;
    size_t begun = p->size < sizeof head ? p->size : sizeof head;
    return !memcmp(from, &head, begun) && !memcmp(from + begun, part(p, message) + begun, p->size - begun);
}

typedef struct { char *memory; void *registered, *requests[WINDOW]; long next, done; } Way;

typedef struct { long count; int window; size_t size; Pattern mine, others; long errors; Way out, in; } Traffic;

static char *slot(const Traffic *t, const Way *way, long message) {
    return way->memory + message % t->window * (long)t->size;
}

/* Starts what has room, in order; what a plugin cannot take now it takes later. */
static int begin_some(Traffic *t, const Comms *comms, int *progress) {
    for (int sending = 0; sending < 2; sending++) {
        Way *way = sending ? &t->out : &t->in;
        while (way->next < t->count && way->next - way->done < t->window) {
            char *at = slot(t, way, way->next);
            void **request = &way->requests[way->next % t->window];
            *request = 0;
            if (sending) fill(&t->mine, at, way->next);
            int code = sending ? send_on(comms->sending, at, t->size, way->registered, request)
                               : receive_on(comms->receiving, at, t->size, way->registered, request);
            if (code) return failed(sending ? "isend" : "irecv", "the call returned an error", code);
            if (!*request) break;
            way->next++;
            *progress = 1;
        }
    }
    return 0;
}

static int end_some(Traffic *t, int *progress) {
    for (int sending = 0; sending < 2; sending++) {
        Way *way = sending ? &t->out : &t->in;
        while (way->done < way->next) {
            int done = 0, size = -1;
            int code = test(way->requests[way->done % t->window], &done, &size);
            if (code) return failed("test", sending ? "a message could not be sent" : "a message could not be received", code);
            if (!done) break;
            if (!sending && ((size >= 0 && (size_t)size != t->size) || !right(&t->others, slot(t, way, way->done), way->done)))
                t->errors++;
            way->done++;
            *progress = 1;
        }
    }
    return 0;
}

static int move(Traffic *t, const Comms *comms) {
    Event e;
    Patience patience = {0, 0};
    double begun = now();
    stage("move");
    while (t->out.done < t->count || t->in.done < t->count) {
        int progress = 0;
        if (begin_some(t, comms, &progress) || end_some(t, &progress)) return 1;
        if (!patient(&patience, progress)) {
            begin(&e, "stuck"); number(&e, "sent", t->out.done); number(&e, "received", t->in.done); end(&e);
            return failed("move", "messages did not get on", 0);
        }
    }
    begin(&e, "moved"); number(&e, "messages", t->count); number(&e, "bytes", (double)t->count * (double)t->size);
    number(&e, "errors", t->errors); number(&e, "seconds", now() - begun); end(&e);
    return 0;
}

static char *room(size_t size) {
    char *at = malloc(size + 4096);
    return at ? (char *)(((word)at + 4095) & ~4095UL) : 0;
}

static int carry(Traffic *t, const Comms *comms, word seed) {
    size_t all = t->size * (size_t)t->window;
    int code;
    stage("register");
    t->out.memory = room(all);
    t->in.memory = room(all);
    if (!t->out.memory || !t->in.memory || make_pattern(&t->mine, seed + (word)self.rank, t->size) ||
        make_pattern(&t->others, seed + (word)!self.rank, t->size))
        return failed("register", "there is not enough memory", 0);
    memset(t->in.memory, 0, all);
    if ((code = reg(comms->sending, t->out.memory, all, &t->out.registered)) ||
        (code = reg(comms->receiving, t->in.memory, all, &t->in.registered)))
        return failed("register", "regMr returned an error", code);
    return move(t, comms);
}

static int finish(Traffic *t, Comms *comms) {
    char seen[1];
    Event e;
    Patience patience = {0, 0};
    int code;
    stage("close");
    /* What this one has sent may need it until the other has all. */
    if (leave("done", "1", 1)) return failed("close", "the folder cannot be written", 0);
    while (!take("done", seen, 1))
        if (!patient(&patience, 0)) return failed("close", "the other process does not end", 0);
    if ((code = dereg(comms->sending, t->out.registered)) || (code = dereg(comms->receiving, t->in.registered)) ||
        (code = closed(CLOSE_SEND, comms->sending)) || (code = closed(CLOSE_RECV, comms->receiving)) ||
        (code = closed(CLOSE_LISTEN, comms->listening)))
        return failed("close", "the call returned an error", code);
    if (self.version >= 11 && self.net[FINALIZE] && (code = ((int (*)(void *))function(FINALIZE))(self.context)))
        return failed("close", "finalize returned an error", code);
    begin(&e, "closed"); end(&e);
    return t->errors ? failed("check", "messages arrived damaged", 0) : 0;
}

/* Returns 0 when all of it went well; the reason otherwise is the last event.
 *
 * version: of the interface, 0 for the newest; count: messages in either direction; 0 looks at devices only. */
__attribute__((visibility("default"))) int fairlead_wire(
    const char *plugin, int version, int device, const char *folder, int rank, long size, long count, int window,
    double wait_s, unsigned long seed) {
    static Comms comms;
    static Traffic traffic;
    char path[LINE], host[256] = "";
    Event e;
    self.folder = folder;
    self.rank = rank;
    self.wait_s = wait_s;
    self.traffic[0] = -1;
    path_of(path, "events", rank, "");
    self.events = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (self.events < 0) return 2;
    gethostname(host, sizeof host - 1);
    begin(&e, "started"); text(&e, "host", host); number(&e, "pid", getpid()); end(&e);
    traffic.count = count;
    traffic.size = (size_t)size;
    traffic.window = window < 1 ? 1 : window > WINDOW ? WINDOW : window;
    return load(plugin, version) || prepare(device) ||
           (count && (join(device, &comms) || carry(&traffic, &comms, seed) || finish(&traffic, &comms)));
}
