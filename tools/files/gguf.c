/* SPDX-License-Identifier: MIT */
/*
 * GGUF: magic, u32 version, u64 number of tensors, u64 number of entries; an entry is a string (u64 length, bytes), a u32
 * type and a value; an array is u32 type, u64 count, values. Then for each tensor its name, u32 number of dimensions, u64
 * dimensions, u32 type, u64 offset; then, aligned, the weights. All little-endian, nothing else aligned.
 */
#include "files/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STRING = 8, TYPE_ARRAY = 9, TYPE_F64 = 12, N_TYPES = 13 };

/* Bytes of a value; 0: it tells its own length. */
static const uint8_t type_bytes[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct cursor {
    const uint8_t *at, *end;
} cursor;

typedef struct text {
    const uint8_t *bytes;
    uint64_t n;
} text;

/* ------------------------------------------------------------------- pieces */

static bool take(cursor *c, uint64_t n, const uint8_t **bytes)
{
    if (n > (uint64_t)(c->end - c->at)) return false;
    *bytes = c->at;
    c->at += n;
    return true;
}

static uint64_t little(const uint8_t *bytes, uint32_t n)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < n; i++) value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static bool take_number(cursor *c, uint32_t n, uint64_t *value)
{
    const uint8_t *bytes;
    if (!take(c, n, &bytes)) return false;
    *value = little(bytes, n);
    return true;
}

static bool take_text(cursor *c, text *t)
{
    return take_number(c, 8, &t->n) && take(c, t->n, &t->bytes);
}

static bool skip_values(cursor *c, uint64_t type, uint64_t count)
{
    const uint8_t *bytes;
    text t;
    if (type_bytes[type]) return count <= UINT64_MAX / 8 && take(c, count * type_bytes[type], &bytes);
    for (; count; count--) /* each takes eight bytes at least, so the end comes */
        if (!take_text(c, &t)) return false;
    return true;
}

/* ------------------------------------------------------------------ entries */

typedef struct entry {
    text key;
    uint64_t type;  /* of the value, or of the values of an array */
    uint64_t count; /* 1 for what is no array */
    bool is_array;
    cursor values;
} entry;

/* Arrays of arrays do not exist in models. */
static bool take_entry(cursor *c, entry *e)
{
    e->count = 1;
    if (!take_text(c, &e->key) || !take_number(c, 4, &e->type)) return false;
    e->is_array = e->type == TYPE_ARRAY;
    if (e->is_array && (!take_number(c, 4, &e->type) || !take_number(c, 8, &e->count))) return false;
    if (e->type >= N_TYPES || e->type == TYPE_ARRAY) return false;
    e->values.at = c->at;
    if (!skip_values(c, e->type, e->count)) return false;
    e->values.end = c->at;
    return true;
}

/* ---------------------------------------------------------------------- keys */

/* A string without what terminals act on. */
static void copy_text(char *to, size_t size, const text *t)
{
    size_t n = t->n < size - 1 ? (size_t)t->n : size - 1;
    for (size_t i = 0; i < n; i++)
        to[i] = t->bytes[i] < 0x20 || t->bytes[i] == 0x7f ? '?' : (char)t->bytes[i];
    to[n] = 0;
}

static bool key_is(const entry *e, const char *prefix, const char *name)
{
    size_t n = strlen(prefix), m = strlen(name);
    return e->key.n == n + m && !memcmp(e->key.bytes, prefix, n) && !memcmp(e->key.bytes + n, name, m);
}

/* Whole numbers and flags only. */
static bool next_value(entry *e, uint32_t *out)
{
    static const bool is_signed[N_TYPES] = {[1] = true, [3] = true, [5] = true, [11] = true};
    uint64_t value = 0;
    uint32_t bytes = type_bytes[e->type];
    if (e->type == TYPE_F32 || e->type == TYPE_F64 || !bytes || !take_number(&e->values, bytes, &value))
        return false;
    if (is_signed[e->type] && value >> (8 * bytes - 1)) return false;
    if (value > INT32_MAX) return false;
    *out = e->type == TYPE_BOOL ? value != 0 : (uint32_t)value;
    return true;
}

static bool read_list(gguf_list *list, entry *e)
{
    if (e->count > GGUF_MAX_LAYERS) return false;
    for (list->n = 0; list->n < e->count; list->n++)
        if (!next_value(e, &list->value[list->n])) return false;
    return true;
}

/* A number that some files give once for every layer: all of them must be equal. */
static bool read_number(uint32_t *out, entry *e)
{
    uint32_t first = 0, value;
    if (!e->count || !next_value(e, &first)) return false;
    for (uint64_t i = 1; i < e->count; i++)
        if (!next_value(e, &value) || value != first) return false;
    *out = first;
    return true;
}

