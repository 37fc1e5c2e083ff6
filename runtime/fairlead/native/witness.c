/* The witness: preloaded into the ranks of a launch, it proves the result of their own MPI_Init.
 *
 * It interposes MPI_Init and MPI_Init_thread (C, and Fortran's names for them), and C's PMPI_ ones, calls the
 * program's MPI, and then checks once per rank: how many ranks there are, which MPI is mapped, its version
 * string, whether a message arrives intact. Rank 0 gathers the records and writes them; fairlead.proof
 * reads and judges them. A wrong world or library stops every rank before the program goes on.
 *
 * It must run on the C library of any image, so it includes no header, links nothing, and names
 * no symbol version: the loader then binds the oldest version (glibc, elf/dl-lookup.c,
 * check_match). It calls no environment functions before MPI_Init: bash defines its own.
 *
 * FAIRLEAD_PROOF=RANKS|INODE|FOLDER|FILE states what to prove: the size of the world, the inode
 * (0: any) and path of the MPI, and the folder for the records (empty: a line on stderr instead). A fifth word says that
 * this MPI is the front of others, which it opens.
 * Without the variable this library does nothing, nor with FAIRLEAD_ASIDE: a process that comes before a rank's.
 * A process that has changed its user (gosu, setpriv, su) may not write there, and reports in FOLDER/others.
 *
 * FAIRLEAD_PROOF_LIBS=INODE/STEM|… names what belongs to that MPI: its own libraries, and those behind it. A file
 * of such a name that is another one breaks the proof; with a + behind STEM only if two of that name are mapped. Inode 0
 * without a + is an interface of the image's MPI to Fortran, which may have an MPI's name.
 *
 * A process that ends without a proof, and has an MPI mapped, says so in `seen`: its MPI_Init may have been called
 * by address, which nothing can stand before. MPI_Session_init is looked at likewise, since it has no world; the size of
 * mpi://WORLD, which a session can be asked, shows whether the rank is alone.
 * What is started without LD_PRELOAD or FAIRLEAD_PROOF, by whichever function of the C library, is noted in `bare`, or said
 * on stderr where there is no folder.
 * What a rank starts after the proof need not be a world of that size, and must not run on another MPI: it is stopped.
 *
 * Compiled with CALLS, it is for an MPI of no known family: see "an MPI whose handles are not known" below.
 *
 * FAIRLEAD_SPAWN is a script by which MPI_Comm_spawn starts programs in the container.
 *
 * FAIRLEAD_PROOF_MAPS, where it is set, asks for the mapped files with code in them, for a record of the run.
 *
 * Handles: MPICH ABI Compatibility Initiative; Open MPI's mpi.h; MPI 5.0, appendix A.1.
 */

typedef unsigned long size_t;
typedef void *handle;

extern char **environ;
int open(const char *, int, ...), close(int), dup(int), dup2(int, int), getpid(void), getppid(void), unlink(const char *);
int rename(const char *, const char *), gethostname(char *, size_t), setenv(const char *, const char *, int);
int access(const char *, int);
int unsetenv(const char *), snprintf(char *, size_t, const char *, ...), fflush(void *), usleep(unsigned);
int memcmp(const void *, const void *, size_t), strcmp(const char *, const char *);
int strncmp(const char *, const char *, size_t), atoi(const char *);
long read(int, void *, size_t), write(int, const void *, size_t), lseek(int, long, int);
long readlink(const char *, char *, size_t);
unsigned long strtoul(const char *, char **, int);
char *strstr(const char *, const char *), *strchr(const char *, int), *strrchr(const char *, int);
size_t strlen(const char *);
void *malloc(size_t), free(void *), *memset(void *, int, size_t), *memcpy(void *, const void *, size_t);
void *memchr(const void *, int, size_t);
long syscall(long, ...);
int *__errno_location(void);
int mprotect(void *, size_t, int);

/* Before glibc 2.34 not in libc: absent in a program that does not link libdl. */
typedef struct { const char *file; void *base; const char *symbol; void *address; } Found;
void *dlopen(const char *, int) __attribute__((weak));
void *dlsym(void *, const char *) __attribute__((weak));
int dladdr(const void *, Found *) __attribute__((weak));
/* What those called there, in libc until then. */
void *__libc_dlopen_mode(const char *, int) __attribute__((weak)), *__libc_dlsym(void *, const char *) __attribute__((weak));

/* elf(5) and dl_iterate_phdr(3), as far as they are needed. */
typedef struct { unsigned kind, flags; unsigned long offset, address, physical, in_file, size, align; } Segment;
typedef struct { unsigned long base; const char *name; const Segment *segments; unsigned short count; } Object;
typedef struct { unsigned long tag, value; } Tag;
typedef struct { unsigned name; unsigned char info, other; unsigned short section; unsigned long value, size; } Symbol;
typedef struct { unsigned long place, info, addend; } Relocation;
int dl_iterate_phdr(int (*)(Object *, size_t, void *), void *) __attribute__((weak));

enum { RECORD = 2048, RING = 65536, FAILED = 122, PATIENCE_S = 30, LIBRARIES = 128, NAMED = 4 };
enum { EINTR = 4, EBADF = 9, EAGAIN = 11, ENOSYS = 38 };
enum { F_OK = 0, W_OK = 2 };
enum { O_RDONLY = 0, O_RDWR = 2, O_CREAT = 0100, O_EXCL = 0200, O_TRUNC = 01000, O_CLOEXEC = 02000000 };
#if defined __aarch64__ || defined __powerpc64__
enum { O_NONBLOCK = 04000, O_NOFOLLOW = 0100000 };
#else
enum { O_NONBLOCK = 04000, O_NOFOLLOW = 0400000 };
#endif
/* By who has launched, where a rank is another user. No other user gets to the folder: fairlead.launch.run_folder. */
#define READABLE 0644
#define NEXT ((void *)-1L)
#define NOLOAD 5 /* RTLD_LAZY | RTLD_NOLOAD */
#define LOADED 0x80000001 /* RTLD_LAZY | __RTLD_DLOPEN */
#define EXPORT __attribute__((visibility("default")))
#if defined __x86_64__
enum { SYS_EXIT_GROUP = 231, SYS_EXECVE = 59 };
#elif defined __powerpc64__
enum { SYS_EXIT_GROUP = 234, SYS_EXECVE = 11 };
#else /* asm-generic/unistd.h: arm64, riscv64, loongarch64 */
enum { SYS_EXIT_GROUP = 94, SYS_EXECVE = 221 };
#endif

/* Not `_exit`, which is interposed below. */
static void leave(int code) __attribute__((noreturn));
static void leave(int code)
{
    for (;;)
        syscall(SYS_EXIT_GROUP, (long)code);
}

static struct {
    int ranks, front;
    unsigned long inode;
    char run[500], folder[512], file[1024], me[64]; /* the run's folder, and where in it this process reports */
} plan;

static const char *variable_in(char *const env[], const char *name)
{
    size_t n = strlen(name);
    for (; env && *env; env++)
        if (!strncmp(*env, name, n) && (*env)[n] == '=')
            return *env + n + 1;
    return 0;
}

static const char *variable(const char *name)
{
    return variable_in(environ, name);
}

static const char *field(const char *from, char *to, size_t room)
{
    const char *end = strchr(from, '|');
    size_t n = end ? (size_t)(end - from) : strlen(from);
    if (n >= room)
        n = room - 1;
    memcpy(to, from, n);
    to[n] = 0;
    return end ? end + 1 : from + strlen(from);
}

static void host_name(char *to, size_t room)
{
    to[0] = to[room - 1] = 0;
    gethostname(to, room - 1);
}

/* The first is from the shell around a rank; the others are changed by a launcher that the rank starts. */
static const char *const names[] = {"FAIRLEAD_RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID",
                                    "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK", "ALPS_APP_PE",
                                    "SLURM_PROCID", 0};

/* Reads FAIRLEAD_PROOF; 0 if there is nothing to prove. */
static int asked(void)
{
    const char *text = variable("FAIRLEAD_PROOF"), *rank = 0;
    char word[32];
    if (!text || !strchr(text, '|') || variable("FAIRLEAD_ASIDE"))
        return 0;
    text = field(text, word, sizeof word);
    plan.ranks = atoi(word);
    text = field(text, word, sizeof word);
    plan.inode = strtoul(word, 0, 10);
    text = field(text, plan.run, sizeof plan.run);
    snprintf(plan.folder, sizeof plan.folder, "%s%s", plan.run, plan.run[0] && access(plan.run, W_OK) ? "/others" : "");
    plan.front = !strcmp(field(text, plan.file, sizeof plan.file), "front");
    for (int i = 0; names[i] && !rank; i++)
        rank = variable(names[i]);
    if (rank)
        snprintf(plan.me, sizeof plan.me, "%.40s", rank);
    else {
        host_name(word, sizeof word);
        snprintf(plan.me, sizeof plan.me, "%s-%d", word, getpid());
    }
    return 1;
}

/* Writes a small file of the records atomically; -1 if it exists. */
static int note(const char *what, const char *text, size_t size, int once)
{
    char path[700], partial[720];
    int fd;
    if (!plan.folder[0])
        return 0;
    snprintf(path, sizeof path, "%s/%s.%s", plan.folder, what, plan.me);
    snprintf(partial, sizeof partial, "%s%s", path, once ? "" : ".partial");
    fd = open(partial, O_RDWR | O_CREAT | O_CLOEXEC | (once ? O_EXCL : O_TRUNC), READABLE);
    if (fd < 0)
        return -1;
    while (size > 0) {
        long n = write(fd, text, size);
        if (n <= 0)
            break;
        text += n;
        size -= n;
    }
    if (close(fd) || size > 0) {
        unlink(partial);
        return -1;
    }
    return once ? 0 : rename(partial, path);
}

