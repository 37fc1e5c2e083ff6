#include "mpi.h"

#include "fairlead_comm.h"
#include "kernels.h"

#include <dlfcn.h>
#include <link.h>

namespace fairlead {
namespace {

struct Found {
    char path[4][600];
    int count = 0;
};

// libmpi.so.12, libmpi.so.40, libmpich.so.12, libmpi_abi.so.1, and libmpi-1f9dc2a4.so.12 of a wheel; not
// libmpifort. As native/witness.c.
bool is_mpi(const char *path) {
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    for (const char *other : {"_cxx", "_mpifh", "_usempi", "_gtl_", "_ilp64", "_java", "_shm_heap"})
        if (!strncmp(name, "libmpi", 6) && !strncmp(name + 6, other, strlen(other))) return false;
    for (const char *stem : {"libmpich", "libmpi_gnu", "libmpi_cray", "libmpi_abi", "libmpi"}) {
        const size_t n = strlen(stem);
        if (!strncmp(name, stem, n)) return (name[n] == '.' || name[n] == '-' || name[n] == '_') && strstr(name, ".so");
    }
    return false;
}

int look(dl_phdr_info *info, size_t, void *to) {
    Found &found = *static_cast<Found *>(to);
    if (found.count < 4 && info->dlpi_name && is_mpi(info->dlpi_name) && strlen(info->dlpi_name) < sizeof *found.path)
        strcpy(found.path[found.count++], info->dlpi_name);
    return 0;
}

// If several are mapped, the initialised one; else the first.
void *loaded(const Found &found, const char **path) {
    void *first = nullptr;
    for (int i = 0; i < found.count; i++) {
        void *object = dlopen(found.path[i], RTLD_NOLOAD | RTLD_NOW);
        auto *initialized = object ? reinterpret_cast<int (*)(int *)>(dlsym(object, "MPI_Initialized")) : nullptr;
        int running = 0;
        if (initialized && !initialized(&running) && running) {
            *path = found.path[i];
            return object;
        }
        if (initialized && !first) first = object, *path = found.path[i];
    }
    return first;
}

// MPI has no halves: a user-defined operation adds them.
template <Form form> void add(void *in, void *inout, int *count, void *) {
    const void *sources[] = {in, inout};
    const Form forms[] = {form, form};
    kernels().sum(inout, form, nullptr, form, sources, forms, 2, size_t(*count), 1, false);
}

}  // namespace

int Mpi::find(Error *error) {
    Found found;
    const char *path = "";
    dl_iterate_phdr(look, &found);
    void *object = loaded(found, &path);
    if (!object)  // in the order in which mpi4py looks for it
        for (const char *name : {"libmpi.so", "libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.40"})
            if ((object = dlopen(path = name, RTLD_NOW | RTLD_GLOBAL))) break;
    if (!object)
        return error->set(FAIRLEAD_NO_MPI, "no MPI is loaded in this process, and none of libmpi.so, libmpi_abi.so.1, libmpi.so.12 and "
                                           "libmpi.so.40 can be: %s", dlerror());
    struct { void **at; const char *name; } wanted[] = {
#define WANT(name) {reinterpret_cast<void **>(&name), "MPI_" #name}
        WANT(Get_library_version), WANT(Init_thread), WANT(Initialized), WANT(Finalized), WANT(Finalize), WANT(Query_thread), WANT(Is_thread_main), WANT(Comm_dup),
        WANT(Comm_split), WANT(Comm_split_type), WANT(Comm_rank), WANT(Comm_size), WANT(Comm_free),
        WANT(Comm_set_errhandler), WANT(Allreduce), WANT(Iallreduce), WANT(Bcast), WANT(Ibcast), WANT(Allgather),
        WANT(Iallgather), WANT(Test), WANT(Isend), WANT(Irecv), WANT(Issend), WANT(Improbe), WANT(Imrecv), WANT(Error_string),
        WANT(Op_create), WANT(Comm_create_keyval), WANT(Comm_set_attr),
#undef WANT
    };
    for (auto &want : wanted)
        if (!(*want.at = dlsym(object, want.name)))
            return error->set(FAIRLEAD_NO_MPI, "%s has no %s: it is no MPI-3", path, want.name);
    // Libraries preloaded around MPI_Init and MPI_Finalize (a proof, a profiler) must see our calls too.
    for (auto &want : wanted)
        if (*want.at == reinterpret_cast<void *>(Init_thread) || *want.at == reinterpret_cast<void *>(Finalize))
            if (void *outer = dlsym(RTLD_DEFAULT, want.name)) *want.at = outer;
    Dl_info where;
    snprintf(library, sizeof library, "%s", dladdr(reinterpret_cast<void *>(Comm_rank), &where) && where.dli_fname ? where.dli_fname : path);
    if (void *comm = dlsym(object, "ompi_mpi_comm_world")) {
        // A program may hold the objects itself (a copy relocation): then the library uses those.
        auto handle = [object](const char *name) {
            void *copy = dlsym(RTLD_DEFAULT, name);
            return reinterpret_cast<Handle>(copy ? copy : dlsym(object, name));
        };
        (void)comm;
        abi = OPENMPI;
        world = handle("ompi_mpi_comm_world"), self = handle("ompi_mpi_comm_self");
        sum = handle("ompi_mpi_op_sum"), max = handle("ompi_mpi_op_max"), min = handle("ompi_mpi_op_min");
        f32 = handle("ompi_mpi_float"), f64 = handle("ompi_mpi_double");
        i16 = handle("ompi_mpi_int16_t"), i32 = handle("ompi_mpi_int32_t"), i64 = handle("ompi_mpi_int64_t"), byte = handle("ompi_mpi_byte");
        errors_return = handle("ompi_mpi_errors_return"), info_null = handle("ompi_mpi_info_null");
        request_null = handle("ompi_request_null");
        shared_type = 0, any_source = -1;
        in_place = reinterpret_cast<void *>(1), no_status = nullptr;
        if (!world || !self || !sum || !max || !min || !f32 || !f64 || !i16 || !i32 || !i64 || !byte || !errors_return || !info_null)
            return error->set(FAIRLEAD_NO_MPI, "%s is an Open MPI without its predefined handles", library);
    } else if (strstr(library, "libmpi_abi")) {
        abi = STANDARD;
        world = 0x101, self = 0x102, sum = 0x21, min = 0x22, max = 0x23;
        f32 = 0x210, f64 = 0x214, i16 = 0x248, i32 = 0x250, i64 = 0x258, byte = 0x247;
        errors_return = 0x143, info_null = 0x130, request_null = 0x180;
        shared_type = 221, any_source = -1;
        in_place = reinterpret_cast<void *>(1), no_status = nullptr;
    } else {
        char version[8192] = "";
        int length = 0;
        bool known = false;
        if (int bad = check(Get_library_version(version, &length), "MPI_Get_library_version", error)) return bad;
        version[strcspn(version, "\n")] = 0;  // an MPI that wraps another one names that one further down
        for (const char *vendor : {"MPICH", "MVAPICH", "Intel(R) MPI", "ParaStation"}) known = known || strstr(version, vendor);
        if (!known)
            return error->set(FAIRLEAD_NO_MPI, "%s is \"%.*s\", which has neither the binary interface of MPICH nor that of Open MPI or MPI-5; take plain MPI (FAIRLEAD_COMM_BACKEND=mpi4py)", library,
                              int(least(strlen(version), size_t(100))), version);
        abi = MPICH;
        world = 0x44000000, self = 0x44000001, max = 0x58000001, min = 0x58000002, sum = 0x58000003;
        f32 = 0x4c00040a, f64 = 0x4c00080b, i16 = 0x4c000238, i32 = 0x4c000439, i64 = 0x4c00083a, byte = 0x4c00010d;
        errors_return = 0x54000001, info_null = 0x1c000000, request_null = 0x2c000000;
        shared_type = 1, any_source = -2;
        in_place = reinterpret_cast<void *>(-1), no_status = reinterpret_cast<void *>(1);
    }
    pthread_mutex_init(&alone, nullptr);
    return 0;
}

int Mpi::start(Error *error) {
    int running = 0, ended = 0, level = 0;
    if (int bad = check(Finalized(&ended), "MPI_Finalized", error)) return bad;
    if (ended) return error->set(FAIRLEAD_BAD_CALL, "MPI has been finalized, and can be started once in a process");
    if (int bad = check(Initialized(&running), "MPI_Initialized", error)) return bad;
    const int one = abi == STANDARD ? 1024 : 1, levels[] = {0, one, 2 * one, abi == STANDARD ? 4 * one : 3};
    if (!running) {
        if (int bad = check(Init_thread(nullptr, nullptr, levels[MULTIPLE], &level), "MPI_Init_thread", error)) return bad;
    } else if (int bad = check(Query_thread(&level), "MPI_Query_thread", error)) return bad;
    ours = !running;
    threads = SINGLE;
    for (const Threads each : {FUNNELED, SERIALIZED, MULTIPLE})
        if (level >= levels[each]) threads = each;
    if (int bad = here("fairlead_comm_init", error)) return bad;
    if (int bad = check(Op_create(add<F16>, 1, &sum_f16), "MPI_Op_create", error)) return bad;
    return check(Op_create(add<BF16>, 1, &sum_bf16), "MPI_Op_create", error);
}

int Mpi::at_finalize(int (*leaves)(Handle, int, void *, void *), Error *error) {
    int key = 0;
    auto not_copied = [](Handle, int, void *, void *, void *, int *copied) { return *copied = 0; };
    if (int bad = check(Comm_create_keyval(not_copied, leaves, &key, nullptr), "MPI_Comm_create_keyval", error)) return bad;
    return check(Comm_set_attr(self, key, nullptr), "MPI_Comm_set_attr", error);  // deleted first of all (MPI 4.1, 11.2.4)
}

int Mpi::here(const char *call, Error *error) const {
    if (threads >= SERIALIZED) return 0;
    int main = 0;
    if (int bad = check(Is_thread_main(&main), "MPI_Is_thread_main", error)) return bad;
    if (main) return 0;
    return error->set(FAIRLEAD_BAD_CALL, "%s was called in a thread that may not call MPI: %s grants MPI_THREAD_%s, with which only the thread that started MPI may; " FAIRLEAD_ASK_FOR_THREADS, call, library, threads == SINGLE ? "SINGLE" : "FUNNELED");
}

int Mpi::check(int code, const char *call, Error *error) const {
    if (!code) return 0;
    char text[1024] = "";
    int length = 0;
    Error_string(code, text, &length);
    return error->set(FAIRLEAD_MPI_FAILED, "%s of %s failed: %.900s", call, library, text);
}

}  // namespace fairlead
