/* Included before every C++ source of libllama, by scripts/setup.
 *
 * GCC's _tile_loadconfig says that it reads 8 of the 64 bytes that it reads. So -O2 and more drop
 * what ggml writes to the others, and the first product of matrices on a processor with AMX
 * (Sapphire Rapids and newer) ends the process with SIGSEGV.
 */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))
#endif
