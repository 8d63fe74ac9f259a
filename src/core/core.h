/* SPDX-License-Identifier: MIT */
/* core: memory, hashing, half floats. Knows nothing of codecs. */
#ifndef QUIRE_CORE_CORE_H
#define QUIRE_CORE_CORE_H

#include "quire/quire.h"

#include "core/sized.h"

#include <stdbool.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0)
#error "bytes must be equal on every machine: build without -ffast-math and with single precision arithmetic"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tiles hold little-endian values in place: a little-endian machine is needed"
#endif

/* ------------------------------------------------------------------ memory */

/* The caller's allocator, or ours if it is NULL, with every slot filled. */
quire_status quire_allocator_read(quire_allocator *out, const quire_allocator *allocator);
/* The caller's executor; NULL or without run: one thread. */
quire_status quire_executor_read(quire_executor *out, const quire_executor *executor);

/* 64-byte aligned, zeroed. NULL if bytes overflowed (see quire_bytes) or memory is out. */
void *quire_alloc(const quire_allocator *a, size_t bytes);
/* The same with undefined bytes, for who writes all of them: clearing large blocks costs more than anything done in them. */
void *quire_alloc_raw(const quire_allocator *a, size_t bytes);
void quire_free(const quire_allocator *a, void *ptr, size_t bytes);

/* n * size, or SIZE_MAX if that overflows; quire_alloc(SIZE_MAX) fails. */
static inline size_t quire_bytes(size_t n, size_t size)
{
    return size && n > SIZE_MAX / size ? SIZE_MAX : n * size;
}

/*
 * Make room for `need` elements in an array of *cap elements, keeping the first `used`. Grows by half.
 * On failure nothing has changed. New elements are zero; after quire_grow_raw() they are undefined.
 */
bool quire_grow(const quire_allocator *a, void *array_ptr, uint32_t *cap, uint32_t used, uint32_t need,
                size_t size);
bool quire_grow_raw(const quire_allocator *a, void *array_ptr, uint32_t *cap, uint32_t used, uint32_t need,
                    size_t size);

/* ----------------------------------------------------------------- hashing */

/*
 * 64-bit hash of bytes for fingerprints and for finding damage. Not a defence
 * against someone who chooses the bytes. Same value on every machine, never 0.
 */
typedef struct quire_hash {
    uint64_t lane[4];
    uint64_t total;
    uint8_t buffer[32];
} quire_hash;

void quire_hash_begin(quire_hash *h);
void quire_hash_add(quire_hash *h, const void *bytes, size_t n);
void quire_hash_u64(quire_hash *h, uint64_t value);    /* eight bytes, little-endian */
void quire_hash_text(quire_hash *h, const char *text); /* length, then bytes */
uint64_t quire_hash_end(const quire_hash *h);

/* ----------------------------------------------------- little-endian bytes */

static inline uint16_t quire_load16(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t quire_load32(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t quire_load64(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return quire_load32(b) | (uint64_t)quire_load32(b + 4) << 32;
}

static inline void quire_store16(void *p, uint16_t v)
{
    uint8_t *b = (uint8_t *)p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}

static inline void quire_store32(void *p, uint32_t v)
{
    quire_store16(p, (uint16_t)v);
    quire_store16((uint8_t *)p + 2, (uint16_t)(v >> 16));
}

static inline void quire_store64(void *p, uint64_t v)
{
    quire_store32(p, (uint32_t)v);
    quire_store32((uint8_t *)p + 4, (uint32_t)(v >> 32));
}

/* -------------------------------------------------------------- half floats */

static inline uint32_t quire_bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float quire_float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

#define QUIRE_F16_MAX 65504.0f
#define QUIRE_BF16_MAX 3.38953139e38f

/* Exact. */
static inline float quire_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff);
    if (rest >= 0x7c00) return quire_float_of(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    if (rest >= 0x0400) return quire_float_of(sign | ((rest << 13) + 0x38000000u));
    float tiny = (float)rest * 0x1p-24f; /* subnormal: a whole number of 2^-24 */
    return quire_float_of(sign | quire_bits_of(tiny));
}

/* Nearest, ties to even; overflow gives infinity, NaN a quiet NaN. */
static inline uint16_t quire_f32_to_f16(float x)
{
    uint32_t u = quire_bits_of(x), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00);
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* from 65520 on */
    if (mag < 0x38800000u) {
        /* Below 2^-14: adding 1/2 puts the last kept bit, 2^-24, at the end of the significand, so that the
         * addition itself rounds to nearest even. */
        uint32_t shifted = quire_bits_of(quire_float_of(mag) + 0.5f);
        return (uint16_t)(sign | (shifted - 0x3f000000u));
    }
    uint32_t odd = mag >> 13 & 1;
    return (uint16_t)(sign | ((mag - 0x38000000u + 0xfff + odd) >> 13));
}

static inline bool quire_f16_is_finite(uint16_t h)
{
    return (h & 0x7c00) != 0x7c00;
}

static inline float quire_bf16_to_f32(uint16_t h)
{
    return quire_float_of((uint32_t)h << 16);
}

static inline uint16_t quire_f32_to_bf16(float x)
{
    uint32_t u = quire_bits_of(x);
    if ((u & 0x7fffffff) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* One value of a float form at element i. form is F32, F16 or BF16. */
static inline float quire_load_value(quire_form form, const void *data, size_t i)
{
    if (form == QUIRE_F32) {
        float x;
        memcpy(&x, (const uint8_t *)data + 4 * i, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, (const uint8_t *)data + 2 * i, 2);
    return form == QUIRE_F16 ? quire_f16_to_f32(h) : quire_bf16_to_f32(h);
}

static inline void quire_store_value(quire_form form, void *data, size_t i, float x)
{
    if (form == QUIRE_F32) {
        memcpy((uint8_t *)data + 4 * i, &x, 4);
        return;
    }
    uint16_t h = form == QUIRE_F16 ? quire_f32_to_f16(x) : quire_f32_to_bf16(x);
    memcpy((uint8_t *)data + 2 * i, &h, 2);
}

static inline bool quire_form_is_float(quire_form form)
{
    return form == QUIRE_F32 || form == QUIRE_F16 || form == QUIRE_BF16;
}

/* As quire_store_value(), but what the form cannot hold becomes its largest value. */
static inline void quire_store_finite(quire_form form, void *data, size_t i, float x)
{
    float limit = form == QUIRE_F16 ? QUIRE_F16_MAX : QUIRE_BF16_MAX;
    if (form != QUIRE_F32 && x > limit) x = limit;
    if (form != QUIRE_F32 && x < -limit) x = -limit;
    quire_store_value(form, data, i, x);
}

static inline size_t quire_value_bytes(quire_form form)
{
    return form == QUIRE_F32 ? 4 : 2;
}

#endif