static void forget(const char *what)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s.%s", plan.folder, what, plan.me);
    unlink(path);
}

static int arrived; /* for a proof, and by LD_PRELOAD, which this process may take out of its environment */
static int born;    /* the process that loaded this library; another one is a fork of it without an exec */

static int preloads(char *const env[])
{
    const char *set = variable_in(env, "LD_PRELOAD");
    return set && strstr(set, "witness");
}

/* A function of the C library that one below stands before. */
static void *of_libc(const char *name)
{
    if (dlsym)
        return dlsym(NEXT, name);
    void *opened = __libc_dlopen_mode && __libc_dlsym ? __libc_dlopen_mode("libc.so.6", (int)LOADED) : 0;
    return opened ? __libc_dlsym(opened, name) : 0;
}

/* Looked up before they are called: what stands behind a fork may take no lock. */
static struct {
    int (*execvpe)(const char *, char *const[], char *const[]), (*fexecve)(int, char *const[], char *const[]);
} libc;

enum { PT_LOAD = 1, PT_DYNAMIC = 2, PT_GNU_RELRO = 0x6474e552 };
enum { DT_PLTRELSZ = 2, DT_STRTAB = 5, DT_SYMTAB = 6, DT_RELA = 7, DT_RELASZ = 8, DT_JMPREL = 23, TAGS = 24 };
enum { WEAK = 2, PROT_READ = 1, PROT_WRITE = 2, LEAST_PAGE = 4096 };

static int is_within(const Object *object, unsigned kind, unsigned long address)
{
    for (int i = 0; i < object->count; i++) {
        const Segment *s = &object->segments[i];
        if (s->kind == kind && address - object->base - s->address < s->size)
            return 1;
    }
    return 0;
}

/* Whether the loader has made a place read-only: the pages that are whole within that segment. */
static int is_sealed(const Object *object, unsigned long place)
{
    for (int i = 0; i < object->count; i++) {
        const Segment *s = &object->segments[i];
        unsigned long from = object->base + s->address, to = (from + s->size) & -(unsigned long)LEAST_PAGE;
        if (s->kind == PT_GNU_RELRO && place >= from && place < to)
            return 1;
    }
    return 0;
}

static Object own; /* this library */

static int find_own(Object *object, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!is_within(object, PT_LOAD, (unsigned long)find_own))
        return 0;
    own = *object;
    return 1;
}

static int is_mpis(const char *name)
{
    name += *name == 'P' || *name == 'p';
    return !strncmp(name, "MPI_", 4) || !strncmp(name, "mpi_", 4);
}

/* Takes functions of this library out of the places of an object that may do without. */
static void take_out(const Object *object, const Relocation *at, size_t count, const Symbol *symbols, const char *texts)
{
    for (; count--; at++) {
        const Symbol *symbol = &symbols[at->info >> 32];
        unsigned long place = object->base + at->place, page = place & -(unsigned long)LEAST_PAGE;
        if (!(at->info >> 32) || symbol->section || symbol->info >> 4 != WEAK || !is_mpis(texts + symbol->name) ||
            !is_within(object, PT_LOAD, place) || !is_within(&own, PT_LOAD, *(unsigned long *)place))
            continue;
        int sealed = is_sealed(object, place);
        if (sealed && mprotect((void *)page, LEAST_PAGE, PROT_READ | PROT_WRITE))
            continue;
        *(unsigned long *)place = 0;
        if (sealed)
            mprotect((void *)page, LEAST_PAGE, PROT_READ);
    }
}

static int look_for_weak(Object *object, size_t size, void *unused)
{
    unsigned long tags[TAGS] = {0};
    (void)size, (void)unused;
    for (int i = 0; i < object->count; i++)
        if (object->segments[i].kind == PT_DYNAMIC)
            for (const Tag *t = (const Tag *)(object->base + object->segments[i].address); t->tag; t++)
                if (t->tag < TAGS)
                    tags[t->tag] = t->value;
    static const int pointers[] = {DT_STRTAB, DT_SYMTAB, DT_RELA, DT_JMPREL};
    for (int i = 0; i < 4; i++) /* glibc has added the base, musl has not */
        if (tags[pointers[i]] && !is_within(object, PT_LOAD, tags[pointers[i]]))
            tags[pointers[i]] += object->base;
    const Symbol *symbols = (const Symbol *)tags[DT_SYMTAB];
    const char *texts = (const char *)tags[DT_STRTAB];
    if (!symbols || !texts || object->base == own.base)
        return 0;
    take_out(object, (const Relocation *)tags[DT_RELA], tags[DT_RELASZ] / sizeof(Relocation), symbols, texts);
    take_out(object, (const Relocation *)tags[DT_JMPREL], tags[DT_PLTRELSZ] / sizeof(Relocation), symbols, texts);
    return 0;
}

/* A program may be made for both, and see by the address of MPI_Init whether there is an MPI: a weak symbol. */
static void leave_weak_ones_alone(void)
{
    if (dl_iterate_phdr && dlsym && !dlsym(NEXT, "MPI_Init") && !dlsym(NEXT, "mpi_init_") &&
        dl_iterate_phdr(find_own, 0))
        dl_iterate_phdr(look_for_weak, 0);
}

__attribute__((constructor)) static void arrive(void)
{
    char line[160], host[80];
    born = getpid();
    leave_weak_ones_alone();
    if (!asked())
        return;
    host_name(host, sizeof host);
    snprintf(line, sizeof line, "%s %d\n", host, getpid());
    note("alive", line, strlen(line), 1);
    arrived = preloads(environ);
    libc.execvpe = of_libc("execvpe");
    libc.fexecve = of_libc("fexecve");
}

/* Python asks while it starts whether stdout is a terminal, and writes by the line if it is, else by the block. Ranks
 * are to write by the line: what one prints arrives at once, and whole. PYTHONUNBUFFERED makes every part of a line a
 * write of its own, which mixes with those of other ranks. */
EXPORT int isatty(int fd)
{
    int (*real)(int) = dlsym ? dlsym(NEXT, "isatty") : 0;
    int (*begun)(void) = dlsym && fd == 1 ? dlsym(0, "Py_IsInitialized") : 0;
    if (begun && !begun())
        return 1;
    return real ? real(fd) : 0;
}

/* Reads the next line of a /proc file: 1, or 0 at the end. */
typedef struct { int fd, have, at; char data[4096]; } Lines;

static int get_line(Lines *from, char *to, size_t room)
{
    size_t n = 0;
    for (;;) {
        if (from->at == from->have) {
            long got = read(from->fd, from->data, sizeof from->data);
            if (got <= 0) {
                to[n] = 0;
                return n > 0;
            }
            from->have = got;
            from->at = 0;
        }
        char c = from->data[from->at++];
        if (c == '\n')
            break;
        if (n + 1 < room)
            to[n++] = c;
    }
    to[n] = 0;
    return 1;
}

/* libmpi.so*, libmpich.so*, libmpi_gnu_123.so*, libmpi_abi.so*; no Fortran or C++ binding, no GPU
 * transport. */
static int is_mpi(const char *path)
{
    static const char *const others[] = {"_cxx", "_mpifh", "_usempi", "_gtl_", "_ilp64", "_java", "_shm_heap", 0};
    const char *name = strrchr(path, '/');
    if (!name || strncmp(name, "/libmpi", 7) || !strstr(name, ".so"))
        return 0;
    name += 7;
    if (!strncmp(name, "ch", 2))
        name += 2;
    for (int i = 0; others[i]; i++)
        if (!strncmp(name, others[i], strlen(others[i])))
            return 0;
    return *name == '.' || *name == '_' || *name == '-'; /* auditwheel: libmpi-1f9dc2a4.so.12 */
}

/* Also what is an MPI's main part under another name: libpmpi.so.12, libpmpi_abi.so.1, libopen_mpi.so.40 (Open MPI 6). */
static int is_of_mpi(const char *path)
{
    const char *name = strrchr(path, '/');
    return is_mpi(path) || (name && strstr(name, ".so") &&
                            (!strncmp(name, "/libpmpi", 8) || !strncmp(name, "/libopen_mpi", 12)));
}

/* The symbol that the program would have got without this library. */
static void *next(const char *name, void *caller)
{
    Found who;
    void *found = dlsym ? dlsym(NEXT, name) : 0;
    if (!found && dladdr && dlopen && dladdr(caller, &who) && who.file) {
        /* A module loaded with RTLD_LOCAL, as Python does: its MPI is in its own scope. */
        void *object = dlopen(who.file, NOLOAD);
        if (object)
            found = dlsym(object, name);
    }
    if (!found && dlopen && dlsym) { /* a tail call hides the caller: take any mapped MPI */
        char line[1400];
        Lines maps = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
        while (!found && maps.fd >= 0 && get_line(&maps, line, sizeof line)) {
            char *path = strchr(line, '/');
            void *object = path && is_mpi(path) ? dlopen(path, NOLOAD) : 0;
            if (object)
                found = dlsym(object, name);
        }
        if (maps.fd >= 0)
            close(maps.fd);
    }
    return found;
}

