/* SPDX-License-Identifier: MIT */
/* cases: see cases.h. The build defines CASES_TABLE, the name of the table. */
#include "cases.h"

#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#define TARGET_F "avx512f"
#define TARGET_BW "avx512f,avx512bw"
#define TARGET_DQ "avx512f,avx512dq"
#define TARGET_VBMI "avx512f,avx512bw,avx512vbmi"
#define TARGET_VNNI "avx512f,avx512vnni"
#define TARGET_AVXVNNI "avx2,avxvnni"
#define TARGET_AMX "avx512f,amx-tile,amx-int8"

/* Operand i, of 64 bytes, as floats, integers, parts of a register, a mask, numbers. */
#define F(i) _mm512_loadu_ps(in + 64 * (i))
#define I(i) _mm512_loadu_si512(in + 64 * (i))
#define Y(i) _mm256_loadu_si256((const __m256i_u *)(in + 64 * (i)))
#define X(i) _mm_loadu_si128((const __m128i_u *)(in + 64 * (i)))
#define MASK (__mmask16)(in[192] | in[193] << 8)
#define MASK64 (__mmask64) word64(in + 192)
#define N(i) number(in + 4 * (i))
#define W(i) word(in + 4 * (i))

#define PUT_F(x) _mm512_storeu_ps(out, x)
#define PUT_I(x) _mm512_storeu_si512(out, x)
#define PUT_Y(x) _mm256_storeu_si256((__m256i_u *)out, x)
#define PUT_X(x) _mm_storeu_si128((__m128i_u *)out, x)
#define PUT_MASK(x) put_word(out, (uint32_t)(x))
#define PUT_MASK64(x) put_word64(out, x)
#define PUT_N(x) put_number(out, x)