/* The factor by which RoPE is stretched; what is not a number above 0 is left out. */
static void read_factor(double *out, entry *e)
{
    uint64_t bits;
    float narrow;
    double wide = 0;
    uint32_t whole;
    if (e->is_array) return;
    if (e->type == TYPE_F32 && take_number(&e->values, 4, &bits)) {
        memcpy(&narrow, &(uint32_t){(uint32_t)bits}, sizeof narrow);
        wide = narrow;
    } else if (e->type == TYPE_F64 && take_number(&e->values, 8, &bits)) {
        memcpy(&wide, &bits, sizeof wide);
    } else if (next_value(e, &whole)) {
        wide = whole;
    }
    if (isfinite(wide) && wide > 0) *out = wide;
}

static void read_rope(gguf_facts *f, const char *prefix, entry *e)
{
    text t;
    if (key_is(e, prefix, "rope.scaling.type") && e->type == TYPE_STRING && !e->is_array &&
        take_text(&e->values, &t))
        copy_text(f->rope_scaling_type, sizeof f->rope_scaling_type, &t);
    if (key_is(e, prefix, "rope.scaling.factor")) read_factor(&f->rope_scaling_factor, e);
    /* The older name. */
    if (key_is(e, prefix, "rope.scale_linear") && f->rope_scaling_factor <= 0)
        read_factor(&f->rope_scaling_factor, e);
    if (key_is(e, prefix, "rope.scaling.original_context_length") && !e->is_array)
        next_value(e, &f->rope_scaling_original);
}

#define NUMBERS(X)                                            \
    X("block_count", block_count)                             \
    X("context_length", context_length)                       \
    X("embedding_length", embedding_length)                   \
    X("nextn_predict_layers", nextn_predict_layers)           \
    X("full_attention_interval", full_attention_interval)     \
    X("leading_dense_block_count", leading_dense_block_count) \
    X("num_loops", num_loops)                                 \
    X("attention.key_length", key_length)                     \
    X("attention.value_length", value_length)                 \
    X("attention.key_length_swa", key_length_swa)             \
    X("attention.value_length_swa", value_length_swa)         \
    X("attention.key_length_mla", key_length_mla)             \
    X("attention.value_length_mla", value_length_mla)         \
    X("attention.sliding_window", sliding_window)             \
    X("attention.shared_kv_layers", shared_kv_layers)         \
    X("attention.indexer.key_length", indexer_key_length)     \
    X("attention.indexer.top_k", indexer_top_k)
#define LISTS(X)                                          \
    X("feed_forward_length", feed_forward_length)         \
    X("attention.head_count", head_count)                 \
    X("attention.head_count_kv", head_count_kv)           \
    X("attention.sliding_window_pattern", window_pattern) \
    X("attention.recurrent_layers", recurrent_layers)     \
    X("attention.indexer.types", indexer_types)           \
    X("attention.compress_ratios", compress_ratios)

/* Returns the name of a key whose value is not what it should be, or NULL. */
static const char *read_fact(gguf_facts *f, const char *prefix, entry *e)
{
#define X(text_, member) \
    if (key_is(e, prefix, text_)) return read_number(&f->member, e) ? NULL : text_;
    NUMBERS(X)
#undef X
#define X(text_, member) \
    if (key_is(e, prefix, text_)) return read_list(&f->member, e) ? NULL : text_;
    LISTS(X)
#undef X
    read_rope(f, prefix, e);
    return NULL;
}

/* ---------------------------------------------------------------------- read */

static bool refuse(char *message, size_t size, const char *what, const char *more)
{
    snprintf(message, size, "%s%s", what, more);
    return false;
}

static bool read_head(uint32_t *version, cursor *c, uint64_t *n_tensors, uint64_t *n_entries)
{
    const uint8_t *magic;
    uint64_t number;
    if (!take(c, 4, &magic) || memcmp(magic, "GGUF", 4) || !take_number(c, 4, &number)) return false;
    *version = (uint32_t)number;
    return take_number(c, 8, n_tensors) && take_number(c, 8, n_entries);
}

/* The architecture, which begins the keys of the rest, usually comes first, but need not. */
static bool read_names(gguf_facts *f, cursor c, uint64_t n_entries)
{
    entry e;
    text t;
    for (; n_entries; n_entries--) {
        if (!take_entry(&c, &e)) return false;
        if (e.type != TYPE_STRING || e.is_array || !take_text(&e.values, &t)) continue;
        if (key_is(&e, "general.", "architecture")) copy_text(f->arch, sizeof f->arch, &t);
        if (key_is(&e, "general.", "name")) copy_text(f->name, sizeof f->name, &t);
    }
    return true;
}

