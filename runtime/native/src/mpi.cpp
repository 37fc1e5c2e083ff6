#include "mpi.h"

#include "fairlead_comm.h"
#include "kernels.h"

#include <dlfcn.h>
#include <link.h>

namespace fairlead {
namespace {

struct Found {
    char path[600] = "";
    bool running = false;
};

// libmpi.so.12, libmpi.so.40, libmpich.so.12, libmpi_abi.so.1, and libmpi-1f9dc2a4.so.12 of a wheel; not
// libmpi_cxx, libmpi_mpifh, libmpifort.
bool is_mpi(const char *path) {
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    for (const char *stem : {"libmpich", "libmpi_gnu", "libmpi_cray", "libmpi_abi", "libmpi"}) {
        size_t n = strlen(stem);
        if (!strncmp(name, stem, n)) return strstr(name, ".so") && (name[n] == '.' || name[n] == '-' || name[n] == '_') && strncmp(name, "libmpi_cxx", 10) && strncmp(name, "libmpi_mpifh", 12) && strncmp(name, "libmpi_usempi", 13) && strncmp(name, "libmpi_java", 11);
    }
    return false;
}

int look(dl_phdr_info *info, size_t, void *to) {
    Found &found = *static_cast<Found *>(to);
    if (!info->dlpi_name || !is_mpi(info->dlpi_name) || strlen(info->dlpi_name) >= sizeof found.path) return 0;
    if (!found.path[0]) strcpy(found.path, info->dlpi_name);
    return 0;
}

// MPI has no halves; it adds them by this.
template <Form form> void add(void *in, void *inout, int *count, void *) {
    const void *sources[] = {in, inout};
    const Form forms[] = {form, form};
    kernels().sum(inout, form, nullptr, form, sources, forms, 2, size_t(*count), 1);
}

}  // namespace

int Mpi::find(Error *error) {
    Found found;
    dl_iterate_phdr(look, &found);
    void *object = found.path[0] ? dlopen(found.path, RTLD_NOLOAD | RTLD_NOW) : nullptr;
    if (!object)
        for (const char *name : {"libmpi.so.12", "libmpi.so.40", "libmpi_abi.so.1"})
            if ((object = dlopen(name, RTLD_NOW | RTLD_GLOBAL))) {
                snprintf(found.path, sizeof found.path, "%s", name);
                break;
            }
    if (!object)
        return error->set(FAIRLEAD_NO_MPI, "no MPI is loaded in this process, and neither libmpi.so.12, libmpi.so.40 nor "
                                           "libmpi_abi.so.1 can be: %s", dlerror());
    struct { void **at; const char *name; } wanted[] = {
#define WANT(name) {reinterpret_cast<void **>(&name), "MPI_" #name}
        WANT(Init_thread), WANT(Initialized), WANT(Finalized), WANT(Finalize), WANT(Query_thread), WANT(Comm_dup),
        WANT(Comm_split), WANT(Comm_split_type), WANT(Comm_rank), WANT(Comm_size), WANT(Comm_free),
        WANT(Comm_set_errhandler), WANT(Allreduce), WANT(Iallreduce), WANT(Bcast), WANT(Ibcast), WANT(Allgather),
        WANT(Test), WANT(Error_string), WANT(Op_create),
#undef WANT
    };
    for (auto &want : wanted)
        if (!(*want.at = dlsym(object, want.name)))
            return error->set(FAIRLEAD_NO_MPI, "%s has no %s: it is no MPI-3", found.path, want.name);
    // What is preloaded around MPI's start and end (a proof, a profiler) must see ours too.
    for (auto &want : wanted)
        if (*want.at == reinterpret_cast<void *>(Init_thread) || *want.at == reinterpret_cast<void *>(Finalize))
            if (void *outer = dlsym(RTLD_DEFAULT, want.name)) *want.at = outer;
    Dl_info where;
    snprintf(library, sizeof library, "%s", dladdr(reinterpret_cast<void *>(Comm_rank), &where) && where.dli_fname ? where.dli_fname : found.path);
    if (void *comm = dlsym(object, "ompi_mpi_comm_world")) {
        // A program may hold the objects themselves (a copy relocation): then the library uses those.
        auto handle = [object](const char *name) {
            void *copy = dlsym(RTLD_DEFAULT, name);
            return reinterpret_cast<Handle>(copy ? copy : dlsym(object, name));
        };
        (void)comm;
        abi = OPENMPI;
        world = handle("ompi_mpi_comm_world");
        sum = handle("ompi_mpi_op_sum"), max = handle("ompi_mpi_op_max"), min = handle("ompi_mpi_op_min");
        f32 = handle("ompi_mpi_float"), f64 = handle("ompi_mpi_double");
        i16 = handle("ompi_mpi_int16_t"), i32 = handle("ompi_mpi_int32_t"), i64 = handle("ompi_mpi_int64_t"), byte = handle("ompi_mpi_byte");
        errors_return = handle("ompi_mpi_errors_return"), info_null = handle("ompi_mpi_info_null");
        request_null = handle("ompi_request_null");
        shared_type = 0;
        in_place = reinterpret_cast<void *>(1), no_status = nullptr;
        if (!world || !sum || !max || !min || !f32 || !f64 || !i16 || !i32 || !i64 || !byte || !errors_return || !info_null)
            return error->set(FAIRLEAD_NO_MPI, "%s is an Open MPI without its predefined handles", library);
    } else if (strstr(library, "libmpi_abi")) {
        abi = STANDARD;
        world = 0x101, sum = 0x21, min = 0x22, max = 0x23;
        f32 = 0x210, f64 = 0x214, i16 = 0x248, i32 = 0x250, i64 = 0x258, byte = 0x247;
        errors_return = 0x143, info_null = 0x130, request_null = 0x180;
        shared_type = 221;
        in_place = reinterpret_cast<void *>(1), no_status = nullptr;
    } else {
        abi = MPICH;
        world = 0x44000000, max = 0x58000001, min = 0x58000002, sum = 0x58000003;
        f32 = 0x4c00040a, f64 = 0x4c00080b, i16 = 0x4c000238, i32 = 0x4c000439, i64 = 0x4c00083a, byte = 0x4c00010d;
        errors_return = 0x54000001, info_null = 0x1c000000, request_null = 0x2c000000;
        shared_type = 1;
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
    const int wanted = abi == STANDARD ? 4096 : 3;  // MPI_THREAD_MULTIPLE
    if (!running) {
        if (int bad = check(Init_thread(nullptr, nullptr, wanted, &level), "MPI_Init_thread", error)) return bad;
    } else if (int bad = check(Query_thread(&level), "MPI_Query_thread", error)) return bad;
    ours = !running;
    multiple = level >= wanted;
    if (int bad = check(Op_create(add<F16>, 1, &sum_f16), "MPI_Op_create", error)) return bad;
    return check(Op_create(add<BF16>, 1, &sum_bf16), "MPI_Op_create", error);
}

int Mpi::check(int code, const char *call, Error *error) const {
    if (!code) return 0;
    char text[1024] = "";
    int length = 0;
    Error_string(code, text, &length);
    return error->set(FAIRLEAD_MPI_FAILED, "%s of %s failed: %.900s", call, library, text);
}

}  // namespace fairlead
