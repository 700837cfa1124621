// Two operations for what a traced step does to its gradients, in the place of some hundred of TensorFlow's own.
//
//    EdlWeighed    a gradient, weighed by this worker's share: as it is where the factor is one, zeros where it is zero,
//                  so that a worker without samples, whose gradients may be nan, adds nothing.
//    EdlTogether   the averaged gradients, none before all are there: no variable is touched before (I5). In a newcomer's
//                  first step it asks Python, which waits for the state that comes beside that step.
//
// In a branch of TensorFlow's each tensor has a switch and a merge of its own, and what is not taken is gone through all
// the same: with a gate, and a clock that is read twice, that took 1 to 2 % of a step of 17 ms. By the way these two know
// what a step waits for its peers: from its last gradient until all have come back.
//
// None is marked as stateful: tf.function would make them wait for each other in the order of the layers, and gradients
// come in the opposite one. The scale is read from a variable, so nothing is constant and can be folded.
//
// Built by scripts/setup against the TensorFlow that is there, for main memory. Without it, and on GPUs,
// edl/tensorflow/tf_reducer.py does the same by TensorFlow's own.

#define EIGEN_USE_THREADS  // what the kernels compute is shared out over the threads of TensorFlow

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using namespace tensorflow;  // NOLINT: of all that is here

int64_t nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

struct Optimizer {
  std::atomic<int64_t> ready{0};    // when its newest gradient was there
  std::atomic<int64_t> averaged{0};  // how often all of its gradients were averaged: Python reads it where it lies
};

// Never destroyed: kernels may outlive it.
Optimizer& optimizer_of(const std::string& name) {
  static std::mutex* mutex = new std::mutex;
  static auto* all = new std::map<std::string, Optimizer>;
  const std::lock_guard<std::mutex> lock(*mutex);
  return (*all)[name];
}

std::atomic<int64_t> waited{0};  // by all steps of all optimizers

// What Python is asked before the first variable is touched; none but in a newcomer's first step.
std::atomic<int (*)()> before_update{nullptr};
enum Answer { kGoesOn = 0, kVoid = 1 };

REGISTER_OP("EdlWeighed")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("optimizer: string")
    .Attr("part: int")  // of the scale: 0 for what is averaged, 1 for what is summed up
    .Input("gradient: T")
    .Input("scale: float")
    .Output("weighed: T")
    .SetShapeFn(shape_inference::UnchangedShape);

template <typename T>
class Weighed : public OpKernel {
 public:
  explicit Weighed(OpKernelConstruction* context) : OpKernel(context) {
    std::string optimizer;
    OP_REQUIRES_OK(context, context->GetAttr("optimizer", &optimizer));
    OP_REQUIRES_OK(context, context->GetAttr("part", &part_));
    ready_ = &optimizer_of(optimizer).ready;
  }

  void Compute(OpKernelContext* context) override {
    ready_->store(nanoseconds());
    const float scale = context->input(1).flat<float>()(part_);
    if (scale == 1.0f) {
      context->set_output(0, context->input(0));
      return;
    }
    Tensor* weighed = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, context->input(0).shape(), &weighed));
    const auto& device = context->eigen_device<Eigen::ThreadPoolDevice>();
    if (scale == 0.0f) {
      weighed->flat<T>().device(device) = weighed->flat<T>().constant(T(0));
    } else {
      weighed->flat<T>().device(device) = context->input(0).flat<T>() * T(scale);
    }
  }

 private:
  int part_ = 0;
  std::atomic<int64_t>* ready_ = nullptr;
};

#define FOR_TYPE(type) \
  REGISTER_KERNEL_BUILDER(Name("EdlWeighed").Device(DEVICE_CPU).TypeConstraint<type>("T"), Weighed<type>)
FOR_TYPE(Eigen::half);
FOR_TYPE(bfloat16);
FOR_TYPE(float);
FOR_TYPE(double);

REGISTER_OP("EdlTogether")
    .Attr("T: list(type)")
    .Attr("optimizer: string")
    .Input("gradients: T")
    .Output("together: T")
    .SetShapeFn([](shape_inference::InferenceContext* context) {
      for (int number = 0; number < context->num_inputs(); ++number) {
        context->set_output(number, context->input(number));
      }
      return absl::OkStatus();
    });

class Together : public OpKernel {
 public:
  explicit Together(OpKernelConstruction* context) : OpKernel(context) {
    std::string optimizer;
    OP_REQUIRES_OK(context, context->GetAttr("optimizer", &optimizer));
    optimizer_ = &optimizer_of(optimizer);
  }

  void Compute(OpKernelContext* context) override {
    waited += std::max<int64_t>(0, nanoseconds() - optimizer_->ready.load());
    if (const auto ask = before_update.load()) {
      const int answer = ask();
      OP_REQUIRES(context, answer != kVoid, errors::Aborted("Horovod's ring has broken: this step is void"));
      OP_REQUIRES(context, answer == kGoesOn, errors::Internal("edl could not take over another worker's state"));
    }
    ++optimizer_->averaged;
    for (int number = 0; number < context->num_inputs(); ++number) {
      context->set_output(number, context->input(number));
    }
  }

 private:
  Optimizer* optimizer_ = nullptr;
};

REGISTER_KERNEL_BUILDER(Name("EdlTogether").Device(DEVICE_CPU), Together);

}  // namespace

// To be called, on a thread of TensorFlow's, once all gradients of a step are averaged; null: no more.
extern "C" void edl_before_update(int (*ask)()) { before_update = ask; }

// How long all steps of this process have waited for their peers, in nanoseconds.
extern "C" int64_t edl_waited() { return waited; }

// Where it stands how often all gradients of an optimizer were averaged in a graph and its update followed.
extern "C" const void* edl_averaged(const char* optimizer) { return &optimizer_of(optimizer).averaged; }
