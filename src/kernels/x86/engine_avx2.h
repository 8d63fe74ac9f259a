/* SPDX-License-Identifier: MIT */
/*
 * engine: products with AVX2. Products of bytes would saturate (vpmaddubsw: 2 * 255 * 127 > 32767), so z stays one
 * number of 16 bits and codes are widened to 16 bits. Of each quad of codes c0 c1 c2 c3 the even ones (c0, c2) are the
 * bytes as they lie without the odd ones, the odd ones (c1, c3) a shift; z is stored in the same two pairs. So four
 * codes make two multiplications that end in the same lane, and nothing is ever added across lanes.
 */
#ifndef QUIRE_KERNELS_X86_ENGINE_AVX2_H
#define QUIRE_KERNELS_X86_ENGINE_AVX2_H

#include "simd/avx2.h"

/* ------------------------------------------------------------ expanded tile */

typedef struct codes {
    __m256i even, odd;
} codes;

SIMD_FN codes widen(__m256i x)
{
    return (codes){_mm256_and_si256(x, _mm256_set1_epi16(255)), _mm256_srli_epi16(x, 8)};
}

/* [half][even, odd][32] */
#define VECTOR_BYTES 128u

SIMD_FN void put_half(uint8_t *to, size_t u, uint32_t half, __m256i x)
{
    codes c = widen(x);
    store256(to + u * VECTOR_BYTES + half * 64, c.even);
    store256(to + u * VECTOR_BYTES + half * 64 + 32, c.odd);
}

SIMD_FN void put_quarter(uint8_t *to, size_t u, uint32_t quarter, __m128i x)
{
    to += u * VECTOR_BYTES + quarter / 2 * 64 + quarter % 2 * 16;
    _mm_storeu_si128((__m128i *)to, _mm_and_si128(x, _mm_set1_epi16(255)));
    _mm_storeu_si128((__m128i *)(to + 32), _mm_srli_epi16(x, 8));
}

#include "kernels/x86/unpack_avx2.h"

/* ------------------------------------------------------------------- query_bytes */

/* 16 numbers of 16 bits in two registers: within each half of the result first the even pairs of two quads, then their
 * odd pairs. */
SIMD_FN __m256i pairs_of(__m256i z0, __m256i z1)
{
    const __m256i pick =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    return _mm256_shuffle_epi8(_mm256_packs_epi32(z0, z1), pick);
}

SIMD_FN void split_z(__m256i z0, __m256i z1, __m256i z2, __m256i z3, int8_t *even_to, int8_t *odd_to)
{
    __m256i a = pairs_of(z0, z1), b = pairs_of(z2, z3);
    store256(even_to, quads_in_order(_mm256_unpacklo_epi64(a, b)));
    store256(odd_to, quads_in_order(_mm256_unpackhi_epi64(a, b)));
}

/* 64 whole numbers of up to 16 bits: the even pairs of all quads in one row, the odd ones in the other. */
SIMD_FN void vi_store_z(const vi z[4], int8_t *even_to, int8_t *odd_to)
{
    split_z(z[0].a, z[0].b, z[1].a, z[1].b, even_to, odd_to);
    split_z(z[2].a, z[2].b, z[3].a, z[3].b, even_to + 32, odd_to + 32);
}

/* 64 whole numbers of 8 bits, in the order in which widening makes two such rows of them. */
SIMD_FN void vi_store_bytes(const vi z[4], int8_t *to)
{
    int8_t even[64], odd[64];
    vi_store_z(z, even, odd);
    __m256i e = _mm256_packs_epi16(load256(even), load256(even + 32)),
            o = _mm256_packs_epi16(load256(odd), load256(odd + 32));
    store256(to, _mm256_permute4x64_epi64(e, 0xd8));
    store256(to + 32, _mm256_permute4x64_epi64(o, 0xd8));
}

#include "kernels/multiply_queries.h"

