#include "loss_curve.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

namespace trainer {
namespace {

template <class... Values>
std::string format(char const* pattern, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

}  // namespace

loss_curve loss_curve::from_log(std::string const& log, double yardstick, curve_words const& words) {
  loss_curve curve;
  curve.yardstick = yardstick;
  curve.words = words;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json const j = nlohmann::json::parse(line);
    std::int64_t const step = j.at("step");
    if (j.contains("loss")) curve.training.push_back({step, j.at("loss")});
    if (j.contains("validation_loss")) curve.validation.push_back({step, j.at("validation_loss")});
  }
  return curve;
}

/// The first steps' fall would flatten the rest, so the top is what an untrained model soon falls below.
loss_curve::range loss_curve::bounds() const {
  range r{yardstick, yardstick, 1};
  for (curve_point const& p : training) r.steps = std::max(r.steps, p.step);
  for (auto const* points : {&training, &validation})
    for (curve_point const& p : *points) {
      r.low = std::min(r.low, p.loss);
      if (p.step * 50 >= r.steps) r.high = std::max(r.high, p.loss);
    }
  double const margin = 0.05 * (r.high - r.low + 0.1);
  return {r.low - margin, r.high + margin, r.steps};
}

/// The training loss, averaged into at most `points` points.
std::vector<curve_point> loss_curve::smoothed(std::size_t points) const {
  std::vector<curve_point> means;
  std::size_t const size = std::max<std::size_t>(1, (training.size() + points - 1) / points);
  for (std::size_t begin = 0; begin < training.size(); begin += size) {
    std::size_t const end = std::min(begin + size, training.size());
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += training[i].loss;
    means.push_back({training[(begin + end - 1) / 2].step, sum / double(end - begin)});
  }
  return means;
}

std::string loss_curve::terminal(int width, int height, bool plain) const {
  range const r = bounds();
  std::vector<std::string> cells(std::size_t(width * height), " ");
  auto const row_of = [&](double loss) {
    double const at = (r.high - std::clamp(loss, r.low, r.high)) / (r.high - r.low) * height;
    return std::min(height - 1, int(at));
  };
  auto const put = [&](std::int64_t step, double loss, char const* mark) {
    int const column = std::min(width - 1, int(double(step) / double(r.steps) * width));
    cells[std::size_t(row_of(loss) * width + column)] = mark;
  };
  int const yardstick_row = row_of(yardstick);
  for (int c = 0; c < width; ++c) cells[std::size_t(yardstick_row * width + c)] = plain ? "-" : "╌";
  for (curve_point const& p : smoothed(std::size_t(width))) put(p.step, p.loss, plain ? "." : "·");
  for (curve_point const& p : validation) put(p.step, p.loss, plain ? "o" : "●");

  std::string text = format("loss, %s   %s training   %s validation   %s %s\n", words.unit.c_str(), plain ? "." : "·",
                            plain ? "o" : "●", plain ? "-" : "╌", words.yardstick.c_str());
  for (int row = 0; row < height; ++row) {
    double const loss = r.high - (row + 0.5) / height * (r.high - r.low);
    text += row % 4 == 0 || row == height - 1 ? format("%6.2f ", loss) : std::string(7, ' ');
    text += plain ? "|" : "│";
    for (int c = 0; c < width; ++c) text += cells[std::size_t(row * width + c)];
    while (text.ends_with(' ')) text.pop_back();
    text += "\n";
  }
  text += std::string(7, ' ') + (plain ? "+" : "└");
  for (int c = 0; c < width; ++c) text += plain ? "-" : "─";
  return text + format("\n%8s0%*lld steps\n", "", width - 7, static_cast<long long>(r.steps));
}

std::string loss_curve::svg(std::string const& title) const {
  constexpr double left = 60, right = 700, top = 40, bottom = 350;
  range const r = bounds();
  auto const x = [&](std::int64_t step) { return left + (right - left) * double(step) / double(r.steps); };
  auto const y = [&](double loss) {
    return top + (bottom - top) * (r.high - std::clamp(loss, r.low, r.high)) / (r.high - r.low);
  };
  auto const line = [&](std::vector<curve_point> const& points, char const* colour, double width) {
    std::string text = format("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" points=\"", colour, width);
    for (curve_point const& p : points) text += format("%.1f,%.1f ", x(p.step), y(p.loss));
    return text + "\"/>\n";
  };
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 400\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"720\" height=\"400\" fill=\"white\"/>\n";
  text += format("<text x=\"%g\" y=\"22\" font-size=\"14\">%s</text>\n", left, title.c_str());
  double const span = r.high - r.low, tick = span > 2.5 ? 0.5 : span > 1 ? 0.2 : 0.1;
  for (double loss = std::ceil(r.low / tick) * tick; loss <= r.high; loss += tick)
    text += format(
        "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#e4e4e4\"/><text x=\"%g\" y=\"%.1f\" "
        "text-anchor=\"end\">%.1f</text>\n",
        left, right, y(loss), y(loss), left - 8, y(loss) + 4, loss);
  for (int i = 0; i <= 5; ++i)
    text += format("<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%lld</text>\n", x(r.steps * i / 5), bottom + 18,
                   static_cast<long long>(r.steps * i / 5));
  text += format("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">step</text>\n", (left + right) / 2, bottom + 36);
  text += format("<text transform=\"translate(16,%g) rotate(-90)\" text-anchor=\"middle\">loss, %s</text>\n",
                 (top + bottom) / 2, words.unit.c_str());
  text += line(training, "#b9d2ee", 1) + line(smoothed(100), "#2f6db5", 2) + line(validation, "#c4472b", 2);
  for (curve_point const& p : validation)
    text += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#c4472b\"/>\n", x(p.step), y(p.loss));
  text += format("<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#555\" stroke-dasharray=\"6 4\"/>\n", left,
                 right, y(yardstick), y(yardstick));
  text += format("<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555\">%s %.3f</text>\n", right,
                 y(yardstick) - 6, words.yardstick.c_str(), yardstick);
  text +=
      format("<text x=\"%g\" y=\"%g\" text-anchor=\"end\" fill=\"#2f6db5\">training</text>\n", right - 80, top + 12);
  text += format("<text x=\"%g\" y=\"%g\" text-anchor=\"end\" fill=\"#c4472b\">validation</text>\n", right, top + 12);
  return text + "</svg>\n";
}

}  // namespace trainer
