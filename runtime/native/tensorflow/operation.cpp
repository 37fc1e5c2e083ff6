// TensorFlow operations: the core's aggregate, one for a whole list of gradients, and one that fails as it is asked to.
//
// The first works on the tensors' own memory, without Python. Inputs without other owners become the outputs.
//
// They are made of TensorFlow's C interface for kernels alone, which releases keep, and whose functions are looked up
// in the TensorFlow that the process has loaded: one file serves every release, and none is needed to compile it. The
// core is not linked either: Python binds the operation to the one that the process has loaded.
//
// Source: tensorflow/c/kernels.h, tensorflow/c/ops.h.
#include "fairlead_comm.h"

#include "../src/platform.h"

#include <csignal>
#include <dlfcn.h>

namespace {

using namespace fairlead;

// --- TensorFlow's C interface ------------------------------------------------------------------

struct Status;
struct Tensor;
struct Context;       // of a call
struct Construction;  // of a kernel
struct KernelBuilder;
struct OpBuilder;
struct Shapes;
struct ShapeHandle;

enum Code { OK = 0, CANCELLED = 1, UNKNOWN = 2, FAILED_PRECONDITION = 9, RESOURCE_EXHAUSTED = 8 };
enum Type { DOUBLE = 2, COMPLEX64 = 8, BFLOAT16 = 14, COMPLEX128 = 18, HALF = 19 };

#define FAIRLEAD_FUNCTIONS(each)                                                                                          \
    each(Status *, TF_NewStatus, ())                                                                                      \
    each(void, TF_DeleteStatus, (Status *))                                                                               \
    each(void, TF_SetStatus, (Status *, int code, const char *text))                                                      \
    each(int, TF_GetCode, (const Status *))                                                                               \
    each(void, TF_DeleteTensor, (Tensor *))                                                                               \
    each(void *, TF_TensorData, (const Tensor *))                                                                         \
    each(int, TF_TensorType, (const Tensor *))                                                                            \
    each(int64_t, TF_TensorElementCount, (const Tensor *))                                                                \
    each(size_t, TF_TensorByteSize, (const Tensor *))                                                                     \
    each(int, TF_NumDims, (const Tensor *))                                                                               \
    each(int64_t, TF_Dim, (const Tensor *, int index))                                                                    \
    each(int, TF_NumInputs, (Context *))                                                                                  \
    each(void, TF_GetInput, (Context *, int index, Tensor **, Status *))                                                  \
    each(void, TF_SetOutput, (Context *, int index, const Tensor *, Status *))                                            \
    each(Tensor *, TF_ForwardInputOrAllocateOutput, (Context *, const int *inputs, int count, int output, const int64_t *dims, int ndims, int *forwarded, Status *)) \
    each(void, TF_OpKernelContext_Failure, (Context *, Status *))                                                         \
    each(void, TF_OpKernelConstruction_Failure, (Construction *, Status *))                                               \
    each(void, TF_OpKernelConstruction_GetAttrInt64, (Construction *, const char *name, int64_t *value, Status *))        \
    each(void, TF_OpKernelConstruction_GetAttrSize, (Construction *, const char *name, int32_t *count, int32_t *bytes, Status *)) \
    each(void, TF_OpKernelConstruction_GetAttrStringList, (Construction *, const char *name, char **at, size_t *sizes, int count, void *room, size_t bytes, Status *)) \
    each(KernelBuilder *, TF_NewKernelBuilder, (const char *op, const char *device, void *(*make)(Construction *), void (*compute)(void *, Context *), void (*remove)(void *))) \
    each(void, TF_RegisterKernelBuilder, (const char *name, KernelBuilder *, Status *))                                   \
    each(OpBuilder *, TF_NewOpDefinitionBuilder, (const char *name))                                                      \
    each(void, TF_OpDefinitionBuilderAddInput, (OpBuilder *, const char *))                                               \
    each(void, TF_OpDefinitionBuilderAddOutput, (OpBuilder *, const char *))                                              \
    each(void, TF_OpDefinitionBuilderAddAttr, (OpBuilder *, const char *))                                                \
    each(void, TF_OpDefinitionBuilderSetIsStateful, (OpBuilder *, bool))                                                  \
    each(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (OpBuilder *, void (*)(Shapes *, Status *)))              \
    each(void, TF_RegisterOpDefinition, (OpBuilder *, Status *))                                                          \
    each(int64_t, TF_ShapeInferenceContextNumInputs, (Shapes *))                                                          \
    each(ShapeHandle *, TF_NewShapeHandle, ())                                                                            \
    each(void, TF_DeleteShapeHandle, (ShapeHandle *))                                                                     \
    each(void, TF_ShapeInferenceContextGetInput, (Shapes *, int index, ShapeHandle *, Status *))                          \
    each(void, TF_ShapeInferenceContextSetOutput, (Shapes *, int index, ShapeHandle *, Status *))

#define FAIRLEAD_POINTER(type, name, parameters) type(*name) parameters = nullptr;
FAIRLEAD_FUNCTIONS(FAIRLEAD_POINTER)

const char *missing = "";  // of these, the first that the process does not have

// Binary packages have them in the first library, other builds elsewhere.
bool look_up() {
    const char *const libraries[] = {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2", "_pywrap_tensorflow_internal.so"};
    void *handles[4] = {};
    for (int i = 0; i < 3; i++) handles[i] = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
    auto find = [&](const char *name) {
        void *found = nullptr;
        for (int i = 0; !found && i < 3; i++)
            if (handles[i]) found = dlsym(handles[i], name);
        if (!found) found = dlsym(RTLD_DEFAULT, name);
        if (!found && !*missing) missing = name;
        return found;
    };
#define FAIRLEAD_FIND(type, name, parameters) name = reinterpret_cast<decltype(name)>(find(#name));
    FAIRLEAD_FUNCTIONS(FAIRLEAD_FIND)
    return !*missing;
}

class Outcome {
  public:
    ~Outcome() { TF_DeleteStatus(status_); }
    operator Status *() { return status_; }
    bool bad() const { return TF_GetCode(status_) != OK; }
    void set(int code, const char *text) { TF_SetStatus(status_, code, text); }

  private:
    Status *status_ = TF_NewStatus();
};

// A tensor of this call; its memory belongs to TensorFlow.
class Held {
  public:
    Held() = default;
    ~Held() { let_go(); }
    Held(const Held &) = delete;
    void let_go() {
        if (at) TF_DeleteTensor(at);
        at = nullptr;
    }
    Tensor *at = nullptr;
};

// --- the core ----------------------------------------------------------------------------------

struct Core {
    int (*aggregate)(fairlead_team *, const fairlead_tensor *, uint64_t, int) = nullptr;
    const char *(*error)(void) = nullptr;
    int (*while_waiting)(int (*)(void)) = nullptr;
    // Writes the error message to `text`; returns its length in bytes.
    uint64_t (*words)(int code, const char *said, int64_t call, char *text, uint64_t room) = nullptr;
};

Core core;
uint32_t interruptible = 0;

// Python runs signal handlers in the main thread only, which waits for this operation if a function runs it in
// another thread. So while such a thread waits, a Ctrl-C is noticed here and ends the call with an error: a
// KeyboardInterrupt in addition would hide that error. A Ctrl-C that ended no call is left to Python.
uint32_t interrupted = 0;
pthread_mutex_t watching = PTHREAD_MUTEX_INITIALIZER;
int watchers = 0;
struct sigaction before;

void seen(int, siginfo_t *, void *) { __atomic_store_n(&interrupted, 1u, __ATOMIC_RELEASE); }

int go_on() { return __atomic_load_n(&interrupted, __ATOMIC_ACQUIRE) ? 0 : 1; }

class Watch {
  public:
    Watch() : on_(__atomic_load_n(&interruptible, __ATOMIC_ACQUIRE) && syscall(SYS_gettid) != getpid()) {
        if (!on_) return;
        const Lock held(watching);
        if (watchers == 0) {
            sigaction(SIGINT, nullptr, &before);
            const bool none = !(before.sa_flags & SA_SIGINFO) && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN);
            on_ = !none;
            if (none) return;
            __atomic_store_n(&interrupted, 0u, __ATOMIC_RELEASE);
            struct sigaction mine = {};
            mine.sa_sigaction = seen;
            mine.sa_flags = SA_SIGINFO | (before.sa_flags & (SA_ONSTACK | SA_RESTART));
            mine.sa_mask = before.sa_mask;
            sigaction(SIGINT, &mine, nullptr);
        }
        ++watchers;
        core.while_waiting(go_on);
    }

    ~Watch() {
        if (!on_) return;
        core.while_waiting(nullptr);
        const Lock held(watching);
        if (--watchers) return;
        struct sigaction now;
        sigaction(SIGINT, nullptr, &now);
        if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == seen) sigaction(SIGINT, &before, nullptr);
    }

