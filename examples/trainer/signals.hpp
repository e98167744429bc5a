// Signals of a long run: SIGINT and SIGTERM ask it to finish its step, SIGHUP is ignored so that it outlives its
// terminal. A handler can only reach what is static, so this is the program's one mutable static.
#pragma once

#include <csignal>

namespace trainer {

class stop_requests {
 public:
  stop_requests() {
    struct sigaction action {};
    action.sa_handler = [](int number) { received_ = number; };
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    action.sa_handler = SIG_IGN;
    sigaction(SIGHUP, &action, nullptr);
  }

  /// The signal received, or 0.
  int received() const { return received_; }

 private:
  static inline volatile std::sig_atomic_t received_ = 0;
};

}  // namespace trainer
