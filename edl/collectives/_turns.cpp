// Kernels for the operations of Horovod 0.28.1 in TensorFlow, which hand on to the engine whose turn it is.
//
// A graph, or a tf.function, is traced once, and knows operations by their names: HorovodAllreduce, say. TensorFlow makes
// a kernel for each, once, and that one belongs to the library that it came from. So when two copies of Horovod's library
// take turns, something has to stand between. Each copy has its operations under names of its own, HorovodAllreduce as
// Horovo1Allreduce and Horovo2Allreduce (edl/collectives/twin_libraries.py gives them). For those under Horovod's own names
// there are kernels here as well, of higher priority than Horovod's own, so that TensorFlow takes these. Each makes the
// kernels of both copies for the same node, and lets one of them compute.
//
// Nothing here is Horovod's: what is used is TensorFlow's way to make a kernel of any node. Built by scripts/setup
// against the TensorFlow that is there. Without it, a ring forms in line.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using namespace tensorflow;  // NOLINT: of all that is here

constexpr int kBeforeHorovods = 1;  // the priority of Horovod's own is 0

std::atomic<int> turn{0};

// What the names of operations begin with: Horovod's, and those of its copies. Never destroyed: kernels may outlive it.
struct Names {
  std::string horovods;
  std::vector<std::string> copies;
};

Names& names() {
  static Names* all = new Names;
  return *all;
}

// The kernel of one copy for a node with the name of one of Horovod's operations. Null: what is wrong is in the context.
std::unique_ptr<OpKernel> kernel_of(OpKernelConstruction* context, NodeDef node, size_t copy) {
  node.set_op(names().copies[copy] + node.op().substr(names().horovods.size()));
  std::shared_ptr<const NodeProperties> properties;
  OpKernel* kernel = nullptr;
  absl::Status status = NodeProperties::CreateFromNodeDef(std::move(node), OpRegistry::Global(), &properties);
  if (status.ok()) {
    status = CreateOpKernel(context->device_type(), context->device(),
                            context->device()->GetAllocator(AllocatorAttributes()), context->function_library(),
                            context->resource_manager(), properties, context->graph_def_version(), &kernel);
  }
  if (!status.ok()) context->CtxFailure(status);
  return std::unique_ptr<OpKernel>(kernel);
}

void compute(OpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) {
  if (auto* waiting = kernel->AsAsync()) {
    waiting->ComputeAsync(context, std::move(done));
  } else {
    kernel->Compute(context);
    done();
  }
}

// One of Horovod's operations.
class InTurn : public AsyncOpKernel {
 public:
  explicit InTurn(OpKernelConstruction* context) : AsyncOpKernel(context) {
    for (size_t copy = 0; copy < names().copies.size(); ++copy) {
      kernels_.push_back(kernel_of(context, context->def(), copy));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    compute(kernels_[turn].get(), context, std::move(done));
  }

 private:
  std::vector<std::unique_ptr<OpKernel>> kernels_;
};

OpKernel* make(OpKernelConstruction* context) { return new InTurn(context); }

// Horovod's all-reduce by a name of the caller's, in one of the copies. Horovod's own operation has a name only in a graph,
// and knows all that execute eagerly by one; a graph takes TensorFlow some 60 ms to get ready, once in each process.
constexpr char kAllreduce[] = "EdlAllreduce";
constexpr int kInTurn = -1;  // in the place of a copy's number: the one whose turn it is

absl::Status allreduce(OpRegistrationData* data) {
  return OpDefBuilder(kAllreduce)
      .Attr("tensor_name: string")
      .Attr("reduce_op: int")  // Horovod's Average, say
      .Attr("copy: int")
      .Attr("T: type")
      .Input("values: T")
      .Output("reduced: T")
      .SetShapeFn([](shape_inference::InferenceContext* context) {
        context->set_output(0, context->input(0));
        return absl::OkStatus();
      })
      .Finalize(data);
}

class Named : public AsyncOpKernel {
 public:
  explicit Named(OpKernelConstruction* context) : AsyncOpKernel(context) {
    int copy = 0;
    OP_REQUIRES_OK(context, context->GetAttr("copy", &copy));
    const int copies = static_cast<int>(names().copies.size());
    OP_REQUIRES(context, kInTurn <= copy && copy < copies, absl::InvalidArgumentError("there is no such copy"));
    NodeDef node;
    OP_REQUIRES_OK(context, horovods(context, &node));
    kernels_.resize(copies);
    for (int one = 0; one < copies; ++one) {
      if (copy == kInTurn || copy == one) kernels_[one] = kernel_of(context, node, one);
    }
    copy_ = copy;
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    compute(kernels_[copy_ == kInTurn ? turn.load() : copy_].get(), context, std::move(done));
  }

