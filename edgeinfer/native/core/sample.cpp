// Choosing a token at random: generation/sampling.py says what each filter means, and this does the same on few logits.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine.h"

namespace edgeinfer {

namespace {

constexpr float DROPPED = -INFINITY;
constexpr float LEAST = 1e-30f;  // a probability that dropped tokens do not reach

struct Candidate {
  float logit;
  int id;
  bool operator<(const Candidate& other) const {  // the better first, of equals the one that comes first
    return logit > other.logit || (logit == other.logit && id < other.id);
  }
};

constexpr int GROUP = 64;  // logits of which most are passed over together

// Whether a group holds anything above `least`, or a NaN. In lanes, which the compiler makes vectors of.
bool stands_out(const float* logits, float least) {
  int found[16] = {};
  for (int i = 0; i < GROUP; i += 16)
    for (int lane = 0; lane < 16; lane++) found[lane] |= !(logits[i + lane] <= least);
  return std::any_of(std::begin(found), std::end(found), [](int each) { return each != 0; });
}

// The k best, best first. Empty if any logit is a NaN, or the largest no finite number.
std::vector<Candidate> best_of(const float* logits, int count, int k) {
  std::vector<Candidate> heap;  // the worst of the best on top
  heap.reserve(size_t(k) + 1);
  bool nan = false;
  for (int i = 0; i < count; i++) {
    while (int(heap.size()) == k && i + GROUP <= count && !stands_out(logits + i, heap.front().logit)) i += GROUP;
    if (i == count) break;
    nan |= logits[i] != logits[i];
    if (int(heap.size()) == k && !(logits[i] > heap.front().logit)) continue;
    heap.push_back({logits[i], i});
    std::push_heap(heap.begin(), heap.end());
    if (int(heap.size()) <= k) continue;
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
  }
  std::sort_heap(heap.begin(), heap.end());
  if (nan || !std::isfinite(heap.front().logit)) heap.clear();
  return heap;
}

std::vector<float> softmax(const std::vector<Candidate>& best) {
  float most = DROPPED, total = 0;
  for (const Candidate& each : best) most = std::max(most, each.logit);
  std::vector<float> weights;
  for (const Candidate& each : best) total += weights.emplace_back(std::exp(each.logit - most));
  for (float& each : weights) each /= total;
  return weights;
}

void typical(std::vector<Candidate>& best, float p) {
  const std::vector<float> probabilities = softmax(best);
  float entropy = 0;
  for (float each : probabilities) entropy -= each > 0 ? each * std::log(each) : 0;
  std::vector<float> distance;
  for (float each : probabilities) distance.push_back(each > 0 ? std::abs(-std::log(each) - entropy) : INFINITY);
  std::vector<int> order(best.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return distance[a] < distance[b]; });
  float before = 0;
  for (int place : order) {
    if (before > p) best[place].logit = DROPPED;
    before += probabilities[place];
  }
}

void nucleus(std::vector<Candidate>& best, float p) {
  const std::vector<float> probabilities = softmax(best);
  float before = 0;
  for (size_t i = 0; i < best.size(); i++) {
    if (before >= std::max(p, LEAST)) best[i].logit = DROPPED;
    before += probabilities[i];
  }
}

void exclude_top(std::vector<Candidate>& best, float threshold) {
  const std::vector<float> probabilities = softmax(best);
  size_t last = 0;
  for (size_t i = 0; i < best.size(); i++)
    if (probabilities[i] >= std::max(threshold, LEAST)) last = i;
  for (size_t i = 0; i < last; i++) best[i].logit = DROPPED;
}

// Where u falls, adding up from the least likely.
int draw(const std::vector<Candidate>& best, float u) {
  const std::vector<float> probabilities = softmax(best);
  std::vector<float> mass(probabilities.rbegin(), probabilities.rend());
  std::partial_sum(mass.begin(), mass.end(), mass.begin());
  const auto passed = std::count_if(mass.begin(), mass.end(), [&](float each) { return each <= u * mass.back(); });
  return best[best.size() - 1 - size_t(passed)].id;
}

}  // namespace

int sample(const float* logits, int count, const SampleSpec& spec) {
  std::vector<Candidate> best = best_of(logits, count, std::min(spec.top_k, count));
  if (best.empty()) return -1;
  if (spec.typical_p < 1) typical(best, spec.typical_p);
  if (spec.top_p < 1) nucleus(best, spec.top_p);
  if (spec.min_p > 0) {
    float most = DROPPED;
    for (const Candidate& each : best) most = std::max(most, each.logit);
    for (Candidate& each : best)
      if (each.logit < most + float(std::log(spec.min_p))) each.logit = DROPPED;
  }
  if (spec.xtc_threshold >= 0) exclude_top(best, spec.xtc_threshold);
  for (Candidate& each : best) each.logit /= spec.temperature;
  return draw(best, spec.u);
}

}  // namespace edgeinfer
