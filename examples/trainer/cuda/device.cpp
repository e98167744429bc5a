// The current NVIDIA GPU as a device: one stream, and products whose workspace comes out of the plan.
#include "device.hpp"

#include "cuda_dit_ops.hpp"
#include "cuda_ops.hpp"
#include "error.hpp"

namespace trainer {
namespace {

/// A stream and the products queued on it, for as long as the run.
class queue_owner {
 public:
  queue_owner() { require(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking), "a stream"); }
  ~queue_owner() { cudaStreamDestroy(queue_.stream); }
  queue_owner(queue_owner const&) = delete;
  queue_owner& operator=(queue_owner const&) = delete;
  cuda_queue const& get() const { return queue_; }
  void give_room(void* room, std::size_t bytes) { products_.give_room(room, bytes); }

 private:
  matmul products_;
  cuda_queue queue_{nullptr, &products_};
};

class event_stopwatch final : public stopwatch {
 public:
  explicit event_stopwatch(cudaStream_t stream) : stream_(stream) {}
  ~event_stopwatch() override {
    for (cudaEvent_t e : events_) cudaEventDestroy(e);
  }
  event_stopwatch(event_stopwatch const&) = delete;
  void mark() override {
    if (used_ == events_.size()) {
      cudaEvent_t e = nullptr;
      require(cudaEventCreate(&e), "an event");
      events_.push_back(e);
    }
    require(cudaEventRecord(events_[used_++], stream_), "an event");
  }
  std::vector<double> laps() override {
    std::vector<double> seconds;
    if (used_ > 0) require(cudaEventSynchronize(events_[used_ - 1]), "the GPU's work");
    for (std::size_t i = 1; i < used_; ++i) {
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]), "the time between two events");
      seconds.push_back(double(milliseconds) / 1000);
    }
    used_ = 0;
    return seconds;
  }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;  // the first used_ are recorded; all are kept for the next time
  std::size_t used_ = 0;
};

class gpu_memory final : public plan_memory {
 public:
  explicit gpu_memory(cudaStream_t stream) : stream_(stream) {}
  std::byte* allocate(std::size_t bytes, std::size_t) const override {
    void* p = nullptr;
    if (cudaError_t const error = cudaMalloc(&p, bytes); error != cudaSuccess) {
      cudaGetLastError();  // a refused allocation leaves an error behind that the next launch would report
      throw out_of_memory("the GPU refused a buffer of " + std::to_string(bytes) +
                          " bytes: " + cudaGetErrorString(error));
    }
    fill(p, 0, bytes);
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* p) const noexcept override { cudaFree(p); }
  void fill(void* p, std::uint8_t value, std::size_t bytes) const noexcept override {
    cudaMemsetAsync(p, value, bytes, stream_);
  }

 private:
  cudaStream_t stream_;
};

class cuda_device final : public device {
 public:
  cuda_device(arithmetic how, cudaDeviceProp const& properties)
      : name_(properties.name),
        how_(how), target_{10 * properties.major + properties.minor, properties.multiProcessorCount},
        memory_(queue_.get().stream), op_(how, target_, queue_.get()), planner_(how, target_), dit_(&queue_.get()),
        dit_planner_(nullptr) {}
  ~cuda_device() override { cudaStreamSynchronize(queue_.get().stream); }

  ops<float> const& op() const override { return op_; }
  dit_ops<float> const& dit() const override { return dit_; }
  ops<float> const& planner() const override { return planner_; }
  dit_ops<float> const& dit_planner() const override { return dit_planner_; }
  plan_memory const& memory() const override { return memory_; }
  memory_budget budget() const override {
    std::size_t free = 0, total = 0;
    require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {free, std::size_t(256) << 20};
  }
  /// What NVIDIA advises: 32 MiB on compute capability 9, 4 MiB before it.
  std::size_t room() const override { return std::size_t(target_.sm >= 90 ? 32 : 4) << 20; }
  void give_room(void* room) override { queue_.give_room(room, this->room()); }
  std::unique_ptr<stopwatch> make_stopwatch() const override {
    return std::make_unique<event_stopwatch>(queue_.get().stream);
  }
  std::string describe() const override {
    if (how_ == arithmetic::f32_split) return name_ + ", products in f32, flash attention in f32_split";
    if (how_ == arithmetic::bf16) return name_ + ", products in tf32, flash attention in bf16";
    return name_ + ", products and attention in " + name_of(how_);
  }

 private:
  std::string name_;
  arithmetic how_;
  lanewise::cuda_target target_;
  queue_owner queue_;
  gpu_memory memory_;
  cuda_ops op_, planner_;
  cuda_dit_ops dit_, dit_planner_;
};

}  // namespace

std::unique_ptr<device> make_cuda_device(arithmetic how) {
  int count = 0, current = 0;
  cudaError_t const error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0)
    throw no_device(std::string("--device cuda: no NVIDIA GPU can be used (") +
                    (error == cudaSuccess ? "none is there" : cudaGetErrorString(error)) +
                    "); nvidia-smi shows what the driver sees, --device cpu needs none");
  cudaDeviceProp properties{};
  require(cudaGetDevice(&current), "the current GPU");
  require(cudaGetDeviceProperties(&properties, current), "the current GPU");
  return std::make_unique<cuda_device>(how, properties);
}

}  // namespace trainer
