// Which instruction sets there are on this machine.
#include "kernels.h"

#include <atomic>
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace edgeinfer {

extern const Kernels kernels_generic;

#if defined(__x86_64__)
extern const Kernels kernels_avx512;
extern const Kernels kernels_avxvnni;
extern const Kernels kernels_avx2;

// AVX-VNNI has a name in __builtin_cpu_supports only since GCC 14: leaf 7, subleaf 1, EAX bit 4.
[[maybe_unused]] static bool has_avxvnni() {
  unsigned eax = 7, ebx, ecx = 1, edx;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return eax >> 4 & 1;
}

static const Kernels** fill(const Kernels** next) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  [[maybe_unused]] const bool avx512 = avx2 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#ifdef HAS_avx512
  if (avx512) *next++ = &kernels_avx512;
#endif
#ifdef HAS_avxvnni
  if (avx2 && has_avxvnni()) *next++ = &kernels_avxvnni;
#endif
#ifdef HAS_avx2
  if (avx2) *next++ = &kernels_avx2;
#endif
  return next;
}
#elif defined(__aarch64__) && defined(__linux__)
extern const Kernels kernels_dotprod;

static const Kernels** fill(const Kernels** next) {
  constexpr unsigned long has_dotprod = 1ul << 20;  // HWCAP_ASIMDDP
  if (getauxval(AT_HWCAP) & has_dotprod) *next++ = &kernels_dotprod;
  return next;
}
#else
static const Kernels** fill(const Kernels** next) { return next; }
#endif

const Kernels* const* available_kernels() {
  static const Kernels* list[5] = {};
  static const bool filled = (*fill(list) = &kernels_generic, true);
  (void)filled;
  return list;
}

static std::atomic<const Kernels*> chosen{nullptr};

const Kernels& kernels() {
  const Kernels* now = chosen.load(std::memory_order_acquire);
  return now ? *now : *available_kernels()[0];
}

bool use_kernels(const char* name) {
  for (const Kernels* const* each = available_kernels(); *each; each++)
    if (!std::strcmp((*each)->name, name)) {
      chosen.store(*each, std::memory_order_release);
      return true;
    }
  return false;
}

}  // namespace edgeinfer
