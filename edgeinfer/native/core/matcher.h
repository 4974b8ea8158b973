// Where the end of a growing text occurred before: the drafts of speculation/matches.py, to the bit, and its names. That
// file says what the steps are for; this one only takes less time from the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace edgeinfer {

constexpr int MOST_DRAFTED = 64;
constexpr int SURVIVAL_CELLS = 88;
constexpr size_t STORE_FILTER = 1 << 20;  // bytes, one for each value of a hash's leading bits

// Rates and counts of speculation/survival.py by cell, SURVIVAL_CELLS of each. They belong to the caller.
struct SurvivalTable {
  double* rates;
  double* weights;
  int* hits;
  int* trials;
};

// Earlier outputs as speculation/store.py keeps them: `places` of them sorted by the hash of the three tokens there, and
// which hashes occur by their leading bits. They belong to the caller.
struct StoreView {
  const int* tokens;
  size_t count;
  const int* order;
  const uint64_t* hashes;
  size_t places;
  const uint8_t* seen;
};

// speculation/costs.py's, with MOST_DRAFTED + 1 ratios.
struct StepTerms {
  const double* ratios;
  int sequences;
  double margin, bubble, least, least_pipelined;
};

enum class Hope { none, faint, real };  // no guess; one that does not pay; one that may

struct Match {
  int place, length;
};

struct Guess {
  std::vector<int> tokens, cells;
  std::vector<double> survival;

  void clear() {  // and keep the memory
    tokens.clear();
    cells.clear();
    survival.clear();
  }
};

// The text, and where each of its tokens and pairs of tokens stood.
class TextIndex {
 public:
  void add(int token);
  const std::vector<int>& tokens() const { return tokens_; }
  // Matches of the text's end with the length that is known, the newest first within a length.
  void look_up(std::vector<Match>& found) const;

 private:
  std::vector<int> tokens_;
  std::unordered_map<int, int> single_;          // token -> the newest place after it
  std::unordered_map<uint64_t, int> pair_;       // two tokens -> likewise
  std::vector<int> single_before_, pair_before_;  // by place: the next older place after the same; 0 for none
};

class Matcher {
 public:
  Matcher(const std::vector<int>& prompt, const SurvivalTable& survival);
  // Drafts from a store as well. Called before anything is observed.
  void follow(const StoreView& store);
  // The guess that is expected to give most, of at most `limit` tokens; empty where there is none.
  const Guess& propose(int limit);
  // How many of its tokens are worth proposing: where a step has one sequence, as far as the best of all lengths.
  int worthwhile(const Guess& guess) const;
  // From now on.
  void set_terms(const StepTerms& terms) { terms_ = terms; }
  void observe(const std::vector<int>& tokens);
  // Observes, and says whether the next guess may pay. `pipelined`: its first token is being computed already. Exact
  // where a step has one sequence; of several, whether any draft pays whose first token is so likely.
  Hope advance(const std::vector<int>& tokens, int limit, bool pipelined);
  // Observes one token after the other, and guesses each; how many of the last ones were guessed.
  int shadow(const std::vector<int>& tokens);

 private:
  struct Follower {
    bool is_store;
    std::vector<Match> matches;
    Guess guess;
  };
  struct Voter {
    const int* text;
    int count, period;  // tokens that follow; from where on they repeat themselves
  };

  const int* corpus(const Follower& follower, size_t& count) const;
  void look_up(Follower& follower);
  void look_up_store();
  Hope hope(const Guess& guess, bool pipelined) const;
  double saving(const double* survival, int count, int& best_count) const;
  void advance(Follower& follower, int token);
  void guess(Follower& follower, int limit);
  Voter voter(const Follower& follower, int place, int limit) const;
  void learn(const Guess& guess, const std::vector<int>& tokens);

  TextIndex text_;
  SurvivalTable survival_;
  StoreView store_{};
  StepTerms terms_{nullptr, 1, 0, 0, 2, 2};  // by which nothing pays
  std::vector<Follower> followers_;
  std::vector<Match> found_, voters_;  // kept for their memory
  std::vector<Voter> texts_;
  Guess none_;
};

}  // namespace edgeinfer
