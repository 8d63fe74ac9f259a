/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llama/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Metadata is a few megabytes, of vocabulary; nobody has to walk through the weights of a damaged file. */
#define MAX_METADATA ((size_t)1 << 30)

/* llama.cpp makes cells in steps, and gives window layers a batch of them more than the window. */
enum { BATCH_CELLS = 512, CELL_STEP = 256 };
/* Up to so many cells the device knows window layers by their buffer alone (plugins/ggml/plan.c). */
enum { SHORT_CONTEXT = 4096 };

/* ------------------------------------------------------------------- windows */

static uint32_t value_at(const gguf_list *list, uint32_t layer)
{
    if (list->n == 1) return list->value[0];
    return layer < list->n ? list->value[layer] : 0;
}

static uint32_t window_of(const gguf_facts *f, const arch_rule *a, uint32_t layer, uint32_t n_layers)
{
    const gguf_list *pattern = &f->window_pattern;
    uint32_t window = f->sliding_window ? f->sliding_window : a->window;
    if (!window || (a->only_layers && n_layers != a->only_layers)) return 0;
    if (a->fixed_window) window = a->fixed_window;
    if (a->all_windows) return window;
    if (pattern->n > 1) return value_at(pattern, layer) ? window : 0;
    uint32_t period = pattern->n && a->period ? pattern->value[0] : a->period;
    if (!period) return 0;
    bool is_full = a->first_is_full ? layer % period == 0 : layer % period == period - 1;
    return is_full ? 0 : window;
}

/* -------------------------------------------------------------------- layers */

/* Layers that are recurrent, or that read the cache of another one, keep none. */
static bool keeps_rows(const gguf_facts *f, const arch_rule *a, uint32_t layer, uint32_t n_layers)
{
    uint32_t every = f->full_attention_interval ? f->full_attention_interval : a->interval;
    if (f->recurrent_layers.n > 1 ? value_at(&f->recurrent_layers, layer) != 0 : every && (layer + 1) % every)
        return false;
    if (a->ffn_keeps_none && value_at(&f->feed_forward_length, layer)) return false;
    if (a->n_own) return layer < a->n_own;
    return !f->shared_kv_layers || layer + f->shared_kv_layers < n_layers;
}

static uint32_t pick(uint32_t special, uint32_t usual, uint32_t otherwise)
{
    return special ? special : usual ? usual : otherwise;
}

static bool fill_layer(quire_layer *l, const gguf_facts *f, const arch_rule *a, uint32_t layer,
                       uint32_t n_layers)
{
    uint32_t n_heads = value_at(&f->head_count, layer);
    uint32_t n_kv = f->head_count_kv.n ? value_at(&f->head_count_kv, layer) : n_heads;
    if (!n_heads || !n_kv || !keeps_rows(f, a, layer, n_layers)) return false;
    uint32_t window = window_of(f, a, layer, n_layers), d = f->embedding_length / n_heads;
    *l = (quire_layer){.n_q_heads = n_heads,
                       .n_kv_heads = n_kv,
                       .d_k = pick(window ? f->key_length_swa : 0, f->key_length, d),
                       .d_v = pick(window ? f->value_length_swa : 0, f->value_length, d),
                       .v_in_k = a->k_only || (f->key_length_mla && f->value_length_mla),
                       .window = window};
    return l->d_k && l->d_v;
}

/* ---------------------------------------------------------- caches of indexers */

/* From this context on, GLM's files that list no indexers have one in the first layer, in the second, and in each fourth after it. */
enum { GLM_LONG_CONTEXT = 1048576 };

static bool has_index(const gguf_facts *f, const arch_rule *a, uint32_t layer)
{
    switch (a->index) {
    case INDEX_ALL: return true;
    case INDEX_LATER: return layer >= f->leading_dense_block_count;
    case INDEX_COMPRESSED: return value_at(&f->compress_ratios, layer) == 4;
    case INDEX_LISTED:
        if (f->indexer_types.n) return value_at(&f->indexer_types, layer) != 0;
        return f->context_length < GLM_LONG_CONTEXT || layer < 2 || layer % 4 == 2;
    default: return false;
    }
}

