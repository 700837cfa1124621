// Kernels for the operations of Horovod 0.28.1 in TensorFlow, which hand on to the engine whose turn it is.
//
// A graph, or a tf.function, is traced once, and knows operations by their names: HorovodAllreduce, say. TensorFlow makes
// a kernel for each, once, and that one belongs to the library that it came from. So when two copies of Horovod's library
// take turns, something has to stand between. Each copy has its operations under names of its own, HorovodAllreduce as
// Horovo1Allreduce and Horovo2Allreduce (edl/collectives/pairs.py gives them). For those under Horovod's own names
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

class InTurn : public AsyncOpKernel {
 public:
  explicit InTurn(OpKernelConstruction* context) : InTurn(context, context->def()) {}

  // `asked`: the node in the place of the context's own, with the name of one of Horovod's operations.
  InTurn(OpKernelConstruction* context, const NodeDef& asked) : AsyncOpKernel(context) {
    for (const auto& copy : names().copies) {
      NodeDef node = asked;
      node.set_op(copy + node.op().substr(names().horovods.size()));
      std::shared_ptr<const NodeProperties> properties;
      OP_REQUIRES_OK(context, NodeProperties::CreateFromNodeDef(std::move(node), OpRegistry::Global(), &properties));
      OpKernel* kernel = nullptr;
      OP_REQUIRES_OK(context,
                     CreateOpKernel(context->device_type(), context->device(),
                                    context->device()->GetAllocator(AllocatorAttributes()), context->function_library(),
                                    context->resource_manager(), properties, context->graph_def_version(), &kernel));
      kernels_.emplace_back(kernel);
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    OpKernel* kernel = kernels_[turn].get();
    if (auto* waiting = kernel->AsAsync()) {
      waiting->ComputeAsync(context, std::move(done));
    } else {
      kernel->Compute(context);
      done();
    }
  }

 private:
  std::vector<std::unique_ptr<OpKernel>> kernels_;
};

OpKernel* make(OpKernelConstruction* context) { return new InTurn(context); }

// The largest of all members' values, in each place. Horovod's operation has a name only in a graph, and knows all that
// execute eagerly by one; a graph takes TensorFlow some 60 ms to get ready, once in each process.
constexpr char kLargest[] = "EdlLargest";

absl::Status largest(OpRegistrationData* data) {
  return OpDefBuilder(kLargest)
      .Attr("tensor_name: string")
      .Attr("reduce_op: int")  // Horovod's Max
      .Input("values: int64")
      .Output("largest: int64")
      .SetShapeFn([](shape_inference::InferenceContext* context) {
        context->set_output(0, context->input(0));
        return absl::OkStatus();
      })
      .Finalize(data);
}

NodeDef allreduce(OpKernelConstruction* context) {
  NodeDef node;
  std::string name;
  int64_t reduce_op = 0;
  if (!context->GetAttr("tensor_name", &name).ok() || !context->GetAttr("reduce_op", &reduce_op).ok()) return node;
  node.set_name(name);
  node.set_op(names().horovods + "Allreduce");
  node.set_device(context->def().device());
  node.add_input("values");
  AddNodeAttr("T", DT_INT64, &node);
  AddNodeAttr("reduce_op", reduce_op, &node);
  for (const char* factor : {"prescale_factor", "postscale_factor"}) AddNodeAttr(factor, 1.0f, &node);
  const OpDef* known;
  if (OpRegistry::Global()->LookUpOpDef(node.op(), &known).ok()) AddDefaultsToNodeDef(*known, &node);
  return node;
}

OpKernel* make_largest(OpKernelConstruction* context) { return new InTurn(context, allreduce(context)); }

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
  OpRegistry::Global()->Register(largest);
  kernel_factory::OpKernelRegistrar(KernelDefBuilder(kLargest).Device(DEVICE_CPU).Build(), "InTurn", make_largest);
  return static_cast<int>(found.size());
}

void edl_turn_to(int copy) { turn = copy; }

}