 private:
  static absl::Status horovods(OpKernelConstruction* context, NodeDef* node) {
    std::string name;
    int64_t reduce_op = 0;
    DataType type;
    TF_RETURN_IF_ERROR(context->GetAttr("tensor_name", &name));
    TF_RETURN_IF_ERROR(context->GetAttr("reduce_op", &reduce_op));
    TF_RETURN_IF_ERROR(context->GetAttr("T", &type));
    node->set_name(name);
    node->set_op(names().horovods + "Allreduce");
    node->set_device(context->def().device());
    node->add_input("values");
    AddNodeAttr("T", type, node);
    AddNodeAttr("reduce_op", reduce_op, node);
    for (const char* factor : {"prescale_factor", "postscale_factor"}) AddNodeAttr(factor, 1.0f, node);
    const OpDef* known;
    TF_RETURN_IF_ERROR(OpRegistry::Global()->LookUpOpDef(node->op(), &known));
    AddDefaultsToNodeDef(*known, node);
    return absl::OkStatus();
  }

  std::vector<std::unique_ptr<OpKernel>> kernels_;
  int copy_ = kInTurn;
};

OpKernel* make_named(OpKernelConstruction* context) { return new Named(context); }

// The operations whose names begin so.
std::vector<std::string> operations(const std::string& prefix) {
  std::vector<OpDef> known;
  OpRegistry::Global()->GetRegisteredOps(&known);
  std::vector<std::string> found;
  for (const auto& op : known) {
    if (op.name().rfind(prefix, 0) == 0) found.push_back(op.name());
  }
  return found;
}

}  // namespace

extern "C" {

// The same, with a space between two. It is there until the next call.
const char* edl_operations(const char* prefix) {
  static std::string* all = new std::string;
  all->clear();
  for (const auto& name : operations(prefix)) *all += name + " ";
  return all->c_str();
}

// To be called once, when all copies are loaded: the names of the operations in each begin with one of `copies`. Returns
// how many operations of `horovods` there are, all of which take turns from now on; or -1 where a copy lacks one of
// them, and then nothing has changed.
int edl_take_turns(const char* horovods, const char* const* copies, int number) {
  names().horovods = horovods;
  names().copies.assign(copies, copies + number);
  const auto found = operations(horovods);
  for (const auto& name : found) {
    for (const auto& copy : names().copies) {
      const OpDef* known;
      if (!OpRegistry::Global()->LookUpOpDef(copy + name.substr(names().horovods.size()), &known).ok()) return -1;
    }
  }
  for (const auto& name : found) {
    const KernelDef* kernel =
        KernelDefBuilder(name.c_str()).Device(DEVICE_CPU).Priority(kBeforeHorovods).Build();  // the registrar's
    kernel_factory::OpKernelRegistrar(kernel, "InTurn", make);
  }
  OpRegistry::Global()->Register(allreduce);
  kernel_factory::OpKernelRegistrar(KernelDefBuilder(kAllreduce).Device(DEVICE_CPU).Build(), "Named", make_named);
  return static_cast<int>(found.size());
}

void edl_turn_to(int copy) { turn = copy; }

// What is built against the same TensorFlow of an edl before this one lacks it.
const char* edl_allreduce() { return kAllreduce; }

}