static void fill_extras(model *m, const gguf_facts *f, const arch_rule *a)
{
    model_extra *index = &m->extras[0], *fine = &m->extras[1], *coarse = &m->extras[2];
    *index = (model_extra){.row = f->indexer_key_length, .ratio = a->index == INDEX_COMPRESSED ? 4 : 1};
    *fine = (model_extra){.row = f->key_length, .ratio = 4};
    *coarse = (model_extra){.row = f->key_length, .ratio = 128};
    if (a->index == INDEX_LATER) index->row += m->layers[0].d_v;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        bool other = has_index(f, a, i) || (a->index == INDEX_COMPRESSED && value_at(&f->compress_ratios, i));
        m->is_plain[i] = m->kind == ARCH_PLAIN || (a->index_is_plain && other);
        if (!m->has_kv[i]) continue;
        index->n_layers += index->row && has_index(f, a, i);
        if (a->index != INDEX_COMPRESSED) continue;
        fine->n_layers += value_at(&f->compress_ratios, i) == 4;
        coarse->n_layers += value_at(&f->compress_ratios, i) == 128;
    }
}

/* A factor of 1 and the type "none" change nothing. Files may give a factor without a type, which is linear then. */
static void fill_rope(model *m, const gguf_facts *f)
{
    bool other = f->rope_scaling_original && f->rope_scaling_original != f->context_length;
    m->short_context = f->rope_scaling_original ? f->rope_scaling_original : f->context_length;
    if (!strcmp(f->rope_scaling_type, "none") || (f->rope_scaling_factor <= 1 && !other)) return;
    snprintf(m->rope_type, sizeof m->rope_type, "%s",
             f->rope_scaling_type[0] ? f->rope_scaling_type : "linear");
    m->rope_factor = f->rope_scaling_factor;
    m->rope_original = f->rope_scaling_original;
}

const char *model_rope_factors(const model *m, uint64_t context)
{
    if (m->weights.n_tokens && !m->weights.has_long_factors) return "";
    return context > m->short_context ? "factors=long" : "factors=short";
}

const char *model_rope_text(char *text, const model *m)
{
    int n = snprintf(text, MODEL_ROPE_SIZE, "%s", m->rope_type);
    if (m->rope_factor > 0)
        n += snprintf(text + n, MODEL_ROPE_SIZE - (size_t)n, ", factor %.4g", m->rope_factor);
    if (m->rope_original)
        snprintf(text + n, MODEL_ROPE_SIZE - (size_t)n, ", original context %u", m->rope_original);
    return text;
}

bool model_from_facts(model *m, const gguf_facts *f, char *message, size_t size)
{
    const arch_rule *a = arch_find(f->arch);
    quire_layer some = {0};
    *m = (model){.context = f->context_length, .n_blocks = f->block_count, .kind = a->kind, .note = a->note};
    fill_rope(m, f);
    memcpy(m->arch, f->arch, sizeof m->arch);
    memcpy(m->name, f->name, sizeof m->name);
    if (f->block_count > f->nextn_predict_layers) m->n_layers = f->block_count - f->nextn_predict_layers;
    uint32_t n_once =
        m->n_layers; /* llama.cpp may run all of them several times, each time with rows of their own */
    if (f->num_loops > 1 && n_once <= GGUF_MAX_LAYERS && f->num_loops <= GGUF_MAX_LAYERS)
        m->n_layers *= f->num_loops;
    if (!m->n_layers || m->n_layers > GGUF_MAX_LAYERS) {
        snprintf(message, size, "it has %u layers", m->n_layers);
        return false;
    }
    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((m->has_kv[i] = m->kind != ARCH_NONE && fill_layer(&m->layers[i], f, a, i % n_once, n_once))) {
            some = m->layers[i];
            m->n_kv_layers++;
            m->n_window_layers += some.window > 0;
        }
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (!m->has_kv[i]) m->layers[i] = some;
    fill_extras(m, f, a);
    if (!m->n_kv_layers)
        snprintf(message, size, "it is a model of the architecture %s without a KV cache%s%s", m->arch,
                 m->note ? ": " : "", m->note ? m->note : "");
    return m->n_kv_layers;
}

quire_geometry model_geometry(const model *m)
{
    return (quire_geometry){.size = sizeof(quire_geometry),
                            .n_layers = m->n_layers,
                            .layer_stride = sizeof(quire_layer),
                            .layers = m->layers};
}

/* ---------------------------------------------------------------------- file */

typedef struct mapping {
    uint8_t *bytes; /* NULL: none */
    size_t n;
    uint64_t file_bytes;
} mapping;