  private:
    bool on_;
};

// --- aggregate ---------------------------------------------------------------------------------

constexpr int MOST_DIMS = 254;  // TensorFlow's own limit

// Different shapes are reported, even if the number of elements is the same.
int32_t shape_of(const Tensor *tensor) {
    uint64_t hash = 1469598103934665603u ^ uint64_t(TF_TensorType(tensor));
    for (int i = 0; i < TF_NumDims(tensor); ++i) hash = (hash * 1099511628211u) ^ uint64_t(TF_Dim(tensor, i) + 1);
    return int32_t(hash ^ (hash >> 32));
}

// The core's name of a type, and its numbers per element.
void form_of(int type, fairlead_tensor *tensor) {
    switch (type) {
        case DOUBLE: tensor->dtype = FAIRLEAD_FLOAT64; return;
        case HALF: tensor->dtype = FAIRLEAD_FLOAT16; return;
        case BFLOAT16: tensor->dtype = FAIRLEAD_BFLOAT16; return;
        case COMPLEX128: tensor->dtype = FAIRLEAD_FLOAT64; break;
        case COMPLEX64: tensor->dtype = FAIRLEAD_FLOAT32; break;
        default: tensor->dtype = FAIRLEAD_FLOAT32; return;
    }
    tensor->count *= 2;
}