static void *wanted(const char *name, void *caller)
{
    void *found = next(name, caller);
    if (!found) {
        char text[300];
        snprintf(text, sizeof text, "fairlead: no MPI that is mapped here has %s\n", name);
        write(2, text, strlen(text));
        leave(127);
    }
    return found;
}

/* The MPI itself, through the functions that no tool wraps. */
typedef struct {
    int (*rank)(handle, int *), (*size)(handle, int *), (*version)(char *, int *);
    int (*sendrecv)(const void *, int, handle, int, int, void *, int, handle, int, int, handle, void *);
    int (*gather)(const void *, int, handle, void *, int, handle, int, handle);
    int (*bcast)(void *, int, handle, int, handle);
    int (*keyval)(int (*)(handle, int, void *, void *, void *, int *), int (*)(handle, int, void *, void *),
                  int *, void *);
    int (*set_attr)(handle, int, void *);
    handle world, self, byte;
} Mpi;

static int bind_mpi(Mpi *mpi, void *caller)
{
    Found who;
    void *object, *world;
    mpi->rank = next("PMPI_Comm_rank", caller);
    mpi->size = next("PMPI_Comm_size", caller);
    mpi->version = next("PMPI_Get_library_version", caller);
    mpi->sendrecv = next("PMPI_Sendrecv", caller);
    mpi->gather = next("PMPI_Gather", caller);
    mpi->bcast = next("PMPI_Bcast", caller);
    mpi->keyval = next("PMPI_Comm_create_keyval", caller);
    mpi->set_attr = next("PMPI_Comm_set_attr", caller);
    if (!mpi->rank || !mpi->size || !mpi->version || !mpi->sendrecv || !mpi->gather || !mpi->bcast ||
        !mpi->keyval || !mpi->set_attr)
        return 0;
    if (!dladdr((void *)mpi->rank, &who) || !who.file || !(object = dlopen(who.file, NOLOAD)))
        return 0;
    if ((world = dlsym(object, "ompi_mpi_comm_world"))) {
        /* A program may hold the objects itself (a copy relocation): then the library uses those. */
        void *byte = dlsym(0, "ompi_mpi_byte"), *copy = dlsym(0, "ompi_mpi_comm_world");
        void *self = dlsym(0, "ompi_mpi_comm_self");
        mpi->world = copy ? copy : world;
        mpi->self = self ? self : dlsym(object, "ompi_mpi_comm_self");
        mpi->byte = byte ? byte : dlsym(object, "ompi_mpi_byte");
    } else if (strstr(who.file, "libmpi_abi")) {
        mpi->world = (handle)0x101L;
        mpi->self = (handle)0x102L;
        mpi->byte = (handle)0x247L;
    } else {
        mpi->world = (handle)0x44000000L;
        mpi->self = (handle)0x44000001L;
        mpi->byte = (handle)0x4c00010dL;
    }
    return 1;
}

typedef struct { char text[RECORD]; int used; } Record;

static void add(Record *to, const char *key, const char *value)
{
    size_t room = RECORD - to->used;
    int n = snprintf(to->text + to->used, room, "%s=%s\n", key, value);
    if (n > 0 && (size_t)n < room)
        to->used += n;
    else
        memset(to->text + to->used, 0, room); /* nothing behind the NUL, at which the reader splits */
}

static void add_number(Record *to, const char *key, unsigned long value)
{
    char word[32];
    snprintf(word, sizeof word, "%lu", value);
    add(to, key, word);
}

/* The libraries that belong to the planned MPI. */
typedef struct {
    const char *stem;
    int length, loose;
    unsigned long inode, seen;
} Library;

static int libraries(Library *to)
{
    const char *at = variable("FAIRLEAD_PROOF_LIBS");
    int n = 0;
    while (at && *at && n < LIBRARIES) {
        char *slash;
        const char *end = strchr(at, '|');
        end = end ? end : at + strlen(at);
        to[n] = (Library){.inode = strtoul(at, &slash, 10)};
        if (*slash == '/' && slash + 1 < end) {
            to[n].loose = end[-1] == '+';
            to[n].stem = slash + 1;
            to[n].length = end - slash - 1 - to[n].loose;
            n++;
        }
        at = *end ? end + 1 : end;
    }
    return n;
}

/* Whether a file is called STEM.so…, or STEM-1f9dc2a4.so… as auditwheel renames it. Python packages bring many
 * libraries that way: only an MPI's own may not come so. */
static int is_called(const char *path, const Library *library)
{
    const char *name = strrchr(path, '/');
    if (!name || strncmp(++name, library->stem, library->length))
        return 0;
    name += library->length;
    if (!library->loose && *name == '-' && strlen(name) > 9 && name[9] == '.')
        name += 9;
    return !strncmp(name, ".so", 3);
}

/* Whether a mapped file is in the place of one that belongs to the planned MPI. */
static int is_odd(const char *path, unsigned long inode, Library *known, int count)
{
    int named = 0, twice = 0, strict = 0;
    for (int i = 0; i < count; i++) {
        if (!is_called(path, &known[i]))
            continue;
        if (known[i].inode && known[i].inode == inode)
            named = 1;
        strict |= known[i].inode && !known[i].loose;
        twice |= known[i].seen && known[i].seen != inode;
        known[i].seen = inode;
    }
    return twice || (strict && !named);
}

/* Whether a file is the interface of the image's MPI to Fortran, which stays whatever MPI is planned. */
static int is_interface(const char *path, const Library *known, int count)
{
    for (int i = 0; i < count; i++)
        if (!known[i].inode && !known[i].loose && is_called(path, &known[i]))
            return 1;
    return 0;
}

typedef struct { int count, planned, foreign, odd, called; } Look;

static int is_listed(unsigned long inode, const Library *known, int count)
{
    for (int i = 0; i < count; i++)
        if (known[i].inode == inode)
            return 1;
    return 0;
}

/* Whether a library of an MPI is the planned one's: by inode, since the staged file may be mounted at several
 * places; the image's own by its folder. */
static int is_planned(const char *path, unsigned long inode, const Library *known, int count)
{
    if (plan.front)
        return 1;
    if (plan.inode)
        return plan.inode == inode || is_listed(inode, known, count);
    size_t folder = strrchr(path, '/') - path + 1;
    return !strcmp(path, plan.file) ||
           (!is_mpi(path) && !strncmp(path, plan.file, folder) && !strchr(plan.file + folder, '/'));
}

/* Records the mapped MPIs, which of them is called, and what is not as planned: another MPI, or another file in the
 * place of one of its libraries. */
static Look mapped(Record *to, unsigned long called)
{
    char line[1400], last[64] = "", value[1300];
    Library known[LIBRARIES];
    int listed = libraries(known);
    Look look = {0};
    Lines maps = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    while (maps.fd >= 0 && get_line(&maps, line, sizeof line)) {
        char *path = strchr(line, '/'), *words[5], *at = line;
        int n = 0, ours;
        char *dash;
        unsigned long from = strtoul(line, &dash, 16), until = *dash == '-' ? strtoul(dash + 1, 0, 16) : 0, inode;
        ours = called >= from && called < until;
        if (!path || !(ours || strstr(path, ".so")))
            continue;
        for (; n < 5 && *at; n++) { /* range, permissions, offset, device, inode */
            words[n] = at;
            while (*at && *at != ' ')
                at++;
            while (*at == ' ')
                *at++ = 0;
        }
        if (n < 5)
            continue;
        inode = strtoul(words[4], 0, 10);
        snprintf(value, sizeof value, "%s %s %s", words[3], words[4], path);
        if (ours) {
            add(to, "called", value);
            look.called = plan.inode ? plan.inode == inode : !strcmp(path, plan.file);
        }
        if (last[0] && !strncmp(value, last, strlen(last)))
            continue; /* another segment of the same file: they are adjacent */
        snprintf(last, sizeof last, "%s %s ", words[3], words[4]);
        int itself = plan.inode ? plan.inode == inode : !strcmp(path, plan.file); /* images rename MPIs */
        if (itself || (is_of_mpi(path) && !is_interface(path, known, listed))) {
            int right = itself || is_planned(path, inode, known, listed);
            look.planned |= right;
            look.foreign += !right;
            if (itself || is_mpi(path) || !right) {
                add(to, "mpi", value);
                look.count++;
            }
        } else if (is_odd(path, inode, known, listed) && look.odd++ < NAMED)
            add(to, "other", value);
    }
    if (maps.fd >= 0)
        close(maps.fd);
    return look;
}

/* Whether a process of this rank has started MPI, by its notes of MPI_Init, MPI_Finalize and MPI_Session_init. */
static int has_started(int pid)
{
    static const char *const kinds[] = {"started", "left", 0};
    char path[700], line[160];
    for (int i = 0; kinds[i]; i++) {
        snprintf(path, sizeof path, "%s/%s.%s", plan.folder, kinds[i], plan.me);
        Lines note = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
        const char *number = note.fd >= 0 && get_line(&note, line, sizeof line) ? strchr(line, ' ') : 0;
        if (note.fd >= 0)
            close(note.fd);
        if (number && atoi(number) == pid)
            return 1;
    }
    snprintf(path, sizeof path, "%s/seen.%d.%s", plan.folder, pid, plan.me);
    return !access(path, F_OK);
}

