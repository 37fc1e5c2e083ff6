// TensorFlow operations: the core's aggregate, one for a whole list of gradients, and one that fails as it is asked to.
//
// The first works on the tensors' own memory, without Python. Inputs without other owners become the outputs. It does not
// link the core: Python binds it to the one that the process has loaded. compile.sh compiles it; a file is for the
// one TensorFlow release in its name, since TensorFlow's C++ interface changes with each release.

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "fairlead_comm.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = ::tensorflow;

struct Core {
    int (*aggregate)(fairlead_team *, const fairlead_tensor *, uint64_t, int) = nullptr;
    const char *(*error)(void) = nullptr;
    int (*while_waiting)(int (*)(void)) = nullptr;
    // Writes the error message to `text`; returns its length in bytes.
    uint64_t (*words)(int code, const char *said, int64_t call, char *text, uint64_t room) = nullptr;
};

Core core;
std::atomic<bool> interruptible{false};

// Python runs signal handlers in the main thread only, which waits for this operation if a function runs it in
// another thread. So while such a thread waits, a Ctrl-C is noticed here and ends the call with an error: a
// KeyboardInterrupt in addition would hide that error. A Ctrl-C that ended no call is left to Python.
std::atomic<bool> interrupted{false};
std::mutex watching;
int watchers = 0;
struct sigaction before;

void seen(int, siginfo_t *, void *) { interrupted = true; }

int go_on() { return interrupted ? 0 : 1; }

class Watch {
  public:
    Watch() : on_(interruptible && syscall(SYS_gettid) != getpid()) {
        if (!on_) return;
        std::lock_guard<std::mutex> held(watching);
        if (watchers == 0) {
            sigaction(SIGINT, nullptr, &before);
            bool none = !(before.sa_flags & SA_SIGINFO) &&
                        (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN);
            on_ = !none;
            if (none) return;
            interrupted = false;
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
        std::lock_guard<std::mutex> held(watching);
        if (--watchers) return;
        struct sigaction now;
        sigaction(SIGINT, nullptr, &now);
        if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == seen) sigaction(SIGINT, &before, nullptr);
    }

  private:
    bool on_;
};

// Different shapes are reported, even if the number of elements is the same.
int32_t shape_of(const tf::Tensor &tensor) {
    uint64_t hash = 1469598103934665603u ^ static_cast<uint64_t>(tensor.dtype());
    for (int i = 0; i < tensor.dims(); ++i)
        hash = (hash * 1099511628211u) ^ static_cast<uint64_t>(tensor.dim_size(i) + 1);
    return static_cast<int32_t>(hash ^ (hash >> 32));
}

// The core's name of a type, and its numbers per element.
void form_of(tf::DataType type, fairlead_tensor *tensor) {
    switch (type) {
        case tf::DT_DOUBLE: tensor->dtype = FAIRLEAD_FLOAT64; return;
        case tf::DT_HALF: tensor->dtype = FAIRLEAD_FLOAT16; return;
        case tf::DT_BFLOAT16: tensor->dtype = FAIRLEAD_BFLOAT16; return;
        case tf::DT_COMPLEX128: tensor->dtype = FAIRLEAD_FLOAT64; break;
        case tf::DT_COMPLEX64: tensor->dtype = FAIRLEAD_FLOAT32; break;
        default: tensor->dtype = FAIRLEAD_FLOAT32; return;
    }
    tensor->count *= 2;
}

class Aggregate : public tf::OpKernel {
  public:
    explicit Aggregate(tf::OpKernelConstruction *context) : tf::OpKernel(context) {
        OP_REQUIRES_OK(context, context->GetAttr("team", &team_));
        OP_REQUIRES_OK(context, context->GetAttr("operation", &operation_));
        OP_REQUIRES_OK(context, context->GetAttr("call", &call_));
        OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    }

    void Compute(tf::OpKernelContext *context) override {
        OP_REQUIRES(context, core.aggregate != nullptr,
                    absl::FailedPreconditionError("the collective core is not bound to this process"));
        std::vector<fairlead_tensor> table(context->num_inputs());
        for (int i = 0; i < context->num_inputs(); ++i) {
            const tf::Tensor &in = context->input(i);
            table[i] = {};
            table[i].in = in.data();
            table[i].count = static_cast<uint64_t>(in.NumElements());
            table[i].shape = shape_of(in);
            form_of(in.dtype(), &table[i]);
            if (i < static_cast<int>(names_.size())) table[i].name = names_[i].c_str();
            tf::Tensor *out = nullptr;
            OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({i}, i, in.shape(), &out));
            table[i].out = out->data();
        }
        int code;
        {
            Watch watch;
            code = core.aggregate(reinterpret_cast<fairlead_team *>(team_), table.data(), table.size(),
                                  static_cast<int>(operation_));
        }
        if (interrupted.exchange(false) && code != FAIRLEAD_INTERRUPTED) kill(getpid(), SIGINT);
        if (code == FAIRLEAD_OK) return;
        std::string text(8192, '\0');
        text.resize(core.words(code, core.error(), call_, &text[0], text.size()));
        if (code == FAIRLEAD_INTERRUPTED)
            context->CtxFailure(absl::CancelledError(text));
        else
            context->CtxFailure(absl::UnknownError(text));
    }

  private:
    std::vector<std::string> names_;
    int64_t team_ = 0, operation_ = 0, call_ = 0;
};

REGISTER_OP("FairleadAggregate")
    .Input("tensors: T")
    .Output("means: T")
    .Attr("T: list({half, bfloat16, float, double, complex64, complex128}) >= 1")
    .Attr("team: int")
    .Attr("operation: int")
    .Attr("call: int")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext *context) {
        for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
        return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("FairleadAggregate").Device(tf::DEVICE_CPU), Aggregate);

// Passes tensors on, or fails: a function of Python in a graph has no way of its own to choose the error's code.
class Checked : public tf::OpKernel {
  public:
    explicit Checked(tf::OpKernelConstruction *context) : tf::OpKernel(context) {}

    void Compute(tf::OpKernelContext *context) override {
        int code = context->input(0).scalar<int32_t>()();
        const tf::tstring &text = context->input(1).scalar<tf::tstring>()();
        OP_REQUIRES(context, code == 0, absl::Status(static_cast<absl::StatusCode>(code), text));
        for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i + 2));
    }
};

// Stateful, so that it runs where nothing takes its results.
REGISTER_OP("FairleadChecked")
    .Input("code: int32")
    .Input("text: string")
    .Input("tensors: T")
    .Output("results: T")
    .Attr("T: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext *context) {
        for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i + 2));
        return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("FairleadChecked").Device(tf::DEVICE_CPU), Checked);

}  // namespace

// Called by Python before the first operation is made. `interrupts`: a Ctrl-C ends the program, so it may end a
// call.
extern "C" __attribute__((visibility("default"))) void fairlead_tensorflow_bind(
    void *aggregate, void *error, void *while_waiting, void *words, int interrupts) {
    core.aggregate = reinterpret_cast<decltype(core.aggregate)>(aggregate);
    core.error = reinterpret_cast<decltype(core.error)>(error);
    core.while_waiting = reinterpret_cast<decltype(core.while_waiting)>(while_waiting);
    core.words = reinterpret_cast<decltype(core.words)>(words);
    interruptible = interrupts != 0;
}