struct Aggregate {
    int64_t team, operation, call;
    int32_t names;
    char **name;  // each ends with 0; one block with their bytes
};

void remove(void *kernel) { free(kernel); }

void *make_aggregate(Construction *context) {
    Outcome outcome;
    Aggregate given = {};
    int32_t bytes = 0;
    TF_OpKernelConstruction_GetAttrInt64(context, "team", &given.team, outcome);
    if (!outcome.bad()) TF_OpKernelConstruction_GetAttrInt64(context, "operation", &given.operation, outcome);
    if (!outcome.bad()) TF_OpKernelConstruction_GetAttrInt64(context, "call", &given.call, outcome);
    if (!outcome.bad()) TF_OpKernelConstruction_GetAttrSize(context, "names", &given.names, &bytes, outcome);
    const size_t count = outcome.bad() ? 0 : size_t(most(given.names, 0)), size = size_t(most(bytes, 0));
    Room<char> text;
    Room<char *> at;
    Room<size_t> sizes;
    Aggregate *kernel = nullptr;
    if (!outcome.bad()) {
        const bool room = text.room(size + 1) && at.room(count + 1) && sizes.room(count + 1);
        kernel = room ? static_cast<Aggregate *>(calloc(1, sizeof *kernel + count * sizeof(char *) + size + count)) : nullptr;
        if (!kernel) outcome.set(RESOURCE_EXHAUSTED, "no memory for the names of tensors");
    }
    if (!outcome.bad() && count) TF_OpKernelConstruction_GetAttrStringList(context, "names", at.at(), sizes.at(), int(count), text.at(), size, outcome);
    if (outcome.bad()) {
        TF_OpKernelConstruction_Failure(context, outcome);
        free(kernel);
        return nullptr;
    }
    *kernel = given;
    kernel->name = reinterpret_cast<char **>(kernel + 1);
    char *to = reinterpret_cast<char *>(kernel->name + count);
    for (size_t i = 0; i < count; i++) {
        kernel->name[i] = to;
        memcpy(to, at[i], sizes[i]);
        to += sizes[i] + 1;
    }
    return kernel;
}

