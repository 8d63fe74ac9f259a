/* SPDX-License-Identifier: MIT */
/* cpu: what the machine can do, found out once, and what of it may be used. */
#if defined(__linux__)
#define _GNU_SOURCE /* syscall() */
#endif
#include "core/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>

static const char *const names[QUIRE_N_ISAS] = {"c",       "neon",       "neon-dotprod", "neon-i8mm", "avx2",
                                                "avxvnni", "avx512vnni", "avx512vbmi",   "amx"};

#if defined(QUIRE_X86)

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Registers that the system saves: bit 1 SSE, 2 AVX, 5-7 AVX-512, 17-18 tiles. */
#define SAVES_AVX 0x6u
#define SAVES_AVX512 0xe6u
#define SAVES_TILES 0x60000u

static uint32_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Linux gives tiles only to a process that asks. Asking again does no harm. */
static bool may_use_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

static bool has(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

static uint32_t find_isas(void)
{
    uint32_t found = 1u << QUIRE_ISA_C;
    uint32_t a, b, c, d, b7, c7, d7, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    if (!has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C | bit_MOVBE)) return found;
    uint32_t saved = saved_registers();
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return found;
    if (a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    enum { AVX_VNNI = 1u << 4, AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25 };
    if (!has(saved, SAVES_AVX) || !has(b7, bit_AVX2 | bit_BMI2)) return found;
    found |= 1u << QUIRE_ISA_AVX2;
#if defined(QUIRE_EMULATE) /* a library for tests (tests/emulate): what the machine lacks is made of AVX2 */
    return found | 1u << QUIRE_ISA_AVXVNNI | 1u << QUIRE_ISA_AVX512VNNI | 1u << QUIRE_ISA_AVX512VBMI |
           1u << QUIRE_ISA_AMX;
#endif
    if (has(a71, AVX_VNNI)) found |= 1u << QUIRE_ISA_AVXVNNI;
    if (!has(saved, SAVES_AVX512) || !has(b7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) ||
        !has(c7, bit_AVX512VNNI))
        return found;
    found |= 1u << QUIRE_ISA_AVX512VNNI;
    if (!has(c7, bit_AVX512VBMI)) return found;
    found |= 1u << QUIRE_ISA_AVX512VBMI;
    if (has(saved, SAVES_TILES) && has(d7, AMX_TILE | AMX_INT8 | AMX_BF16) && may_use_tiles())
        found |= 1u << QUIRE_ISA_AMX;
    return found;
}

#elif defined(QUIRE_ARM)

/* NEON belongs to the architecture; the other two are asked for, each where the one before is. */
static uint32_t arm_isas(bool has_dot_product, bool has_matrices)
{
    uint32_t found = 1u << QUIRE_ISA_C | 1u << QUIRE_ISA_NEON;
    if (has_dot_product) found |= 1u << QUIRE_ISA_DOTPROD;
    if (has_dot_product && has_matrices) found |= 1u << QUIRE_ISA_I8MM;
    return found;
}

#if defined(__linux__)

#include <sys/auxv.h>

static uint32_t find_isas(void)
{
    enum { DOT_PRODUCT = 1u << 20, MATRICES = 1u << 13 }; /* HWCAP_ASIMDDP, HWCAP2_I8MM */
    return arm_isas(getauxval(AT_HWCAP) & DOT_PRODUCT, getauxval(AT_HWCAP2) & MATRICES);
}

#elif defined(__APPLE__)

#include <sys/sysctl.h>

static bool has_feature(const char *name)
{
    int32_t value = 0;
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 && value;
}

static uint32_t find_isas(void)
{
    /* macOS 11 has no name for the dot product. Apple's processors got it together with FHM (A13, M1), which has one. */
    return arm_isas(has_feature("hw.optional.arm.FEAT_DotProd") || has_feature("hw.optional.armv8_2_fhm"),
                    has_feature("hw.optional.arm.FEAT_I8MM"));
}

#else

static uint32_t find_isas(void)
{
    return arm_isas(false, false);
}

#endif

#else

static uint32_t find_isas(void)
{
    return 1u << QUIRE_ISA_C;
}

#endif

static uint32_t isas_found(void)
{
    static atomic_uint cache; /* 0: not looked yet; several threads may look, and see the same */
    uint32_t found = atomic_load_explicit(&cache, memory_order_relaxed);
    if (!found) {
        found = find_isas();
        atomic_store_explicit(&cache, found, memory_order_relaxed);
    }
    return found;
}

static quire_isa best_up_to(uint32_t most)
{
    while (!(isas_found() >> most & 1)) most--;
    return (quire_isa)most;
}

static bool isa_of(const char *name, uint32_t *out)
{
    if (strcmp(name, "avx512") == 0) name = names[QUIRE_ISA_AVX512VBMI]; /* its name before 0.2.0 */
    for (uint32_t i = 0; i < QUIRE_N_ISAS; i++) {
        if (strcmp(names[i], name) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

static atomic_uint in_use; /* isa + 1; 0: not chosen yet */

static atomic_uint best_wanted = QUIRE_N_ISAS - 1; /* of the environment, if the program asked for it */

static quire_isa choose(void)
{
    return best_up_to(atomic_load_explicit(&best_wanted, memory_order_relaxed));
}

quire_isa quire_isa_now(void)
{
    uint32_t now = atomic_load_explicit(&in_use, memory_order_relaxed);
    if (now) return (quire_isa)(now - 1);
    quire_isa chosen = choose();
    atomic_store_explicit(&in_use, chosen + 1u, memory_order_relaxed);
    return chosen;
}

const char *quire_isa_in_use(void)
{
    return names[quire_isa_now()];
}

const char *quire_isa_at(uint32_t index)
{
    for (uint32_t i = 0; i < QUIRE_N_ISAS; i++)
        if (isas_found() >> i & 1 && index-- == 0) return names[i];
    return NULL;
}

quire_status quire_isa_use(const char *name)
{
    uint32_t isa;
    if (!name)
        isa = choose();
    else if (!isa_of(name, &isa))
        return QUIRE_EINVAL;
    if (!(isas_found() >> isa & 1)) return QUIRE_EUNSUPPORTED;
    atomic_store_explicit(&in_use, isa + 1u, memory_order_relaxed);
    return QUIRE_OK;
}

quire_status quire_isa_use_environment(void)
{
    uint32_t most;
    const char *name = getenv("QUIRE_ISA");
    if (!name || !*name) return QUIRE_OK;
    if (!isa_of(name, &most)) return QUIRE_EINVAL;
    atomic_store_explicit(&best_wanted, most, memory_order_relaxed);
    return quire_isa_use(NULL);
}
