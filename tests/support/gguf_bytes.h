/* SPDX-License-Identifier: MIT */
/* Writes the metadata of a model file, entry by entry. */
#ifndef QUIRE_TESTS_GGUF_BYTES_H
#define QUIRE_TESTS_GGUF_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct gguf_bytes {
    uint8_t data[16384];
    size_t n;
    uint64_t n_entries;
} gguf_bytes;

static inline void gguf_number(gguf_bytes *b, uint64_t value, uint32_t n_bytes)
{
    for (uint32_t i = 0; i < n_bytes; i++) b->data[b->n++] = (uint8_t)(value >> 8 * i);
}

static inline void gguf_text(gguf_bytes *b, const char *text)
{
    size_t n = strlen(text);
    gguf_number(b, n, 8);
    memcpy(b->data + b->n, text, n);
    b->n += n;
}

static inline void gguf_begin(gguf_bytes *b)
{
    b->n = b->n_entries = 0;
    gguf_number(b, 0x46554747, 4);
    gguf_number(b, 3, 4);
    gguf_number(b, 0, 8);
    gguf_number(b, 0, 8); /* entries, counted at the end */
}

static inline void gguf_key(gguf_bytes *b, const char *key, uint32_t type)
{
    gguf_text(b, key);
    gguf_number(b, type, 4);
    b->n_entries++;
}

static inline void gguf_string(gguf_bytes *b, const char *key, const char *value)
{
    gguf_key(b, key, 8);
    gguf_text(b, value);
}

static inline void gguf_u32(gguf_bytes *b, const char *key, uint32_t value)
{
    gguf_key(b, key, 4);
    gguf_number(b, value, 4);
}

static inline void gguf_f32(gguf_bytes *b, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    gguf_key(b, key, 6);
    gguf_number(b, bits, 4);
}

/* type 5: i32, 7: flags */
static inline void gguf_array(gguf_bytes *b, const char *key, uint32_t type, const uint32_t *values,
                              uint32_t n)
{
    gguf_key(b, key, 9);
    gguf_number(b, type, 4);
    gguf_number(b, n, 8);
    for (uint32_t i = 0; i < n; i++) gguf_number(b, values[i], type == 7 ? 1 : 4);
}

static inline void gguf_strings(gguf_bytes *b, const char *key, uint32_t n)
{
    gguf_key(b, key, 9);
    gguf_number(b, 8, 4);
    gguf_number(b, n, 8);
    for (uint32_t i = 0; i < n; i++) gguf_text(b, "token");
}

static inline void gguf_end(gguf_bytes *b)
{
    for (uint32_t i = 0; i < 8; i++) b->data[16 + i] = (uint8_t)(b->n_entries >> 8 * i);
}

#endif