// Where the inputs are and the means go; false: `outcome` says why not.
bool places(Context *context, const Aggregate &kernel, fairlead_tensor *table, int count, Outcome &outcome) {
    for (int i = 0; i < count; ++i) {
        Held in, out;
        TF_GetInput(context, i, &in.at, outcome);
        if (outcome.bad()) return false;
        fairlead_tensor &row = table[i] = {};
        row.in = TF_TensorData(in.at);
        row.count = uint64_t(TF_TensorElementCount(in.at));
        row.shape = shape_of(in.at);
        form_of(TF_TensorType(in.at), &row);
        if (i < kernel.names) row.name = kernel.name[i];
        int64_t dims[MOST_DIMS];
        const int ndims = TF_NumDims(in.at);
        for (int j = 0; j < ndims; ++j) dims[j] = TF_Dim(in.at, j);
        in.let_go();  // it is not forwarded while there is another owner
        int forwarded = -1;
        out.at = TF_ForwardInputOrAllocateOutput(context, &i, 1, i, dims, ndims, &forwarded, outcome);
        if (outcome.bad()) return false;
        row.out = TF_TensorData(out.at);
    }
    return true;
}

void aggregate(void *of, Context *context) {
    const Aggregate &kernel = *static_cast<const Aggregate *>(of);
    Outcome outcome;
    const int count = TF_NumInputs(context);
    Room<fairlead_tensor> table;
    if (!core.aggregate) outcome.set(FAILED_PRECONDITION, "the collective core is not bound to this process");
    else if (!table.room(size_t(count))) outcome.set(RESOURCE_EXHAUSTED, "no memory for a list of tensors");
    if (outcome.bad() || !places(context, kernel, table.at(), count, outcome)) return TF_OpKernelContext_Failure(context, outcome);
    int code;
    {
        const Watch watch;
        code = core.aggregate(reinterpret_cast<fairlead_team *>(kernel.team), table.at(), uint64_t(count), int(kernel.operation));
    }
    if (__atomic_exchange_n(&interrupted, 0u, __ATOMIC_ACQ_REL) && code != FAIRLEAD_INTERRUPTED) kill(getpid(), SIGINT);
    if (code == FAIRLEAD_OK) return;
    char text[8192];
    const uint64_t length = core.words(code, core.error(), kernel.call, text, sizeof text - 1);
    text[least(length, uint64_t(sizeof text - 1))] = 0;
    outcome.set(code == FAIRLEAD_INTERRUPTED ? CANCELLED : UNKNOWN, text);
    TF_OpKernelContext_Failure(context, outcome);
}

// --- checked -----------------------------------------------------------------------------------

// Passes tensors on, or fails: a function of Python in a graph has no way of its own to choose the error's code.
void checked(void *, Context *context) {
    Outcome outcome;
    Held code, text;
    TF_GetInput(context, 0, &code.at, outcome);
    if (!outcome.bad()) TF_GetInput(context, 1, &text.at, outcome);
    if (outcome.bad()) return TF_OpKernelContext_Failure(context, outcome);
    int32_t number = UNKNOWN;
    if (TF_TensorByteSize(code.at) == sizeof number) memcpy(&number, TF_TensorData(code.at), sizeof number);
    if (number != OK) {
        const size_t length = TF_TensorByteSize(text.at);
        Room<char> words;
        const bool room = words.room(length + 1);
        if (room) memcpy(words.at(), TF_TensorData(text.at), length), words[length] = 0;
        outcome.set(number, room ? words.at() : "");
        return TF_OpKernelContext_Failure(context, outcome);
    }
    for (int i = 2; i < TF_NumInputs(context); ++i) {
        Held tensor;
        TF_GetInput(context, i, &tensor.at, outcome);
        if (!outcome.bad()) TF_SetOutput(context, i - 2, tensor.at, outcome);
        if (outcome.bad()) return TF_OpKernelContext_Failure(context, outcome);
    }
}

