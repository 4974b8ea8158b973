// The matcher of drafts, bound to Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "../core/matcher.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace edgeinfer {

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// A matcher with what it reads and learns, which Python holds as well.
struct HeldMatcher {
  Array<double> rates, weights;
  Array<const double> ratios;
  Array<int32_t> hits, trials;
  Array<const int32_t> tokens, order;
  Array<const uint64_t> hashes;
  Array<const uint8_t> seen;
  Matcher it;

  HeldMatcher(const std::vector<int>& prompt, Array<double> rates_, Array<double> weights_, Array<int32_t> hits_,
              Array<int32_t> trials_)
      : rates(rates_), weights(weights_), hits(hits_), trials(trials_),
        it(prompt, {rates.data(), weights.data(), hits.data(), trials.data()}) {
    for (size_t size : {rates.size(), weights.size(), hits.size(), trials.size()})
      if (size != SURVIVAL_CELLS) throw std::invalid_argument("expected tables of all cells");
  }

  void follow(Array<const int32_t> tokens_, Array<const int32_t> order_, Array<const uint64_t> hashes_,
              Array<const uint8_t> seen_) {
    if (order_.size() != hashes_.size() || seen_.size() != STORE_FILTER)
      throw std::invalid_argument("expected the arrays of one store");
    tokens = tokens_, order = order_, hashes = hashes_, seen = seen_;
    it.follow({tokens.data(), tokens.size(), order.data(), hashes.data(), hashes.size(), seen.data()});
  }

  void set_terms(Array<const double> ratios_, int sequences, double margin, double bubble, double least,
                 double least_pipelined) {
    if (ratios_.size() != MOST_DRAFTED + 1 || sequences < 1 || sequences > MOST_DRAFTED)
      throw std::invalid_argument("expected a ratio for each number of rows");
    ratios = ratios_;
    it.set_terms({ratios.data(), sequences, margin, bubble, least, least_pipelined});
  }

  int advance(const std::vector<int>& came, int limit, bool pipelined) {
    return int(it.advance(came, limit, pipelined));
  }

  std::optional<std::pair<std::vector<int>, std::vector<double>>> propose(int limit) {
    const Guess& guess = it.propose(limit);
    if (guess.tokens.empty()) return std::nullopt;
    const int count = it.worthwhile(guess);
    return std::pair(std::vector(guess.tokens.begin(), guess.tokens.begin() + count),
                     std::vector(guess.survival.begin(), guess.survival.begin() + count));
  }
};

}  // namespace

void bind_drafts(nb::module_& m) {
  nb::class_<HeldMatcher>(m, "Matcher", "speculation/matches.py says what it does.")
      .def(nb::init<const std::vector<int>&, Array<double>, Array<double>, Array<int32_t>, Array<int32_t>>(), "prompt"_a,
           "rates"_a, "weights"_a, "hits"_a, "trials"_a)
      .def("follow", &HeldMatcher::follow, "tokens"_a, "order"_a, "hashes"_a, "seen"_a)
      .def("propose", &HeldMatcher::propose, "limit"_a)
      .def("set_terms", &HeldMatcher::set_terms, "ratios"_a, "sequences"_a, "margin"_a, "bubble"_a, "least"_a,
           "least_pipelined"_a)
      .def("observe", [](HeldMatcher& held, const std::vector<int>& tokens) { held.it.observe(tokens); }, "tokens"_a)
      .def("advance", &HeldMatcher::advance, "tokens"_a, "limit"_a, "pipelined"_a)
      .def("shadow", [](HeldMatcher& held, const std::vector<int>& tokens) { return held.it.shadow(tokens); },
           "tokens"_a);
}

}  // namespace edgeinfer