enum { FIRST, PERHAPS, BELOW };
static int perhaps_below; /* as it was when this process called MPI_Init */

/* Whether an ancestor in the same container is a rank: then this is not one but a child of one, and may be a world of its
 * own. One that maps an MPI and has not been seen to start it perhaps does so by its address; not the process that this one
 * is a fork of, as Python's multiprocessing makes it, which had not started any then. */
static int below_a_rank(void)
{
    char path[64], line[1400];
    int pid = getppid(), forked = born && getpid() != born, found = FIRST;
    for (int depth = 0; depth < 32 && pid > 1; depth++) {
        int witness = 0, mpi = 0;
        snprintf(path, sizeof path, "/proc/%d/maps", pid);
        Lines from = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
        while (from.fd >= 0 && get_line(&from, line, sizeof line)) {
            char *file = strchr(line, '/');
            witness |= file && !strcmp(file, "/opt/fairlead/witness.so");
            mpi |= file && is_mpi(file);
        }
        if (from.fd >= 0)
            close(from.fd);
        if (!witness)
            return found; /* outside the container, the launcher */
        if (mpi && plan.run[0] && has_started(pid))
            return BELOW;
        if (mpi && !forked)
            found = PERHAPS;
        forked &= pid != born;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        from = (Lines){.fd = open(path, O_RDONLY | O_CLOEXEC)};
        pid = 0;
        if (from.fd >= 0 && get_line(&from, line, sizeof line)) {
            char *after = strrchr(line, ')'); /* ") S PARENT …" */
            pid = after && strlen(after) > 4 ? atoi(after + 4) : 0;
        }
        if (from.fd >= 0)
            close(from.fd);
    }
    return found;
}

/* The open device nodes of the fabric: what the MPI uses, whether or not it reports it. */
static void devices(Record *to)
{
    static const char *const kinds[] = {"/dev/cxi", "/dev/kgni", "/dev/infiniband/uverbs", "/dev/hfi1_", 0};
    char path[40], value[64], seen[512] = ",";
    for (int fd = 0; fd < 512; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        long n = readlink(path, value, sizeof value - 2);
        if (n <= 0)
            continue;
        value[n] = 0;
        for (int i = 0; kinds[i]; i++)
            if (!strncmp(value, kinds[i], strlen(kinds[i])) && !strstr(seen, value) &&
                strlen(seen) + n + 2 < sizeof seen) {
                snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s,", value);
                add(to, "device", value);
            }
    }
}

/* The boot of this node, since nodes or containers of them may have one name; the processors that this rank may use, and
 * all of its node. Of very many in no order nothing is said. */
static void node(Record *to)
{
    static const char key[] = "Cpus_allowed_list:\t";
    char line[600];
    Lines status = {.fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC)};
    Lines boot = {.fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)};
    Lines online = {.fd = open("/sys/devices/system/cpu/online", O_RDONLY | O_CLOEXEC)};
    while (status.fd >= 0 && get_line(&status, line, sizeof line))
        if (!strncmp(line, key, sizeof key - 1) && strlen(line) < 300)
            add(to, "processors", line + sizeof key - 1);
    if (boot.fd >= 0 && get_line(&boot, line, sizeof line) && strlen(line) < 40)
        add(to, "boot", line);
    if (online.fd >= 0 && get_line(&online, line, sizeof line) && strlen(line) < 300)
        add(to, "online", line);
    if (status.fd >= 0)
        close(status.fd);
    if (boot.fd >= 0)
        close(boot.fd);
    if (online.fd >= 0)
        close(online.fd);
}

static void surroundings(Record *to)
{
    static const char *const spaces[] = {"user", "pid", "ipc", "net", 0};
    char path[64], value[600];
    const char *set;
    Lines mounts = {.fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC)};
    for (int i = 0; spaces[i]; i++) {
        snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i]);
        long n = readlink(path, value, sizeof value - 1);
        value[n > 0 ? n : 0] = 0;
        add(to, spaces[i], value);
    }
    path[0] = 0;
    while (mounts.fd >= 0 && get_line(&mounts, value, sizeof value)) {
        char *device = value, *space;
        if (!strstr(value, " /dev/shm "))
            continue;
        for (int i = 0; i < 2 && device; i++) /* number, parent, device */
            if ((device = strchr(device, ' ')))
                device++;
        if (device && (space = strchr(device, ' '))) {
            *space = 0;
            snprintf(path, sizeof path, "%.40s", device); /* the last mount is the visible one */
        }
    }
    add(to, "shm", path);
    if (mounts.fd >= 0)
        close(mounts.fd);
    if ((set = variable("LD_LIBRARY_PATH"))) {
        snprintf(value, sizeof value, "%.400s", set);
        add(to, "library_path", value);
    }
}

/* UCX logs what it uses to a file of its own in the run's folder, which UCX_LOG_FILE names with %h and %p; UCX ends a
 * program whose log it cannot open. Finds the first such file from descriptor `fd` on; -1 if there is none. */
static int next_ucx_log(int fd, char *path, size_t room)
{
    char name[64], below[600];
    const char *log = variable("UCX_LOG_FILE"), *end = log ? strchr(log, '%') : 0, *top = log ? strchr(log + 1, '/') : 0;
    if (!end || !top || top > end || !plan.run[0] || strncmp(log, plan.run, strlen(plan.run)))
        return -1; /* the user's own */
    snprintf(below, sizeof below, "%.*s", (int)(end - top), top); /* the image may have a symlink at /opt */
    for (; fd < 1024; fd++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        long n = readlink(name, path, room - 1);
        path[n > 0 ? n : 0] = 0;
        if (strstr(path, below))
            return fd;
    }
    return -1;
}

/* From now on UCX logs to the user again, at its default level: the level is the
 * first member of its global options (ucs/config/global_opts.h). */
static void hand_back_ucx(void)
{
    enum { WARN = 2, INFO = 4 };
    char at[700];
    void *ucs = dlopen("libucs.so.0", NOLOAD);
    int *level = ucs ? dlsym(ucs, "ucs_global_opts") : 0;
    if (!level)
        level = dlsym(0, "ucs_global_opts");
    if (!level || *level != INFO)
        return; /* its level cannot be set: its log stays in the file */
    *level = WARN;
    for (int fd = 3; (fd = next_ucx_log(fd, at, sizeof at)) >= 0; fd++)
        dup2(2, fd);
}