bool gguf_read(gguf_facts *out, const uint8_t *bytes, size_t n, char *message, size_t size)
{
    cursor c = {bytes, bytes + n};
    uint64_t n_entries, n_tensors;
    char prefix[sizeof out->arch + 1];
    entry e;
    *out = (gguf_facts){.version = 0};
    if (!read_head(&out->version, &c, &n_tensors, &n_entries))
        return refuse(message, size, "the file is not a GGUF file", "");
    if (out->version != 2 && out->version != 3)
        return refuse(message, size, "the file has an unknown GGUF version",
                      " (versions 2 and 3 are supported)");
    if (!read_names(out, c, n_entries))
        return refuse(message, size, "the metadata is damaged or truncated", "");
    if (!out->arch[0]) return refuse(message, size, "the metadata does not name the architecture", "");
    snprintf(prefix, sizeof prefix, "%s.", out->arch);
    for (; n_entries; n_entries--) {
        if (!take_entry(&c, &e)) return refuse(message, size, "the metadata is damaged or truncated", "");
        const char *wrong = read_fact(out, prefix, &e);
        if (wrong) return refuse(message, size, "the metadata has no usable value for ", wrong);
    }
    return true;
}

/* ------------------------------------------------------------------- weights */

enum { MAX_DIMENSIONS = 4, DEFAULT_ALIGNMENT = 32 };

typedef struct tensor {
    text name;
    uint64_t ne[MAX_DIMENSIONS], offset;
} tensor;

static bool take_tensor(cursor *c, tensor *t)
{
    uint64_t n, type;
    *t = (tensor){.offset = 0};
    if (!take_text(c, &t->name) || !take_number(c, 4, &n) || n > MAX_DIMENSIONS) return false;
    for (uint64_t i = 0; i < n; i++)
        if (!take_number(c, 8, &t->ne[i])) return false;
    return take_number(c, 4, &type) && take_number(c, 8, &t->offset);
}

static bool begins(const text *t, const char *prefix)
{
    size_t n = strlen(prefix);
    return t->n >= n && !memcmp(t->bytes, prefix, n);
}

/* The number in "blk.N."; GGUF_MAX_LAYERS: there is none. */
static uint32_t layer_of(const text *name)
{
    uint32_t layer = 0;
    uint64_t i = 4;
    if (!begins(name, "blk.")) return GGUF_MAX_LAYERS;
    for (; i < name->n && name->bytes[i] >= '0' && name->bytes[i] <= '9' && layer < GGUF_MAX_LAYERS; i++)
        layer = 10 * layer + (name->bytes[i] - '0');
    return i > 4 && i < name->n && name->bytes[i] == '.' && layer < GGUF_MAX_LAYERS ? layer : GGUF_MAX_LAYERS;
}

static void add_tensor(gguf_weights *w, const tensor *t, uint64_t bytes)
{
    uint32_t layer = layer_of(&t->name);
    if (layer < GGUF_MAX_LAYERS) w->layer[layer] += (double)bytes;
    if (begins(&t->name, "output.") || begins(&t->name, "output_norm")) w->output += (double)bytes;
    if (begins(&t->name, "output.weight")) w->has_output = true;
    if (begins(&t->name, "rope_factors_long")) w->has_long_factors = true;
    if (begins(&t->name, "token_embd.weight")) {
        w->embedding += (double)bytes;
        w->n_tokens = t->ne[1] < UINT32_MAX ? (uint32_t)t->ne[1] : 0;
    }
}

/* The sizes are the distances of the offsets, so that types need not be known. */
bool gguf_add_weights(gguf_weights *out, const uint8_t *bytes, size_t n, uint64_t file_bytes)
{
    cursor c = {bytes, bytes + n};
    uint64_t n_entries, n_tensors;
    uint32_t version, alignment = DEFAULT_ALIGNMENT;
    entry e;
    tensor t, last = {.offset = 0};
    if (!read_head(&version, &c, &n_tensors, &n_entries)) return false;
    for (; n_entries; n_entries--) {
        if (!take_entry(&c, &e)) return false;
        if (key_is(&e, "general.", "alignment") && (!next_value(&e, &alignment) || !alignment)) return false;
    }
    for (uint64_t i = 0; i < n_tensors; i++, last = t) {
        if (!take_tensor(&c, &t) || t.offset > file_bytes || (i && t.offset < last.offset)) return false;
        if (i) add_tensor(out, &last, t.offset - last.offset);
    }
    uint64_t data = ((uint64_t)(c.at - bytes) + alignment - 1) / alignment * alignment;
    if (!n_tensors) return true; /* the first part may have only metadata */
    if (data > file_bytes || last.offset > file_bytes - data) return false;
    add_tensor(out, &last, file_bytes - data - last.offset);
    return true;
}
