#include "matcher.h"

#include <algorithm>

namespace edgeinfer {

namespace {

constexpr int VOTERS = 10, LONG = 8, LONGEST = 64, BORDER = -1;
constexpr int RECENT_PAIRS = 16, RECENT_SINGLES = 6, ENOUGH = 3, RECENT_STORED = 12;
constexpr double FLOOR = 0.06;
constexpr int EDGES[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64};
constexpr uint64_t FACTOR = 0x2545F4914F6CDD1D;

uint64_t pair_of(int first, int second) { return uint64_t(uint32_t(first)) << 32 | uint32_t(second); }

int cell_of(bool is_store, int length, int voters, int votes) {
  const int band = int(std::upper_bound(std::begin(EDGES), std::end(EDGES), std::min(length, LONGEST)) - EDGES) - 1;
  const int agreement = voters == 1 ? 0 : votes == voters ? 1 : 2 * votes > voters ? 2 : 3;
  return SURVIVAL_CELLS / 2 * is_store + 4 * band + agreement;
}

}  // namespace

void TextIndex::add(int token) {
  const int place = int(tokens_.size());
  single_before_.push_back(0);
  pair_before_.push_back(0);
  if (place > 0) {
    int& newest = single_[tokens_.back()];
    single_before_[size_t(place)] = newest;
    newest = place;
  }
  if (place > 1) {
    int& newest = pair_[pair_of(tokens_[size_t(place) - 2], tokens_.back())];
    pair_before_[size_t(place)] = newest;
    newest = place;
  }
  tokens_.push_back(token);
}

void TextIndex::look_up(std::vector<Match>& found) const {
  const size_t size = tokens_.size();
  if (size > 1)
    if (const auto newest = pair_.find(pair_of(tokens_[size - 2], tokens_[size - 1])); newest != pair_.end())
      for (int place = newest->second; place && found.size() < RECENT_PAIRS; place = pair_before_[size_t(place)])
        found.push_back({place, 2});
  if (size == 0 || found.size() >= ENOUGH) return;
  const size_t most = found.size() + RECENT_SINGLES;
  if (const auto newest = single_.find(tokens_[size - 1]); newest != single_.end())
    for (int place = newest->second; place && found.size() < most; place = single_before_[size_t(place)])
      found.push_back({place, 1});
}

Matcher::Matcher(const std::vector<int>& prompt, const SurvivalTable& survival) : survival_(survival) {
  for (int token : prompt) text_.add(token);
  followers_.push_back({false, {}, {}});
  look_up(followers_[0]);
}

void Matcher::follow(const StoreView& store) {
  store_ = store;
  followers_.push_back({true, {}, {}});
  look_up(followers_.back());
}

const Guess& Matcher::propose(int limit) {
  const Guess* best = &none_;
  double most = 0;
  for (Follower& follower : followers_) {
    guess(follower, std::min(limit, MOST_DRAFTED));
    double expected = 0;
    for (double chance : follower.guess.survival) expected += chance;
    if (expected > most) {
      most = expected;
      best = &follower.guess;
    }
  }
  return *best;
}

Hope Matcher::advance(const std::vector<int>& tokens, int limit, bool pipelined) {
  observe(tokens);
  return hope(propose(limit), pipelined);
}

int Matcher::shadow(const std::vector<int>& tokens) {
  int right = 0;
  for (int token : tokens) {
    const Guess& guess = propose(1);
    right = !guess.tokens.empty() && guess.tokens[0] == token ? right + 1 : 0;
    observe({token});
  }
  return right;
}

Hope Matcher::hope(const Guess& guess, bool pipelined) const {
  if (guess.tokens.empty()) return Hope::none;
  const double* survival = guess.survival.data() + pipelined;
  const int count = int(guess.survival.size()) - pipelined;
  if (count < 1 || survival[0] < (pipelined ? terms_.least_pipelined : terms_.least)) return Hope::faint;
  if (terms_.sequences > 1) return Hope::real;
  int best_count;
  return saving(survival, count, best_count) > (pipelined ? terms_.bubble : 0) ? Hope::real : Hope::faint;
}

int Matcher::worthwhile(const Guess& guess) const {
  const int count = int(guess.survival.size());
  if (terms_.ratios == nullptr || terms_.sequences > 1 || count < 2) return count;
  int whole, rest;  // the latter where the first token is being computed already
  saving(guess.survival.data(), count, whole);
  saving(guess.survival.data() + 1, count - 1, rest);
  return std::max({1, whole, rest ? rest + 1 : 0});
}

// Plain steps that the best of all lengths saves; controller.admit for one sequence.
double Matcher::saving(const double* survival, int count, int& best_count) const {
  double expected = 1, best = (1 + terms_.margin) / terms_.ratios[1], saved = 0;
  best_count = 0;
  for (int rows = 2; rows <= std::min(count + 1, MOST_DRAFTED); rows++) {
    expected += survival[rows - 2];
    if (expected > best * terms_.ratios[rows]) {
      best = expected / terms_.ratios[rows];
      best_count = rows - 1;
      saved = expected - terms_.ratios[rows] / terms_.ratios[1];
    }
  }
  return saved;
}

void Matcher::observe(const std::vector<int>& tokens) {
  for (Follower& follower : followers_) {
    learn(follower.guess, tokens);
    follower.guess.clear();
  }
  for (int token : tokens) {
    text_.add(token);
    for (Follower& follower : followers_) advance(follower, token);
  }
}

void Matcher::learn(const Guess& guess, const std::vector<int>& tokens) {
  for (size_t place = 0; place < std::min(tokens.size(), guess.tokens.size()); place++) {
    const int cell = guess.cells[place];
    const bool hit = tokens[place] == guess.tokens[place];
    survival_.weights[cell] += 1;
    survival_.rates[cell] += (hit - survival_.rates[cell]) / survival_.weights[cell];
    survival_.hits[cell] += hit;
    survival_.trials[cell] += 1;
    if (!hit) return;
  }
}

const int* Matcher::corpus(const Follower& follower, size_t& count) const {
  count = follower.is_store ? store_.count : text_.tokens().size();
  return follower.is_store ? store_.tokens : text_.tokens().data();
}

void Matcher::advance(Follower& follower, int token) {
  size_t count;
  const int* tokens = corpus(follower, count);
  int longest = 0;
  size_t kept = 0;
  for (const Match match : follower.matches)
    if (size_t(match.place) < count && tokens[match.place] == token) {
      follower.matches[kept++] = {match.place + 1, match.length + 1};
      longest = std::max(longest, match.length + 1);
    }
  follower.matches.resize(kept);
  if (longest < LONG) look_up(follower);
}

void Matcher::look_up(Follower& follower) {
  found_.clear();
  if (follower.is_store)
    look_up_store();
  else
    text_.look_up(found_);
  size_t count;
  const int* tokens = corpus(follower, count);
  const std::vector<int>& text = text_.tokens();
  for (Match match : found_) {
    const auto known = [&](const Match& each) { return each.place == match.place; };
    if (std::any_of(follower.matches.begin(), follower.matches.end(), known)) continue;
    const int most = std::min({match.place, int(text.size()), LONGEST});
    while (match.length < most && tokens[match.place - 1 - match.length] == text[text.size() - 1 - size_t(match.length)])
      match.length++;
    follower.matches.push_back(match);
  }
}

void Matcher::look_up_store() {
  const std::vector<int>& text = text_.tokens();
  if (text.size() < 3) return;
  const int* tail = text.data() + text.size() - 3;
  const uint64_t hash = (uint64_t(int64_t(tail[0])) * FACTOR + uint64_t(int64_t(tail[1]))) * FACTOR + uint64_t(int64_t(tail[2]));
  if (!store_.seen[hash / (UINT64_MAX / STORE_FILTER + 1)]) return;
  const auto [start, stop] = std::equal_range(store_.hashes, store_.hashes + store_.places, hash);
  for (const uint64_t* each = stop; each > start && stop - each < RECENT_STORED;) {
    const int place = store_.order[--each - store_.hashes];
    if (std::equal(tail, tail + 3, store_.tokens + place)) found_.push_back({place + 3, 3});
  }
}

Matcher::Voter Matcher::voter(const Follower& follower, int place, int limit) const {
  size_t count;
  const int* tokens = corpus(follower, count);
  const int* text = tokens + place;
  const int left = int(std::min(count - size_t(place), size_t(limit)));
  if (follower.is_store) {
    const int ends = int(std::find(text, text + left, BORDER) - text);
    return {text, ends, ends};
  }
  return {text, limit, left};  // a copy that reaches the text's end goes on with what it has copied
}

void Matcher::guess(Follower& follower, int limit) {
  Guess& out = follower.guess;
  out.clear();
  int longest = 0;
  for (const Match& match : follower.matches) longest = std::max(longest, match.length);
  if (!longest || limit < 1) return;
  voters_.clear();
  for (const Match& match : follower.matches)
    if (2 * match.length >= longest) voters_.push_back(match);
  std::sort(voters_.begin(), voters_.end(), [](const Match& a, const Match& b) {
    return a.length != b.length ? a.length > b.length : a.place > b.place;
  });
  texts_.clear();
  for (size_t rank = 0; rank < std::min(voters_.size(), size_t(VOTERS)); rank++)
    if (const Voter each = voter(follower, voters_[rank].place, limit); each.count > 0) texts_.push_back(each);

  double chance = 1;
  for (int ahead = 0; ahead < limit && !texts_.empty(); ahead++) {
    const auto head = [&](const Voter& each) { return each.text[ahead % each.period]; };
    const auto votes_for = [&](int token) {
      return int(std::count_if(texts_.begin(), texts_.end(), [&](const Voter& each) { return head(each) == token; }));
    };
    int token = head(texts_[0]), votes = votes_for(token);
    for (size_t rank = 1; rank < texts_.size() && votes < int(texts_.size()); rank++)
      if (const int more = votes_for(head(texts_[rank])); more > votes) {
        votes = more;
        token = head(texts_[rank]);
      }
    const int cell = cell_of(follower.is_store, longest + ahead, int(texts_.size()), votes);
    chance *= survival_.rates[cell];
    if (ahead && chance < FLOOR) break;
    out.tokens.push_back(token);
    out.cells.push_back(cell);
    out.survival.push_back(chance);
    std::erase_if(texts_, [&](const Voter& each) { return head(each) != token || each.count <= ahead + 1; });
  }
}

}  // namespace edgeinfer