static inline float number(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline int32_t word(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t word64(const uint8_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void put_word(uint8_t *p, uint32_t x)
{
    memcpy(p, &x, sizeof x);
}

static inline void put_word64(uint8_t *p, uint64_t x)
{
    memcpy(p, &x, sizeof x);
}

static inline void put_number(uint8_t *p, float x)
{
    memcpy(p, &x, sizeof x);
}

/* Eight registers of 16 rows with 64 bytes each, and others with fewer. */
static const _Alignas(64) uint8_t whole_tiles[64] = {
    [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
    [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
/* Sums of 5 x 7, from 5 x 3 quads and 3 x 7 quads. */
static const _Alignas(64) uint8_t part_tiles[64] = {
    [0] = 1, [16] = 28, [18] = 12, [20] = 28, [48] = 5, [49] = 5, [50] = 3};

#define TILES(config, ...)             \
    do {                               \
        _tile_loadconfig(config);      \
        _tile_loadd(0, in, 64);        \
        _tile_loadd(1, in + 1024, 64); \
        _tile_loadd(2, in + 2048, 64); \
        __VA_ARGS__;                   \
        _tile_stored(0, out, 64);      \
        _tile_release();               \
    } while (0)

/* CASE(name, what it needs, whether any NaN will do, what is done) */
#define CASES(CASE)                                                                                        \
    CASE(add_ps, F, true, PUT_F(_mm512_add_ps(F(0), F(1))))                                                \
    CASE(sub_ps, F, true, PUT_F(_mm512_sub_ps(F(0), F(1))))                                                \
    CASE(mul_ps, F, true, PUT_F(_mm512_mul_ps(F(0), F(1))))                                                \
    CASE(div_ps, F, true, PUT_F(_mm512_div_ps(F(0), F(1))))                                                \
    CASE(min_ps, F, false, PUT_F(_mm512_min_ps(F(0), F(1))))                                               \
    CASE(max_ps, F, false, PUT_F(_mm512_max_ps(F(0), F(1))))                                               \
    CASE(fmadd_ps, F, true, PUT_F(_mm512_fmadd_ps(F(0), F(1), F(2))))                                      \
    CASE(fnmadd_ps, F, true, PUT_F(_mm512_fnmadd_ps(F(0), F(1), F(2))))                                    \
    CASE(abs_ps, F, false, PUT_F(_mm512_abs_ps(F(0))))                                                     \
    CASE(unpacklo_ps, F, false, PUT_F(_mm512_unpacklo_ps(F(0), F(1))))                                     \
    CASE(unpackhi_ps, F, false, PUT_F(_mm512_unpackhi_ps(F(0), F(1))))                                     \
    CASE(unpacklo_epi32, F, false, PUT_I(_mm512_unpacklo_epi32(I(0), I(1))))                               \
    CASE(unpackhi_epi32, F, false, PUT_I(_mm512_unpackhi_epi32(I(0), I(1))))                               \
    CASE(unpacklo_epi64, F, false, PUT_I(_mm512_unpacklo_epi64(I(0), I(1))))                               \
    CASE(unpackhi_epi64, F, false, PUT_I(_mm512_unpackhi_epi64(I(0), I(1))))                               \
    CASE(castsi512_ps, F, false, PUT_F(_mm512_castsi512_ps(I(0))))                                         \
    CASE(castps_si512, F, false, PUT_I(_mm512_castps_si512(F(0))))                                         \
    CASE(cvtepi32_ps, F, false, PUT_F(_mm512_cvtepi32_ps(I(0))))                                           \
    CASE(cvtps_epi32, F, false, PUT_I(_mm512_cvtps_epi32(F(0))))                                           \
    CASE(cvttps_epi32, F, false, PUT_I(_mm512_cvttps_epi32(F(0))))                                         \
    CASE(cvtph_ps, F, false, PUT_F(_mm512_cvtph_ps(Y(0))))                                                 \
    CASE(cvtps_ph, F, false, PUT_Y(_mm512_cvtps_ph(F(0), _MM_FROUND_TO_NEAREST_INT)))                      \
    CASE(set1_ps, F, false, PUT_F(_mm512_set1_ps(N(3))))                                                   \
    CASE(setr4_ps, F, false, PUT_F(_mm512_setr4_ps(N(3), N(2), N(1), N(0))))                               \
    CASE(setr_ps, F, false,                                                                                \
         PUT_F(_mm512_setr_ps(N(1), N(2), N(3), N(4), N(5), N(6), N(7), N(8), N(9), N(10), N(11), N(12),   \
                              N(13), N(14), N(15), N(0))))                                                 \
    CASE(setzero_ps, F, false, PUT_F(_mm512_setzero_ps()))                                                 \
    CASE(loadu_ps, F, false, PUT_F(_mm512_loadu_ps(in + 5)))                                               \
    CASE(storeu_ps, F, false, _mm512_storeu_ps(out + 7, F(0)))                                             \
    CASE(extractf32x8_ps, DQ, false, _mm256_storeu_ps((float *)out, _mm512_extractf32x8_ps(F(0), 1)))      \
    CASE(castps512_ps256, F, false, _mm256_storeu_ps((float *)out, _mm512_castps512_ps256(F(0))))          \
    CASE(castps512_ps128, F, false, _mm_storeu_ps((float *)out, _mm512_castps512_ps128(F(0))))             \
    CASE(cvtss_f32, F, false, PUT_N(_mm512_cvtss_f32(F(0))))                                               \
    CASE(permute_ps_4e, F, false, PUT_F(_mm512_permute_ps(F(0), 0x4e)))                                    \
    CASE(permute_ps_b1, F, false, PUT_F(_mm512_permute_ps(F(0), 0xb1)))                                    \
    CASE(permute_ps_27, F, false, PUT_F(_mm512_permute_ps(F(0), 0x27)))                                    \
    CASE(shuffle_ps_44, F, false, PUT_F(_mm512_shuffle_ps(F(0), F(1), 0x44)))                              \
    CASE(shuffle_ps_ee, F, false, PUT_F(_mm512_shuffle_ps(F(0), F(1), 0xee)))                              \
    CASE(shuffle_ps_72, F, false, PUT_F(_mm512_shuffle_ps(F(0), F(1), 0x72)))                              \
    CASE(shuffle_f32x4_44, F, false, PUT_F(_mm512_shuffle_f32x4(F(0), F(1), 0x44)))                        \
    CASE(shuffle_f32x4_ee, F, false, PUT_F(_mm512_shuffle_f32x4(F(0), F(1), 0xee)))                        \
    CASE(shuffle_f32x4_88, F, false, PUT_F(_mm512_shuffle_f32x4(F(0), F(1), 0x88)))                        \
    CASE(shuffle_f32x4_dd, F, false, PUT_F(_mm512_shuffle_f32x4(F(0), F(1), 0xdd)))                        \
    CASE(shuffle_f32x4_4e, F, false, PUT_F(_mm512_shuffle_f32x4(F(0), F(1), 0x4e)))                        \
    CASE(shuffle_f32x4_b1, F, false, PUT_F(_mm512_shuffle_f32x4(F(0), F(1), 0xb1)))                        \
    CASE(shuffle_f32x4_63, F, false, PUT_F(_mm512_shuffle_f32x4(F(0), F(1), 0x63)))                        \
    CASE(shuffle_i64x2_44, F, false, PUT_I(_mm512_shuffle_i64x2(I(0), I(1), 0x44)))                        \
    CASE(shuffle_i64x2_ee, F, false, PUT_I(_mm512_shuffle_i64x2(I(0), I(1), 0xee)))                        \
    CASE(shuffle_i64x2_88, F, false, PUT_I(_mm512_shuffle_i64x2(I(0), I(1), 0x88)))                        \
    CASE(shuffle_i64x2_dd, F, false, PUT_I(_mm512_shuffle_i64x2(I(0), I(1), 0xdd)))                        \
    CASE(add_epi8, BW, false, PUT_I(_mm512_add_epi8(I(0), I(1))))                                          \
    CASE(add_epi16, BW, false, PUT_I(_mm512_add_epi16(I(0), I(1))))                                        \
    CASE(add_epi32, F, false, PUT_I(_mm512_add_epi32(I(0), I(1))))                                         \
    CASE(sub_epi32, F, false, PUT_I(_mm512_sub_epi32(I(0), I(1))))                                         \
    CASE(and_si512, F, false, PUT_I(_mm512_and_si512(I(0), I(1))))                                         \
    CASE(xor_si512, F, false, PUT_I(_mm512_xor_si512(I(0), I(1))))                                         \
    CASE(max_epu16, BW, false, PUT_I(_mm512_max_epu16(I(0), I(1))))                                        \
    CASE(max_epi32, F, false, PUT_I(_mm512_max_epi32(I(0), I(1))))                                         \
    CASE(madd_epi16, BW, false, PUT_I(_mm512_madd_epi16(I(0), I(1))))                                      \
    CASE(packs_epi32, BW, false, PUT_I(_mm512_packs_epi32(I(0), I(1))))                                    \
    CASE(shuffle_epi8, BW, false, PUT_I(_mm512_shuffle_epi8(I(0), I(1))))                                  \
    CASE(abs_epi16, BW, false, PUT_I(_mm512_abs_epi16(I(0))))                                              \
    CASE(packs_epi16, BW, false, PUT_I(_mm512_packs_epi16(I(0), I(1))))                                    \
    CASE(packus_epi16, BW, false, PUT_I(_mm512_packus_epi16(I(0), I(1))))                                  \
    CASE(mask_shuffle_epi8, BW, false, PUT_I(_mm512_mask_shuffle_epi8(I(0), MASK64, I(1), I(2))))          \
    CASE(mask_mov_epi8, BW, false, PUT_I(_mm512_mask_mov_epi8(I(0), MASK64, I(1))))                        \
    CASE(test_epi8_mask, BW, false, PUT_MASK64(_mm512_test_epi8_mask(I(0), I(1))))                         \
    CASE(permutex2var_epi16, BW, false, PUT_I(_mm512_permutex2var_epi16(I(0), I(1), I(2))))                \
    CASE(cvtepi8_epi16, BW, false, PUT_I(_mm512_cvtepi8_epi16(Y(0))))                                      \
    CASE(cvtepi16_epi32, F, false, PUT_I(_mm512_cvtepi16_epi32(Y(0))))                                     \
    CASE(permutexvar_epi32, F, false, PUT_I(_mm512_permutexvar_epi32(I(0), I(1))))                         \
    CASE(castsi512_si256, F, false, PUT_Y(_mm512_castsi512_si256(I(0))))                                   \
    CASE(castsi256_si512, F, false, PUT_Y(_mm512_castsi512_si256(_mm512_castsi256_si512(Y(0)))))           \
    CASE(extracti64x4_epi64, F, false, PUT_Y(_mm512_extracti64x4_epi64(I(0), 1)))                          \
    CASE(setr_epi32, F, false,                                                                             \
         PUT_I(_mm512_setr_epi32(W(0), W(1), W(2), W(3), W(4), W(5), W(6), W(7), W(8), W(9), W(10), W(11), \
                                 W(12), W(13), W(14), W(15))))                                             \
    CASE(srai_epi16, BW, false, PUT_I(_mm512_srai_epi16(I(0), 3)))                                         \
    CASE(slli_epi16, BW, false, PUT_I(_mm512_slli_epi16(I(0), 3)))                                         \
    CASE(srli_epi16, BW, false, PUT_I(_mm512_srli_epi16(I(0), 3)))                                         \
    CASE(slli_epi32, F, false, PUT_I(_mm512_slli_epi32(I(0), 16)))                                         \
    CASE(srli_epi32, F, false, PUT_I(_mm512_srli_epi32(I(0), 16)))                                         \
    CASE(sll_epi32, F, false, PUT_I(_mm512_sll_epi32(I(0), _mm_cvtsi32_si128(W(16) & 63))))                \
    CASE(srl_epi32, F, false, PUT_I(_mm512_srl_epi32(I(0), _mm_cvtsi32_si128(W(16) & 63))))                \
    CASE(set1_epi8, F, false, PUT_I(_mm512_set1_epi8((char)W(0))))                                         \
    CASE(set1_epi16, F, false, PUT_I(_mm512_set1_epi16((short)W(0))))                                      \
    CASE(set1_epi32, F, false, PUT_I(_mm512_set1_epi32(W(0))))                                             \
    CASE(set1_epi64, F, false, PUT_I(_mm512_set1_epi64((long long)word64(in))))                            \
    CASE(setr4_epi32, F, false, PUT_I(_mm512_setr4_epi32(W(3), W(2), W(1), W(0))))                         \
    CASE(setzero_si512, F, false, PUT_I(_mm512_setzero_si512()))                                           \
    CASE(broadcast_i32x4, F, false, PUT_I(_mm512_broadcast_i32x4(X(0))))                                   \
    CASE(broadcast_i64x4, F, false, PUT_I(_mm512_broadcast_i64x4(Y(0))))                                   \
    CASE(loadu_si512, F, false, PUT_I(_mm512_loadu_si512(in + 3)))                                         \
    CASE(storeu_si512, F, false, _mm512_storeu_si512(out + 9, I(0)))                                       \
    CASE(load_si512, F, false, PUT_I(_mm512_load_si512(in + 64)))                                          \
    CASE(store_si512, F, false, _mm512_store_si512(out + 64, I(0)))                                        \
    CASE(castsi512_si128, F, false, PUT_X(_mm512_castsi512_si128(I(0))))                                   \
    CASE(cvtepu8_epi32, F, false, PUT_I(_mm512_cvtepu8_epi32(X(0))))                                       \
    CASE(cvtepu16_epi32, F, false, PUT_I(_mm512_cvtepu16_epi32(Y(0))))                                     \
    CASE(cvtepi32_epi8, F, false, PUT_X(_mm512_cvtepi32_epi8(I(0))))                                       \
    CASE(cvtepi32_epi16, F, false, PUT_Y(_mm512_cvtepi32_epi16(I(0))))                                     \
    CASE(ternarylogic_epi32_ca, F, false, PUT_I(_mm512_ternarylogic_epi32(I(0), I(1), I(2), 0xca)))        \
    CASE(ternarylogic_epi32_1d, F, false, PUT_I(_mm512_ternarylogic_epi32(I(0), I(1), I(2), 0x1d)))        \
    CASE(mask_mov_ps, F, false, PUT_F(_mm512_mask_mov_ps(F(0), MASK, F(1))))                               \
    CASE(maskz_mov_ps, F, false, PUT_F(_mm512_maskz_mov_ps(MASK, F(1))))                                   \
    CASE(maskz_mul_ps, F, true, PUT_F(_mm512_maskz_mul_ps(MASK, F(0), F(1))))                              \
    CASE(mask_xor_ps, DQ, false, PUT_F(_mm512_mask_xor_ps(F(0), MASK, F(1), F(2))))                        \
    CASE(mask_xor_epi32, F, false, PUT_I(_mm512_mask_xor_epi32(I(0), MASK, I(1), I(2))))                   \
    CASE(mask_add_epi32, F, false, PUT_I(_mm512_mask_add_epi32(I(0), MASK, I(1), I(2))))                   \
    CASE(maskz_loadu_epi8, BW, false, PUT_I(_mm512_maskz_loadu_epi8(MASK64, in + 1)))                      \
    CASE(cmp_ps_mask_le, F, false, PUT_MASK(_mm512_cmp_ps_mask(F(0), F(1), _CMP_LE_OQ)))                   \
    CASE(cmp_ps_mask_gt, F, false, PUT_MASK(_mm512_cmp_ps_mask(F(0), F(1), _CMP_GT_OQ)))                   \
    CASE(cmp_ps_mask_nan, F, false, PUT_MASK(_mm512_cmp_ps_mask(F(0), F(1), _CMP_UNORD_Q)))                \
    CASE(cmpgt_epi32_mask, F, false, PUT_MASK(_mm512_cmpgt_epi32_mask(I(0), I(1))))                        \
    CASE(cmpge_epu16_mask, BW, false, PUT_MASK(_mm512_cmpge_epu16_mask(I(0), I(1))))                       \
    CASE(kortestc, F, false, PUT_MASK(_mm512_kortestc(MASK, (__mmask16)W(0)) != 0))                        \
    CASE(kortestc_all, F, false, PUT_MASK(_mm512_kortestc(MASK, (__mmask16)~MASK) != 0))                   \
    CASE(permutexvar_ps, F, false, PUT_F(_mm512_permutexvar_ps(I(0), F(1))))                               \
    CASE(permutex2var_ps, F, false, PUT_F(_mm512_permutex2var_ps(F(0), I(1), F(2))))                       \
    CASE(permutexvar_epi8, VBMI, false, PUT_I(_mm512_permutexvar_epi8(I(0), I(1))))                        \
    CASE(reduce_add_epi32, F, false, PUT_MASK(_mm512_reduce_add_epi32(I(0))))                              \
    CASE(reduce_max_ps, F, false, PUT_N(_mm512_reduce_max_ps(F(0))))                                       \
    CASE(reduce_ps, DQ, false, PUT_F(_mm512_reduce_ps(F(0), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)))   \
    CASE(scalef_ps, F, false, PUT_F(_mm512_scalef_ps(F(0), F(1))))                                         \
    CASE(range_ps, DQ, false, PUT_F(_mm512_range_ps(F(0), F(1), 0xa)))                                     \
    CASE(rcp14_ps, F, false, PUT_F(_mm512_rcp14_ps(F(0))))                                                 \
    CASE(dpbusd_epi32, VNNI, false, PUT_I(_mm512_dpbusd_epi32(I(0), I(1), I(2))))                          \
    CASE(dpbusd_avx_epi32, AVXVNNI, false, PUT_Y(_mm256_dpbusd_avx_epi32(Y(0), Y(1), Y(2))))               \
    CASE(tile_zero, AMX, false, TILES(whole_tiles, _tile_zero(0)))                                         \
    CASE(tile_loadd, AMX, false, TILES(whole_tiles, _tile_loadd(0, in + 5, 100)))                          \
    CASE(tile_loadd_part, AMX, false, TILES(part_tiles, _tile_loadd(0, in + 5, 100)))                      \
    CASE(tile_stored_apart, AMX, false, TILES(part_tiles, _tile_stored(0, out + 512, 36)))                 \
    CASE(tile_dpbssd, AMX, false, TILES(whole_tiles, _tile_dpbssd(0, 1, 2)))                               \
    CASE(tile_dpbsud, AMX, false, TILES(whole_tiles, _tile_dpbsud(0, 1, 2)))                               \
    CASE(tile_dpbssd_part, AMX, false, TILES(part_tiles, _tile_dpbssd(0, 1, 2)))                           \
    CASE(tile_dpbsud_part, AMX, false, TILES(part_tiles, _tile_dpbsud(0, 1, 2)))                           \
    CASE(tile_storeconfig, AMX, false, TILES(part_tiles, _tile_storeconfig(out + 512)))

#define CASE_FUNCTION(name, needs, any_nan, ...)                                                    \
    __attribute__((target(TARGET_##needs))) static void run_##name(const uint8_t *in, uint8_t *out) \
    {                                                                                               \
        (void)in;                                                                                   \
        __VA_ARGS__;                                                                                \
    }
CASES(CASE_FUNCTION)

#define CASE_ENTRY(name, needs, any_nan, ...) {#name, NEEDS_##needs, any_nan, run_##name},
const emulate_case CASES_TABLE[EMULATE_MOST_CASES] = {CASES(CASE_ENTRY)};