// --- registration ------------------------------------------------------------------------------

// Outputs have the shapes of the inputs, of which the first `SKIPPED` have none.
template <int SKIPPED> void same_shapes(Shapes *context, Status *status) {
    for (int i = SKIPPED; i < TF_ShapeInferenceContextNumInputs(context) && TF_GetCode(status) == OK; ++i) {
        ShapeHandle *shape = TF_NewShapeHandle();
        TF_ShapeInferenceContextGetInput(context, i, shape, status);
        if (TF_GetCode(status) == OK) TF_ShapeInferenceContextSetOutput(context, i - SKIPPED, shape, status);
        TF_DeleteShapeHandle(shape);
    }
}

struct Definition {
    const char *name, *inputs[3], *output, *attributes[5];
    void (*shapes)(Shapes *, Status *);
    void *(*make)(Construction *);
    void (*compute)(void *, Context *);
    void (*remove)(void *);
};

const Definition DEFINITIONS[] = {
    {"FairleadAggregate", {"tensors: T"}, "means: T",
     {"T: list({half, bfloat16, float, double, complex64, complex128}) >= 1", "team: int", "operation: int", "call: int", "names: list(string)"},
     same_shapes<0>, make_aggregate, aggregate, remove},
    {"FairleadChecked", {"code: int32", "text: uint8", "tensors: T"}, "results: T", {"T: list(type) >= 1"}, same_shapes<2>, nullptr, checked, nullptr},
};

// As TensorFlow loads this file, it lists the operations that are registered.
__attribute__((constructor)) void register_all() {
    if (!look_up()) return;
    for (const Definition &each : DEFINITIONS) {
        OpBuilder *op = TF_NewOpDefinitionBuilder(each.name);
        for (const char *input : each.inputs)
            if (input) TF_OpDefinitionBuilderAddInput(op, input);
        TF_OpDefinitionBuilderAddOutput(op, each.output);
        for (const char *attribute : each.attributes)
            if (attribute) TF_OpDefinitionBuilderAddAttr(op, attribute);
        TF_OpDefinitionBuilderSetIsStateful(op, true);  // it runs even where nothing takes its results
        TF_OpDefinitionBuilderSetShapeInferenceFunction(op, each.shapes);
        Outcome outcome;
        TF_RegisterOpDefinition(op, outcome);
        if (outcome.bad()) continue;
        TF_RegisterKernelBuilder(each.name, TF_NewKernelBuilder(each.name, "CPU", each.make, each.compute, each.remove), outcome);
    }
}

}  // namespace

#define FAIRLEAD_SHOWN extern "C" __attribute__((visibility("default")))

// Called by Python before the first operation is made. `interrupts`: a Ctrl-C ends the program, so it may end a
// call.
FAIRLEAD_SHOWN void fairlead_tensorflow_bind(void *aggregate, void *error, void *while_waiting, void *words, int interrupts) {
    core.aggregate = reinterpret_cast<decltype(core.aggregate)>(aggregate);
    core.error = reinterpret_cast<decltype(core.error)>(error);
    core.while_waiting = reinterpret_cast<decltype(core.while_waiting)>(while_waiting);
    core.words = reinterpret_cast<decltype(core.words)>(words);
    __atomic_store_n(&interruptible, interrupts ? 1u : 0u, __ATOMIC_RELEASE);
}

// The function of TensorFlow's C interface that was not found, so that there is no operation; "": all were.
FAIRLEAD_SHOWN const char *fairlead_tensorflow_missing(void) { return missing; }