/* bytes NULL: `why` says why. */
static mapping map_metadata(const char *path, char *why, size_t size)
{
    struct stat s;
    mapping m = {.bytes = NULL};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
    bool is_file = fd >= 0 && !fstat(fd, &s) && S_ISREG(s.st_mode);
    snprintf(why, size, "%s", fd < 0 ? strerror(errno) : is_file ? "it cannot be read" : "it is not a file");
    if (is_file) m.file_bytes = (uint64_t)s.st_size;
    m.n = m.file_bytes < MAX_METADATA ? (size_t)m.file_bytes : MAX_METADATA;
    void *bytes = m.n ? mmap(NULL, m.n, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    if (fd >= 0) close(fd);
    if (bytes != MAP_FAILED) m.bytes = bytes;
    return m;
}

static bool add_weights(model *m, const mapping *part)
{
    m->file_bytes += part->file_bytes;
    return gguf_add_weights(&m->weights, part->bytes, part->n, part->file_bytes);
}

/* name-00001-of-00003.gguf: all three. false: not all weights are known. */
static bool add_parts(model *m, const char *path)
{
    unsigned part, n_parts;
    char other[4096], why[64];
    size_t n = strlen(path);
    bool all = true;
    if (n < 20 || n >= sizeof other || sscanf(path + n - 20, "-%5u-of-%5u.gguf", &part, &n_parts) != 2)
        return true;
    for (unsigned i = 1; i <= n_parts && i <= 9999; i++) {
        snprintf(other, sizeof other, "%.*s-%05u-of-%05u.gguf", (int)(n - 20), path, i, n_parts % 100000);
        if (i == part) continue;
        mapping more = map_metadata(other, why, sizeof why);
        all &= more.bytes && add_weights(m, &more);
        if (more.bytes) munmap(more.bytes, more.n);
    }
    return all;
}

bool model_open(model *m, const char *path, char *message, size_t size)
{
    char why[256];
    static gguf_facts facts; /* large; one file at a time */
    mapping file = map_metadata(path, why, sizeof why);
    bool right = file.bytes && gguf_read(&facts, file.bytes, file.n, why, sizeof why) &&
                 model_from_facts(m, &facts, why, sizeof why);
    if (!right) {
        snprintf(message, size, "%s: %s", path, why);
    } else {
        bool known = add_weights(m, &file);
        if (!add_parts(m, path) || !known) m->weights = (gguf_weights){.n_tokens = 0};
    }
    if (file.bytes) munmap(file.bytes, file.n);
    return right;
}

bool model_profile_path(char *path, size_t size, const char *model_path)
{
    size_t n = strlen(model_path);
    if (n > 5 && !strcmp(model_path + n - 5, ".gguf")) n -= 5;
    return snprintf(path, size, "%.*s.quire-profile", (int)n, model_path) < (int)size;
}

/* --------------------------------------------------------------------- plans */

quire_status model_plan_create(model_plan *out, const model *m, const char *policy,
                               const quire_profile *profile, char *why, size_t size)
{
    static quire_layer flat[GGUF_MAX_LAYERS]; /* large */
    model_plan p = {NULL, NULL, false};
    quire_geometry any = {.size = sizeof(quire_geometry),
                          .n_layers = 1,
                          .n_q_heads = 8,
                          .n_kv_heads = 8,
                          .d_k = 128,
                          .d_v = 128};
    quire_geometry geometry = m ? model_geometry(m) : any;
    quire_plan_options o = {
        .size = sizeof(quire_plan_options), .profile = profile, .message = why, .message_size = size};
    quire_status status = quire_plan_create(&p.plan, &geometry, policy, &o);
    if (!status && m && m->n_window_layers) {
        memcpy(flat, m->layers, sizeof flat);
        for (uint32_t i = 0; i < m->n_layers; i++) flat[i].window = 0;
        geometry.layer_stride = sizeof(quire_layer), geometry.layers = flat;
        status = quire_plan_create(&p.flat, &geometry, policy, &o);
    }
    if (status)
        model_plan_destroy(&p);
    else
        *out = p;
    return status;
}

void model_plan_destroy(model_plan *p)
{
    quire_plan_destroy(p->plan);
    quire_plan_destroy(p->flat);
    *p = (model_plan){NULL, NULL, false};
}

bool model_profile_fits(const model *m, const quire_profile *profile)
{
    model_plan plan = {NULL, NULL, false};
    quire_status status = model_plan_create(&plan, m, "c:r8/r8", profile, NULL, 0);
    model_plan_destroy(&plan);
    return status != QUIRE_EMISMATCH;
}

bool model_plan_is_calibrated(const model_plan *p)
{
    quire_plan_layer info = {.size = sizeof info};
    for (uint32_t i = 0; !quire_plan_layer_info(p->plan, i, &info); i++)
        if (!strncmp(info.k, "c:", 2)) return true;
    return false;
}

/* --------------------------------------------------------------------- sizes */

static double f16_bytes(const quire_layer *l)
{
    return 2.0 * l->n_kv_heads * (l->d_k + (l->v_in_k ? 0 : l->d_v));
}

static double token_bytes(const model *m, const model_plan *p, const quire_plan *plan, uint32_t layer)
{
    quire_plan_layer info = {.size = sizeof info};
    bool is_plain = m->is_plain[layer] && !(p && p->is_host);
    if (!plan || is_plain || quire_plan_layer_info(plan, layer, &info)) return f16_bytes(&m->layers[layer]);
    return info.bytes_per_token;
}

/* Of one cell in all layers that have it. */
static double extra_bytes(const model_extra *e, const model_plan *p)
{
    quire_plan_layer info = {.size = sizeof info};
    if (!p || !p->is_host || quire_plan_layer_info(p->plan, 0, &info)) return 2.0 * e->n_layers * e->row;
    return (double)e->n_layers * (double)quire_codec_row_bytes(info.k, e->row);
}

static uint64_t in_steps(uint64_t cells)
{
    return (cells + CELL_STEP - 1) / CELL_STEP * CELL_STEP;
}

/* Cells of one cache in a layer, whatever the number of caches. */
static uint64_t layer_cells(uint32_t window, const model_use *use)
{
    uint64_t all = in_steps(use->tokens);
    if (!window || use->full_windows) return all;
    uint64_t some =
        (uint64_t)window * (use->is_shared ? use->sequences : 1) + (use->batch ? use->batch : BATCH_CELLS);
    return some < all ? in_steps(some) : all;
}

static bool has_full(const model *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (m->has_kv[i] && !m->layers[i].window) return true;
    return false;
}

/* Whether the device takes this layer for one without a window: it compares it with those that have none. */
static bool looks_full(const model *m, uint32_t window, const model_use *use)
{
    uint64_t all = in_steps(use->tokens);
    return !window || !has_full(m) || (all > SHORT_CONTEXT && layer_cells(window, use) == all);
}

double model_kv_bytes_from(const model *m, const model_plan *p, const model_use *use, uint32_t first)
{
    double bytes = 0;
    for (uint32_t i = first; i < m->n_layers; i++) {
        uint32_t window = m->layers[i].window;
        const quire_plan *plan = !p ? NULL : window && looks_full(m, window, use) ? p->flat : p->plan;
        if (m->has_kv[i]) bytes += token_bytes(m, p, plan, i) * (double)layer_cells(window, use);
    }
    /* Which layers have one is not known here: they are taken as spread evenly. */
    double share = m->n_layers ? (double)(m->n_layers - first) / m->n_layers : 0;
    for (const model_extra *e = m->extras; e < m->extras + MODEL_EXTRAS; e++)
        if (e->n_layers)
            bytes += share * extra_bytes(e, p) *
                     (double)in_steps((in_steps(use->tokens) + e->ratio - 1) / e->ratio);
    return use->is_shared ? bytes : bytes * use->sequences;
}

double model_kv_bytes(const model *m, const model_plan *p, const model_use *use)
{
    return model_kv_bytes_from(m, p, use, 0);
}

void model_cut(model *m, uint32_t first)
{
    for (uint32_t i = first; i < m->n_layers; i++) {
        if (!m->has_kv[i]) continue;
        m->has_kv[i] = false;
        m->n_kv_layers--;
        m->n_window_layers -= m->layers[i].window > 0;
    }
}

uint64_t model_kv_tokens(const model *m, const model_plan *p, const model_use *use, double bytes)
{
    model_use one = *use;
    uint64_t low = 0, high = (UINT64_C(1) << 31) / CELL_STEP;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        one.tokens = middle * CELL_STEP;
        if (model_kv_bytes(m, p, &one) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low * CELL_STEP;
}

double model_kv_token_bytes(const model *m, const model_plan *p)
{
    bool full = has_full(m),
         growing = full || m->extras[0].n_layers || m->extras[1].n_layers || m->extras[2].n_layers;
    const quire_plan *plan = !p ? NULL : full ? p->plan : p->flat;
    double bytes = 0;
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (m->has_kv[i] && growing == !m->layers[i].window) bytes += token_bytes(m, p, plan, i);
    for (const model_extra *e = m->extras; e < m->extras + MODEL_EXTRAS; e++)
        if (e->n_layers) bytes += extra_bytes(e, p) / e->ratio;
    return bytes;
}

double model_kv_bits(const model *m, const model_plan *p)
{
    return 16 * model_kv_token_bytes(m, p) / model_kv_token_bytes(m, NULL);
}

double model_kv_bits_all(const model *m, const model_plan *p, const model_use *use)
{
    return 16 * model_kv_bytes(m, p, use) / model_kv_bytes(m, NULL, use);
}