static void ucx_log(Record *to)
{
    char line[700];
    if (next_ucx_log(3, line, sizeof line) < 0)
        return;
    Lines log = {.fd = open(line, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    unlink(line); /* UCX goes on writing to the open file */
    if (log.fd < 0)
        return;
    while (get_line(&log, line, sizeof line)) { /* … ucp_context_0 intra-node cfg#1 tag(…) … */
        char *what = strstr(line, " cfg#");
        if (strstr(line, "UCX  WARN") || strstr(line, "UCX  ERROR")) {
            write(2, line, strlen(line));
            write(2, "\n", 1);
        }
        if (!what)
            continue;
        while (what > line && what[-1] != ' ')
            what--;
        what[strlen(what) < 240 ? strlen(what) : 240] = 0;
        add(to, "ucx", what);
    }
    close(log.fd);
    hand_back_ucx();
    unsetenv("UCX_LOG_LEVEL");
    unsetenv("UCX_LOG_FILE");
}

static int ring(const Mpi *mpi, int rank, int size)
{
    int status[64], ok = 0, before = (rank + size - 1) % size;
    unsigned char *data = malloc(2 * RING), *got = data + RING;
    if (!data)
        return 0;
    memset(data, rank % 251, RING);
    memset(got, 255, RING);
    mpi->sendrecv(data, RING, mpi->byte, (rank + 1) % size, 7, got, RING, mpi->byte, before, 7, mpi->world,
                  status);
    memset(data, before % 251, RING);
    ok = !memcmp(data, got, RING);
    free(data);
    return ok;
}

/* The next mapped file with code in it; 0 at the end. */
static char *next_code(Lines *maps, char *line, size_t room)
{
    while (get_line(maps, line, room)) { /* range permissions offset device inode path */
        char *permissions = strchr(line, ' '), *path = strchr(line, '/');
        if (permissions && path && permissions[3] == 'x' && strncmp(path, "/dev/", 5) && strncmp(path, "/memfd:", 7))
            return path;
    }
    return 0;
}

/* Lists what is mapped, for a record of the run: the paths once for all ranks with the same ones, in `code.HASH`, and
 * their number and hash in `maps`. Of a rank's processes the one that maps the most counts. */
static void list_code(void)
{
    char line[1400], text[64], path[700], partial[760], *file;
    unsigned long count = 0, sum = 0;
    if (!plan.folder[0] || !variable("FAIRLEAD_PROOF_MAPS"))
        return;
    Lines maps = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    while (maps.fd >= 0 && (file = next_code(&maps, line, sizeof line))) {
        unsigned long hash = 0xcbf29ce484222325UL; /* FNV-1a; their sum knows no order */
        for (; *file; file++)
            hash = (hash ^ (unsigned char)*file) * 0x100000001b3UL;
        sum += hash;
        count++;
    }
    close(maps.fd);
    snprintf(path, sizeof path, "%s/maps.%s", plan.folder, plan.me);
    Lines known = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    int fewer = known.fd >= 0 && get_line(&known, line, sizeof line) && strtoul(line, 0, 10) > count;
    if (known.fd >= 0)
        close(known.fd);
    if (fewer)
        return;
    snprintf(path, sizeof path, "%s/code.%lx", plan.folder, sum);
    snprintf(partial, sizeof partial, "%s.%s.partial", path, plan.me);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (fd = open(partial, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, READABLE)) >= 0) {
        maps = (Lines){.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
        while (maps.fd >= 0 && (file = next_code(&maps, line, sizeof line))) {
            size_t n = strlen(file);
            file[n] = '\n';
            write(fd, file, n + 1);
        }
        close(maps.fd);
        rename(partial, path);
    }
    close(fd);
    snprintf(text, sizeof text, "%lu %lx\n", count, sum);
    note("maps", text, strlen(text), 0);
}

/* A rank that ends before MPI_Finalize leaves the others waiting, and not every launcher ends them: `started`
 * has text until MPI_Finalize, which first deletes the attributes of MPI_COMM_SELF; from then on, `left` has. At the exit
 * `started` goes, by which MPICH takes leave of its launcher: _exit and an exec leave it. */
static int finalized; /* the process that was */

static int not_copied(handle from, int key, void *extra, void *value, void *to, int *copied)
{
    (void)from, (void)key, (void)extra, (void)value, (void)to;
    *copied = 0;
    return 0;
}

static int finalizes(handle self, int key, void *value, void *extra)
{
    char line[160], host[80];
    (void)self, (void)key, (void)value, (void)extra;
    host_name(host, sizeof host);
    snprintf(line, sizeof line, "%s %d\n", host, getpid());
    note("left", line, strlen(line), 0);
    note("started", "", 0, 0);
    finalized = getpid();
    list_code();
    return 0;
}

static void tell_when_finalized(const Mpi *mpi)
{
    int key;
    list_code();
    if (plan.folder[0] && !mpi->keyval(not_copied, finalizes, &key, 0))
        mpi->set_attr(mpi->self, key, 0);
}

/* Whether this launch is already proved: then this is a later program of a rank, of which only the MPI counts. */
static int proved_before(void)
{
    char path[700];
    snprintf(path, sizeof path, "%s/proved", plan.run);
    return plan.run[0] && !access(path, F_OK);
}

static const char *value_of(const char *record, const char *key, char *to, size_t room)
{
    size_t n = strlen(key);
    to[0] = 0;
    for (const char *at = record; at && *at; at = (at = strchr(at, '\n')) ? at + 1 : 0)
        if (!strncmp(at, key, n) && at[n] == '=') {
            const char *end = strchr(at, '\n');
            snprintf(to, room, "%.*s", (int)((end ? end : at + strlen(at)) - at - n - 1), at + n + 1);
            break;
        }
    return to;
}

/* One line if all is well, else the record of every rank; for a launch without a watching process. */
static void say(const char *all, int size, int holds)
{
    char line[1600], version[200], mpi[1200], host[80], seen[80];
    int hosts = 1;
    value_of(all, "host", seen, sizeof seen);
    for (int i = 1; i < size; i++) { /* ranks of a node are mostly consecutive */
        value_of(all + (size_t)i * RECORD, "host", host, sizeof host);
        if (strcmp(host, seen)) {
            hosts++;
            memcpy(seen, host, sizeof seen);
        }
    }
    value_of(all, "version", version, sizeof version);
    value_of(all, "mpi", mpi, sizeof mpi);
    const char *path = strchr(mpi, '/');
    if (holds) {
        snprintf(line, sizeof line, "fairlead: proved on %d rank%s, %d node%s: %s, %s\n", size,
                 size == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s", version, path ? path : "");
        write(2, line, strlen(line));
        return;
    }
    snprintf(line, sizeof line, "fairlead: not as planned: %d ranks on %s were, and this is\n", plan.ranks,
             plan.file);
    write(2, line, strlen(line));
    for (int i = 0; i < size; i++) {
        const char *record = all + (size_t)i * RECORD;
        value_of(record, "host", host, sizeof host);
        value_of(record, "version", version, sizeof version);
        value_of(record, "mpi", mpi, sizeof mpi);
        path = strchr(mpi, '/');
        snprintf(line, sizeof line, "  rank %d of %d on %s: %s, %s\n", i, size, host, version,
                 path ? path : "no MPI");
        write(2, line, strlen(line));
    }
}

static int sessions, session_size;
static Look tell(const char *how, int forked);

/* Stops this rank, unless it is a later program of one. The process that launched it reads the records, and ends the
 * launch, or says that it is proved: this rank gives it some time for that. */
static void stop(void)
{
    int checked = 0;
    for (int i = 0; plan.folder[0] && i < PATIENCE_S * 10; i++) {
        if (!checked && proved_before()) {
            Look look = tell(sessions ? "session" : "init", 0);
            if (!look.foreign && !look.odd)
                return;
            note("stopped", "", 0, 0);
            checked = 1;
        }
        usleep(100000);
    }
    leave(FAILED);
}

/* A process's record of its world. A rank may have several, of programs that it runs one after another. */
static int note_proof(const char *text, size_t size)
{
    char name[32];
    snprintf(name, sizeof name, "proof.%d", getpid());
    return note(name, text, size, 0);
}

/* Whether a world is that of a program which a rank runs by itself. */
static int is_childs_own(int size)
{
    return perhaps_below && size == 1 && plan.ranks > 1;
}

static void add_launched(Record *mine)
{
    const char *launched = variable(names[0]), *numbered = 0;
    if (launched)
        add(mine, "launched", launched);
    for (int i = 1; names[i] && !numbered; i++)
        numbered = variable(names[i]);
    if (numbered)
        add(mine, "numbered", numbered);
}

/* What compilers make of a Fortran name, and mpi_f08's procedure. */
#define EACH_NAME(macro, lower, upper) macro(lower) macro(lower##_) macro(lower##__) macro(lower##_f08_) macro(upper)

#ifndef CALLS
static void prove(void *caller)
{
    static Record mine;
    char text[8300], host[80];
    int rank = -1, size = -1, length = 0, right;
    text[0] = 0;
    char *all = 0;
    Look look;
    Mpi mpi;
    if (!bind_mpi(&mpi, caller)) {
        note("started", "", 0, 0);
        return;
    }
    mpi.rank(mpi.world, &rank);
    mpi.size(mpi.world, &size);
    if (is_childs_own(size)) {
        note("started", "", 0, 0);
        return;
    }
    mpi.version(text, &length);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r') {
            *c = 0;
            break;
        }
    text[200] = 0;
    host_name(host, sizeof host);
    add_number(&mine, "rank", rank);
    add_number(&mine, "size", size);
    add_launched(&mine);
    add(&mine, "host", host);
    add(&mine, "version", text);
    add_number(&mine, "ring", ring(&mpi, rank, size));
    look = mapped(&mine, (unsigned long)mpi.rank);
    right = look.count == 1 && look.called && !look.odd && size == plan.ranks;
    surroundings(&mine);
    node(&mine);
    devices(&mine);
    ucx_log(&mine);
    mine.text[RECORD - 1] = right;
    if (rank == 0)
        all = malloc((size_t)RECORD * size);
    unsigned char holds = rank || all;
    mpi.bcast(&holds, 1, mpi.byte, 0, mpi.world);
    if (!holds) { /* no memory: each rank reports itself */
        mine.text[RECORD - 1] = 0;
        if (note_proof(mine.text, RECORD))
            say(mine.text, 1, right);
        if (!right)
            stop();
        tell_when_finalized(&mpi);
        return;
    }
    mpi.gather(mine.text, RECORD, mpi.byte, all, RECORD, mpi.byte, 0, mpi.world);
    if (rank == 0) {
        for (int i = 0; i < size; i++) {
            char *record = all + (size_t)i * RECORD;
            holds &= record[RECORD - 1];
            record[RECORD - 1] = 0;
        }
        if (!plan.folder[0] || note_proof(all, (size_t)RECORD * size))
            say(all, size, holds);
        free(all);
    }
    mpi.bcast(&holds, 1, mpi.byte, 0, mpi.world);
    if (!holds)
        stop();
    tell_when_finalized(&mpi);
}

static void last_word(void) { }

#else
/* --- an MPI whose handles are not known ------------------------------------------------------------
 *
 * None of its functions that takes a handle can be called with one of ours, so what the program itself asks for counts:
 * of the largest communicator that it asks about, the size, and its rank there. Each rank reports by itself, again when it
 * asks about a larger one; no message is tried. */

static struct {
    int watching, size, rank, reported, asked_rank, pid, asking;
    unsigned comm, asked;
    void *called, *answering; /* C's function, and the one that has answered: Fortran's may be in another library */
} world;

static void report(void)
{
    static Record mine;
    char text[8300] = "", host[80];
    int length = 0, (*version)(char *, int *) = next("MPI_Get_library_version", world.called);
    if (is_childs_own(world.size))
        return;
    memset(&mine, 0, sizeof mine);
    if (version)
        version(text, &length);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r') {
            *c = 0;
            break;
        }
    text[200] = 0;
    host_name(host, sizeof host);
    add_number(&mine, "rank", world.rank < 0 ? (unsigned long)atoi(plan.me) : (unsigned long)world.rank);
    add_number(&mine, "size", world.size);
    add_launched(&mine);
    add(&mine, "host", host);
    add(&mine, "version", text);
    int used = mine.used;
    Look look = mapped(&mine, (unsigned long)world.called);
    if (!look.called) {
        memset(mine.text + used, 0, RECORD - used);
        mine.used = used;
        look = mapped(&mine, (unsigned long)world.answering);
    }
    surroundings(&mine);
    node(&mine);
    devices(&mine);
    ucx_log(&mine);
    mine.text[RECORD - 1] = 0;
    int right = (look.count == 1 || plan.front) && look.called && !look.odd && world.size == plan.ranks;
    if (plan.folder[0])
        note_proof(mine.text, RECORD);
    else if (right)
        say(mine.text, 1, 1);
    world.reported = right ? 2 : 1;
}

/* What MPI has answered the program about a communicator; -1: nothing. C's and Fortran's handles of one may differ, and
 * Fortran's functions call C's: the outer one counts. */
static void answered(void *by, unsigned comm, int size, int rank)
{
    if (!world.watching || world.reported == 2 || world.asking)
        return;
    world.answering = by;
    if (rank >= 0) {
        world.asked = comm;
        world.asked_rank = rank;
    }
    if (size > world.size) {
        world.size = size;
        world.comm = comm;
        world.rank = -1;
    }
    if (world.size > 0 && world.rank < 0 && world.comm == world.asked && world.asked_rank >= 0) {
        world.rank = world.asked_rank;
        report();
    }
}

static void prove(void *caller)
{
    void *called = next("PMPI_Comm_rank", caller);
    world.called = called ? called : next("MPI_Comm_rank", caller);
    note("started", "", 0, 0); /* nothing tells when it is through with MPI */
    if (proved_before()) {
        stop();
        return;
    }
    world.asked_rank = -1;
    world.pid = getpid();
    world.watching = 1;
}

/* At the end of a process that has not asked for its rank, or not even for a size. */
static void last_word(void)
{
    if (!world.watching || world.pid != getpid())
        return;
    world.watching = 0;
    if (!world.size)
        tell("unasked", 1);
    else if (!world.reported)
        report();
    if (!plan.folder[0] && world.size && world.reported != 2) {
        char line[300];
        snprintf(line, sizeof line, "fairlead: not as planned: %d ranks were, and rank %s sees %d\n", plan.ranks, plan.me,
                 world.size);
        write(2, line, strlen(line));
        leave(FAILED);
    }
}

#define ASKED(name, c_size, c_rank)                                                                      \
    EXPORT int name(handle comm, int *value)                                                             \
    {                                                                                                    \
        static int (*real)(handle, int *);                                                               \
        if (!real)                                                                                       \
            real = wanted(#name, __builtin_return_address(0));                                           \
        __atomic_add_fetch(&world.asking, 1, __ATOMIC_SEQ_CST);                                          \
        int code = real(comm, value);                                                                    \
        __atomic_sub_fetch(&world.asking, 1, __ATOMIC_SEQ_CST);                                          \
        if (!code && value)                                                                              \
            answered((void *)real, (unsigned)(unsigned long)comm, c_size, c_rank);                       \
        return code;                                                                                     \
    }

#define FORTRAN_ASKED(name, f_size, f_rank)                                                              \
    EXPORT void name(int *comm, int *value, int *error)                                                  \
    {                                                                                                    \
        static void (*real)(int *, int *, int *);                                                        \
        if (!real)                                                                                       \
            real = wanted(#name, __builtin_return_address(0));                                           \
        __atomic_add_fetch(&world.asking, 1, __ATOMIC_SEQ_CST);                                          \
        real(comm, value, error);                                                                        \
        __atomic_sub_fetch(&world.asking, 1, __ATOMIC_SEQ_CST);                                          \
        if (!error || !*error)                                                                           \
            answered((void *)real, (unsigned)*comm, f_size, f_rank);                                     \
    }

ASKED(MPI_Comm_size, *value, -1)
ASKED(MPI_Comm_rank, -1, *value)
#define FORTRAN_SIZE(name) FORTRAN_ASKED(name, *value, -1)
#define FORTRAN_RANK(name) FORTRAN_ASKED(name, -1, *value)
EACH_NAME(FORTRAN_SIZE, mpi_comm_size, MPI_COMM_SIZE)
EACH_NAME(FORTRAN_RANK, mpi_comm_rank, MPI_COMM_RANK)
#endif

/* --- around the program's own MPI_Init ---------------------------------------------------------- */

static int inside, over; /* Fortran's calls C's: the outer one counts */
static struct { int saved, sink; } words = {-1, -1};

static void pass_on(const char *text, long size)
{
    while (size > 0) {
        long n = write(words.saved, text, size);
        if (n > 0)
            text += n, size -= n;
        else if (n == 0 || (*__errno_location() != EINTR && *__errno_location() != EAGAIN))
            return;
        else
            usleep(1000); /* a pipe may be full */
    }
}

/* The lines from the first to the last of an MPI's own report stay in the file; other output, by
 * another thread for instance, is passed on to where it was meant to go: all, where memory is short. */
static void replay(void)
{
    static const char *const marks[] = {"====",     "provider:", "Required minimum FI_", "libfabric provider",
                                        "Host 0 [", "Connection summary:", "  on-host:", "  off-host:", 0};
    const long size = lseek(words.sink, 0, 2);
    char few[4096], *text = size > 0 ? malloc(size + 1) : 0, *first = 0, *last = 0, *end = text;
    lseek(words.sink, 0, 0);
    for (long n; !text && (n = read(words.sink, few, sizeof few)) > 0;)
        pass_on(few, n);
    if (!text)
        return;
    for (long n; end < text + size && (n = read(words.sink, end, text + size - end)) > 0;)
        end += n;
    *end = 0;
    for (char *line = text, *rest; line && line < end; line = rest ? rest + 1 : 0) {
        rest = memchr(line, '\n', end - line);
        if (rest)
            *rest = 0;
        int known = !!strstr(line, "] MPI startup()");
        for (int i = 0; marks[i]; i++)
            known |= !strncmp(line, marks[i], strlen(marks[i]));
        if (rest)
            *rest = '\n';
        if (known) {
            first = first ? first : line;
            last = rest ? rest + 1 : end;
        }
    }
    first = first ? first : text;
    last = last ? last : text;
    while (last > text && *last == '\n')
        last++; /* a report ends with empty lines */
    pass_on(text, first - text);
    pass_on(last, end - last);
    free(text);
}

/* Settings that make an MPI report its transport: MPICH, MPICH 3.4, Intel MPI, Open MPI 5. */
static const char *const asking[][2] = {{"MPIR_CVAR_DEBUG_SUMMARY", "1"},
                                        {"MPIR_CVAR_CH4_OFI_CAPABILITY_SETS_DEBUG", "1"},
                                        {"I_MPI_DEBUG", "5"},
                                        {"OMPI_MCA_ompi_display_comm", "mpi_init"}};
enum { ASKING = sizeof asking / sizeof *asking };

static int again; /* an earlier program of this rank has left MPI, and a launcher with a PMI_FD connects one */

/* While MPI starts, its output goes to a file: it has the report that we asked for. */
static void begin(void)
{
    char path[700], line[160], host[80];
    if (inside++ || over || !asked())
        return;
    host_name(host, sizeof host);
    snprintf(line, sizeof line, "%s %d\n", host, getpid());
    int place = below_a_rank();
    if (place == BELOW || (place == PERHAPS && !plan.folder[0])) {
        over = 1; /* not checked */
        return;
    }
    perhaps_below = place == PERHAPS;
    note("started", line, strlen(line), 0);
    if (variable("PMI_FD")) {
        int fd = dup(atoi(variable("PMI_FD")));
        if (fd >= 0)
            close(fd);
        else if (*__errno_location() == EBADF)
            note("cut", line, strlen(line), 0);
        snprintf(path, sizeof path, "%s/left.%s", plan.folder, plan.me);
        if ((again = plan.folder[0] && !access(path, F_OK)))
            note("again", line, strlen(line), 0);
    }
    for (int i = 0; i < ASKING; i++)
        if (variable(asking[i][0]))
            return; /* the user asked for it */
    if (!plan.folder[0])
        return;
    snprintf(path, sizeof path, "%s/said.%s", plan.folder, plan.me);
    words.sink = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, READABLE);
    if (words.sink < 0)
        return;
    for (int i = 0; i < ASKING; i++)
        setenv(asking[i][0], asking[i][1], 1);
    fflush(0);
    words.saved = dup(1);
    if (words.saved >= 0) {
        dup2(words.sink, 1);
        return;
    }
    close(words.sink); /* there is no standard output */
    words.sink = -1;
}

static void end(int failed, void *caller)
{
    if (!failed && again)
        forget("again");
    if (--inside || over)
        return;
    if (words.sink >= 0) {
        fflush(0);
        replay();
        dup2(words.saved, 1);
        close(words.saved);
        close(words.sink);
        words.sink = -1;
        for (int i = 0; i < ASKING; i++)
            unsetenv(asking[i][0]);
    }
    if (failed || !asked())
        return;
    over = 1;
    prove(caller);
    setenv("FAIRLEAD_PROOF", "done", 1); /* what this program starts is not a rank */
}

/* --- a process that ends without a proof ---------------------------------------------------------- */

/* What the recorded MPIs say of themselves, which they may be asked at any time (MPI 4.1, 9.1.1 and 11.4.1): the first
 * one's version, and whether any was started. */
static void ask(Record *to)
{
    char path[1300], text[8300] = "";
    int length, begun = 0, version = 0;
    if (!dlopen || !dlsym)
        return;
    for (const char *at = to->text; (at = strstr(at, "mpi=")); at++) {
        if (at > to->text && at[-1] != '\n')
            continue;
        value_of(at, "mpi", path, sizeof path);
        void *object = strchr(path, '/') ? dlopen(strchr(path, '/'), NOLOAD) : 0;
        int (*named)(char *, int *) = object ? dlsym(object, "MPI_Get_library_version") : 0;
        int (*started)(int *) = object ? dlsym(object, "MPI_Initialized") : 0;
        int (*ended)(int *) = object ? dlsym(object, "MPI_Finalized") : 0;
        int flag = 0;
        if (named && !version++ && !named(text, &length)) {
            char *line = strchr(text, '\n');
            text[line && line - text < 200 ? line - text : 200] = 0;
        }
        if (started && !started(&flag))
            begun |= flag;
        if (ended && !ended(&flag))
            begun |= flag; /* MPICH 4's is then no longer initialized */
    }
    if (text[0])
        add(to, "version", text);
    add_number(to, "begun", begun);
}

/* Records what MPI is mapped here, if any; returns what was seen. After the proof only what is not as planned counts.
 * Neither at an _exit nor at an exec is anything called that takes a lock: either may follow a fork. */
static Look tell(const char *how, int forked)
{
    Record mine = {.used = 0};
    char host[80], value[600];
    const char *set;
    int later;
    host_name(host, sizeof host);
    add(&mine, "rank", plan.me);
    add(&mine, "host", host);
    add_number(&mine, "pid", getpid());
    add(&mine, "how", how);
    Look look = mapped(&mine, 0);
    if (!look.foreign && !look.planned)
        return (Look){0}; /* a program may use UCX or libfabric by itself */
    if ((later = proved_before()) && !look.foreign && !look.odd)
        return (Look){0};
    add_number(&mine, "later", later);
    if (session_size)
        add_number(&mine, "world", session_size);
    if ((set = variable("LD_LIBRARY_PATH"))) {
        snprintf(value, sizeof value, "%.400s", set);
        add(&mine, "library_path", value);
    }
    if ((look.foreign || look.odd) && !forked)
        ask(&mine);
    snprintf(value, sizeof value, "seen.%d", getpid());
    note(value, mine.text, strlen(mine.text), 0);
    if ((look.foreign || look.odd) && !plan.folder[0]) {
        char line[1600], path[1300];
        value_of(mine.text, look.foreign ? "mpi" : "other", path, sizeof path);
        snprintf(line, sizeof line, "fairlead: not as planned: %s was, and rank %s on %s mapped %s\n", plan.file,
                 plan.me, host, strchr(path, '/') ? strchr(path, '/') : path);
        write(2, line, strlen(line));
        leave(FAILED);
    }
    return look;
}

static Look depart(const char *how, int forked)
{
    last_word();
    return over || inside || !asked() ? (Look){0} : tell(sessions ? "session" : how, forked);
}

static void part(void)
{
    if (finalized == getpid() && !strcmp(plan.folder, plan.run)) /* of another user's a copy was made */
        forget("started");
}

__attribute__((destructor)) static void finish(void)
{
    part();
    if (!over && !inside && asked())
        list_code(); /* a rank without MPI */
    depart("end", 0);
}

EXPORT void _exit(int code)
{
    depart("end", 1);
    leave(code);
}

EXPORT void _Exit(int code)
{
    depart("end", 1);
    leave(code);
}

EXPORT void quick_exit(int code)
{
    void (*real)(int) = dlsym ? dlsym(NEXT, "quick_exit") : 0;
    depart("end", 1);
    if (real)
        real(code);
    leave(code);
}

/* Adds a command's words to a note, in one line; none of them if they are too long. */
static void add_words(char *text, size_t room, char *const argv[])
{
    size_t start = strlen(text), at = start;
    for (int i = 1; argv && argv[0] && argv[i]; i++) {
        int n = snprintf(text + at, room - at, "%s%s", i == 1 ? "words=" : "\x1f", argv[i]);
        if (n < 0 || at + n + 2 > room) {
            text[start] = 0;
            return;
        }
        at += n;
    }
    for (size_t i = start; i < at; i++)
        if (text[i] == '\n')
            text[i] = '\x1e';
    if (at > start)
        memcpy(text + at, "\n", 2);
}

static unsigned hashed(unsigned hash, const char *text)
{
    for (; text && *text; text++)
        hash = hash * 31 + (unsigned char)*text;
    return hash;
}

/* What is started without the witness cannot prove anything, and without any of the variables by which a launcher connects
 * its ranks it is a world of its own. A rank keeps 32 of these: one that starts ten thousand such programs starts few
 * different ones. */
static void bare(const char *program, char *const argv[], char *const env[])
{
    static const char *const launchers[] = {"PMI", "PALS_", "FLUX_", "JSM_", "ALPS_", "SLURM_", 0};
    char name[32], text[1500];
    int ranked = 0;
    if (!arrived || (preloads(env) && variable_in(env, "FAIRLEAD_PROOF")))
        return;
    for (char *const *e = env; e && *e; e++)
        for (int i = 0; launchers[i]; i++)
            ranked |= !strncmp(*e, launchers[i], strlen(launchers[i]));
    if (!plan.folder[0]) { /* nobody reads notes: of a printed line only what is said at once is known */
        if (ranked || over || plan.ranks < 2)
            return;
        snprintf(text, sizeof text, "fairlead: rank %.60s starts %.500s with a cleaned environment: nothing is proved of it\n",
                 plan.me, program);
        write(2, text, strlen(text));
        return;
    }
    unsigned hash = hashed(0, program);
    for (int i = 1; i < 3 && argv && argv[0] && argv[i] && argv[i - 1]; i++)
        hash = hashed(hash, argv[i]);
    snprintf(name, sizeof name, "bare.%u", hash % 32);
    snprintf(text, sizeof text, "rank=%.60s\nprogram=%.500s\nranked=%d\n", plan.me, program, ranked);
    add_words(text, sizeof text, argv);
    note(name, text, strlen(text), 0);
}

/* What every way to another program comes to, in place of this one. */
static void leaves_for(const char *program, char *const argv[], char *const env[])
{
    depart("exec", 1);
    bare(program, argv, env);
}

EXPORT int execve(const char *path, char *const argv[], char *const env[])
{
    leaves_for(path, argv, env);
    return (int)syscall(SYS_EXECVE, path, argv, env);
}

EXPORT int execv(const char *path, char *const argv[])
{
    return execve(path, argv, environ);
}

EXPORT int execvpe(const char *file, char *const argv[], char *const env[])
{
    if (!libc.execvpe) /* a process without a proof to make */
        libc.execvpe = of_libc("execvpe");
    leaves_for(file, argv, env);
    if (!libc.execvpe)
        return (int)syscall(SYS_EXECVE, file, argv, env);
    return libc.execvpe(file, argv, env);
}

EXPORT int execvp(const char *file, char *const argv[])
{
    return execvpe(file, argv, environ);
}

EXPORT int fexecve(int fd, char *const argv[], char *const env[])
{
    char path[40], file[500];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    long n = readlink(path, file, sizeof file - 1);
    file[n > 0 ? n : 0] = 0;
    if (!libc.fexecve)
        libc.fexecve = of_libc("fexecve");
    leaves_for(file, argv, env);
    return libc.fexecve ? libc.fexecve(fd, argv, env) : (int)syscall(SYS_EXECVE, path, argv, env);
}

/* Their words are arguments up to a null, behind which execle has the environment. */
#define EXEC_OF_WORDS(name, call)                                                                        \
    EXPORT int name(const char *program, const char *first, ...)                                         \
    {                                                                                                    \
        __builtin_va_list at;                                                                            \
        size_t n = 1;                                                                                    \
        __builtin_va_start(at, first);                                                                   \
        while (first && __builtin_va_arg(at, char *))                                                    \
            n++;                                                                                         \
        __builtin_va_end(at);                                                                            \
        char *argv[n + 1], *const *env = environ;                                                        \
        argv[0] = (char *)first;                                                                         \
        argv[n] = 0;                                                                                     \
        __builtin_va_start(at, first);                                                                   \
        for (size_t i = 1; i < n + !!first; i++)                                                         \
            argv[i] = __builtin_va_arg(at, char *);                                                      \
        (void)env;                                                                                       \
        call;                                                                                            \
        __builtin_va_end(at);                                                                            \
        return -1;                                                                                       \
    }

EXEC_OF_WORDS(execl, execve(program, argv, environ))
EXEC_OF_WORDS(execlp, execvpe(program, argv, environ))
EXEC_OF_WORDS(execle, (env = __builtin_va_arg(at, char *const *), execve(program, argv, env)))

/* Of these the C library starts the program by itself, and calls no function above. */
#define SPAWN(name)                                                                                      \
    EXPORT int name(int *pid, const char *program, const void *actions, const void *attributes,          \
                    char *const argv[], char *const env[])                                               \
    {                                                                                                    \
        static int (*real)(int *, const char *, const void *, const void *, char *const[], char *const[]); \
        if (!real && !(real = of_libc(#name)))                                                           \
            return ENOSYS;                                                                               \
        bare(program, argv, env);                                                                        \
        return real(pid, program, actions, attributes, argv, env);                                       \
    }

SPAWN(posix_spawn)
SPAWN(posix_spawnp)

static void bare_shell(const char *line)
{
    char *argv[] = {"sh", "-c", (char *)line, 0};
    if (line)
        bare("/bin/sh", argv, environ);
}

EXPORT int system(const char *line)
{
    static int (*real)(const char *);
    if (!real && !(real = of_libc("system"))) {
        *__errno_location() = ENOSYS;
        return line ? -1 : 0;
    }
    bare_shell(line);
    return real(line);
}

EXPORT void *popen(const char *line, const char *how)
{
    static void *(*real)(const char *, const char *);
    if (!real && !(real = of_libc("popen"))) {
        *__errno_location() = ENOSYS;
        return 0;
    }
    bare_shell(line);
    return real(line, how);
}

/* How many ranks a session of C's sees in mpi://WORLD, which is known without a message; 0: not known. */
static int size_seen_by(handle session, void *caller)
{
    int size = 0;
#ifndef CALLS
    handle group = 0;
    int (*of)(handle, const char *, handle *) = next("PMPI_Group_from_session_pset", caller);
    int (*count)(handle, int *) = next("PMPI_Group_size", caller), (*drop)(handle *) = next("PMPI_Group_free", caller);
    if (of && count && drop && !of(session, "mpi://WORLD", &group) && !count(group, &size))
        drop(&group);
#else
    (void)session, (void)caller;
#endif
    return size;
}

/* A session has no world to gather in, so each rank judges for itself. */
static int session(int code, const handle *started, void *caller)
{
    static Record unread;
    int place = code || over || inside || !asked() ? BELOW : below_a_rank();
    if (place == BELOW)
        return code;
    fflush(0); /* UCX's log, too */
    ucx_log(&unread);
    sessions++;
    session_size = started && place == FIRST ? size_seen_by(*started, caller) : 0;
    Look look = depart("session", 0);
    int alone = session_size == 1 && plan.ranks > 1;
    if (alone && !plan.folder[0]) {
        char line[200];
        snprintf(line, sizeof line, "fairlead: not as planned: %d ranks were, and rank %s sees 1\n", plan.ranks, plan.me);
        write(2, line, strlen(line));
        leave(FAILED);
    }
    if (look.foreign || look.odd || alone) {
        note("stopped", "", 0, 0);
        stop();
    }
    return code;
}

EXPORT int MPI_Session_init(handle info, handle errors, void *to)
{
    void *caller = __builtin_return_address(0);
    int (*real)(handle, handle, void *) = wanted("MPI_Session_init", caller);
    return session(real(info, errors, to), to, caller);
}

#define FORTRAN_SESSION(name)                                                                            \
    EXPORT void name(void *info, void *errors, void *to, int *error)                                     \
    {                                                                                                    \
        void (*real)(void *, void *, void *, int *) = wanted(#name, __builtin_return_address(0));        \
        real(info, errors, to, error);                                                                   \
        session(error ? *error : 0, 0, 0);                                                               \
    }

EACH_NAME(FORTRAN_SESSION, mpi_session_init, MPI_SESSION_INIT)

/* --- MPI_Abort ------------------------------------------------------------------------------------- */

/* It ends all ranks, and with most launchers their shells before they note an exit code: who called it is noted first. */
static void aborts(int code)
{
    char line[180], host[80];
    if (!plan.folder[0])
        return;
    host_name(host, sizeof host);
    snprintf(line, sizeof line, "%s %d %d\n", host, getpid(), code);
    note("aborted", line, strlen(line), 0);
}

EXPORT int MPI_Abort(handle comm, int code)
{
    int (*real)(handle, int) = wanted("MPI_Abort", __builtin_return_address(0));
    aborts(code);
    return real(comm, code);
}

#define FORTRAN_ABORT(name)                                                                              \
    EXPORT void name(int *comm, int *code, int *error)                                                   \
    {                                                                                                    \
        void (*real)(int *, int *, int *) = wanted(#name, __builtin_return_address(0));                  \
        aborts(code ? *code : 0);                                                                        \
        real(comm, code, error);                                                                         \
    }

EACH_NAME(FORTRAN_ABORT, mpi_abort, MPI_ABORT)

/* --- MPI_Comm_spawn --------------------------------------------------------------------------------
 *
 * The launcher starts the command, outside of the container. FAIRLEAD_SPAWN names a script there that starts one in a
 * container like this one. Only the root's arguments count; those of others may be anything. */

static int is_root(int root, handle comm, void *caller)
{
    int (*real)(handle, int *) = wanted("MPI_Comm_rank", caller), rank = -1;
    return !real(comm, &rank) && rank == root;
}

/* The arguments of /bin/sh for a command with `argv`, which may be null; null without memory. */
static char **through(const char *script, const char *command, char *const *argv)
{
    size_t n = 0;
    while (argv && argv[n])
        n++;
    const char **made = malloc((n + 3) * sizeof *made);
    if (!made)
        return 0;
    made[0] = script;
    made[1] = command;
    for (size_t i = 0; i < n; i++)
        made[i + 2] = argv[i];
    made[n + 2] = 0;
    return (char **)made;
}

EXPORT int MPI_Comm_spawn(const char *command, char **argv, int count, handle info, int root, handle comm, void *to,
                          void *errors)
{
    void *caller = __builtin_return_address(0);
    int (*real)(const char *, char **, int, handle, int, handle, void *, void *) = wanted("MPI_Comm_spawn", caller);
    const char *script = variable("FAIRLEAD_SPAWN");
    char **made = script && is_root(root, comm, caller) ? through(script, command, argv) : 0;
    int code = real(made ? "/bin/sh" : command, made ? made : argv, count, info, root, comm, to, errors);
    free(made);
    return code;
}

EXPORT int MPI_Comm_spawn_multiple(int count, char **commands, char ***argvs, const int *counts, const void *infos,
                                   int root, handle comm, void *to, void *errors)
{
    void *caller = __builtin_return_address(0);
    int (*real)(int, char **, char ***, const int *, const void *, int, handle, void *, void *) =
        wanted("MPI_Comm_spawn_multiple", caller);
    const char *script = variable("FAIRLEAD_SPAWN");
    char **shells = 0, ***made = 0;
    if (script && is_root(root, comm, caller) && (shells = malloc(count * sizeof *shells)) &&
        (made = malloc(count * sizeof *made)))
        for (int i = 0; i < count; i++) {
            shells[i] = "/bin/sh";
            made[i] = through(script, commands[i], argvs ? argvs[i] : 0);
        }
    int code = real(count, made ? shells : commands, made ? made : argvs, counts, infos, root, comm, to, errors);
    for (int i = 0; made && i < count; i++)
        free(made[i]);
    free(made);
    free(shells);
    return code;
}

/* --- MPI_Init -------------------------------------------------------------------------------------- */

/* A tool in the program, or one that is preloaded ahead of this library, has an MPI_Init of its own, and calls PMPI_Init. */
#define INIT(name)                                                                                       \
    EXPORT int name(int *argc, char ***argv)                                                             \
    {                                                                                                    \
        void *caller = __builtin_return_address(0);                                                      \
        int (*real)(int *, char ***) = wanted(#name, caller);                                            \
        begin();                                                                                         \
        int code = real(argc, argv);                                                                     \
        end(code, caller);                                                                               \
        return code;                                                                                     \
    }

#define INIT_THREAD(name)                                                                                \
    EXPORT int name(int *argc, char ***argv, int required, int *provided)                                \
    {                                                                                                    \
        void *caller = __builtin_return_address(0);                                                      \
        int (*real)(int *, char ***, int, int *) = wanted(#name, caller);                                \
        begin();                                                                                         \
        int code = real(argc, argv, required, provided);                                                 \
        end(code, caller);                                                                               \
        return code;                                                                                     \
    }

INIT(MPI_Init)
INIT(PMPI_Init)
INIT_THREAD(MPI_Init_thread)
INIT_THREAD(PMPI_Init_thread)

/* Whether a function is MPI's: PolarSSL has an `mpi_init` too, for big numbers. */
static int starts_mpi(const char *name, void *function)
{
    Found who;
    if (strcmp(name, "mpi_init") || !dladdr || !dlopen || !dladdr(function, &who) || !who.file)
        return 1;
    void *object = dlopen(who.file, NOLOAD);
    return !object || dlsym(object, "mpi_comm_rank");
}

#define FORTRAN(name)                                                                                    \
    EXPORT void name(int *error)                                                                         \
    {                                                                                                    \
        void *caller = __builtin_return_address(0);                                                      \
        void (*real)(int *) = wanted(#name, caller);                                                     \
        if (!starts_mpi(#name, (void *)real)) {                                                          \
            real(error);                                                                                 \
            return;                                                                                      \
        }                                                                                                \
        begin();                                                                                         \
        real(error);                                                                                     \
        end(error ? *error : 0, caller);                                                                 \
    }

#define FORTRAN_THREAD(name)                                                                             \
    EXPORT void name(int *required, int *provided, int *error)                                           \
    {                                                                                                    \
        void *caller = __builtin_return_address(0);                                                      \
        void (*real)(int *, int *, int *) = wanted(#name, caller);                                       \
        begin();                                                                                         \
        real(required, provided, error);                                                                 \
        end(error ? *error : 0, caller);                                                                 \
    }

EACH_NAME(FORTRAN, mpi_init, MPI_INIT)
EACH_NAME(FORTRAN_THREAD, mpi_init_thread, MPI_INIT_THREAD)