/* Widens the r of channels [from, to) into two rows for each query. */
SIMD_FN void locate_r(query_bytes *p, const quire_queries *q, uint32_t first, uint32_t n, uint32_t from,
                      uint32_t to, void *memory)
{
    uint32_t begin = from / 64 * 64, stride = (to - begin + 63) / 64 * 64;
    int8_t *rows = (int8_t *)memory;
    for (uint32_t i = 0; i < n; i++) {
        const int8_t *r = q->r + (first + i) * (size_t)q->z_stride + begin;
        for (uint32_t c = 0; c < stride; c += 64) {
            for (uint32_t j = 0; j < 4; j++) {
                __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(r + c + j * 16)));
                store256(rows + (2 * i + j / 2) * stride + c + j % 2 * 32, x);
            }
        }
    }
    p->r = rows + (from - begin);
    p->r_stride = 2 * (size_t)stride;
}

/* ----------------------------------------------------------------- products */

typedef struct row_sums {
    __m256i z, r;
} row_sums;

/* Where two codes or four make up a byte, they are taken out as words at once. */
SIMD_FN codes codes_packed(const uint8_t *p, const uint32_t i, const uint32_t half, const uint32_t bits,
                           const bool table, const lookup *t)
{
    if (table || (bits != 2 && bits != 4)) return widen(unpack1(p, i, half, bits, table, t));
    const __m256i keep = _mm256_set1_epi16((int16_t)((1 << bits) - 1));
    const uint32_t from = i * bits % 8;
    __m256i x = load256(p + i * bits / 8 * 64 + half * 32);
    __m256i odd = _mm256_srli_epi16(x, (int)(from + 8));
    return (codes){_mm256_and_si256(move_bits(x, from, 0), keep),
                   from + bits == 8 ? odd : _mm256_and_si256(odd, keep)};
}

SIMD_FN codes codes_expanded(const uint8_t *p, size_t u, const uint32_t half)
{
    p += u * VECTOR_BYTES + half * 64;
    return (codes){load256(p), load256(p + 32)};
}

SIMD_FN row_sums no_sums(void)
{
    return (row_sums){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

/* The sums of two pairs, from the rows of even and of odd ones. */
SIMD_FN __m256i multiply_pairs(codes x, const int8_t *even, const int8_t *odd)
{
    int32_t e, o;
    memcpy(&e, even, sizeof e);
    memcpy(&o, odd, sizeof o);
    return _mm256_add_epi32(_mm256_madd_epi16(x.even, _mm256_set1_epi32(e)),
                            _mm256_madd_epi16(x.odd, _mm256_set1_epi32(o)));
}

/* The compiler would add up all products of a loop's body before it touches the sum, with most of them in memory. */
SIMD_FN __m256i add_now(__m256i sum, __m256i x)
{
    sum = _mm256_add_epi32(sum, x);
    __asm__("" : "+x"(sum));
    return sum;
}

SIMD_FN void add_codes(row_sums *a, codes x[][2], const uint32_t h, const uint32_t group,
                       const query_bytes *q, uint32_t row, size_t at, const bool with_r)
{
    (void)group;
    const int8_t *z = q->z + 2 * row * q->stride + at, *r = q->r + row * q->r_stride + at;
    a->z = add_now(a->z, multiply_pairs(x[0][h], z, z + q->stride));
    if (with_r) a->r = add_now(a->r, multiply_pairs(x[0][h], r, r + q->r_stride / 2));
}

SIMD_FN __m256i sum_of_z(row_sums a)
{
    return a.z;
}

SIMD_FN __m256i sum_of_r(row_sums a)
{
    return a.r;
}

/* Eight registers of sums, four of codes, and four for query bytes and products. */
SIMD_FN uint32_t halves_at_once(const uint32_t rows, const bool with_r)
{
    return with_r && rows > 2 ? 1 : 2;
}

SIMD_FN uint32_t vectors_at_once(const uint32_t rows, const bool with_r)
{
    (void)rows;
    (void)with_r;
    return 1;
}

#define MULTIPLY_NAME(name) quire_multiply_##name##_avx2
#include "kernels/x86/products_avx2.h"

#endif
