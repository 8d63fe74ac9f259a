/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Metadata is a few megabytes, of vocabulary; nobody has to walk through the weights of a damaged file. */
#define MAX_METADATA ((size_t)1 << 30)

/* llama.cpp gives window layers so many cells more than the window, in steps. */
enum { BATCH_CELLS = 512, CELL_STEP = 256 };

/* ------------------------------------------------------------------- windows */

/*
 * Which layers have a window is in the code of llama.cpp, not in most files: of every `period` layers all but the last
 * one, or but the first one. Architectures that are not listed have windows only if the file lists them layer by layer.
 */
static const struct window_rule {
    const char *arch;
    uint32_t period, window; /* window: where the file gives none */
    bool first_is_full;
} window_rules[] = {
    {"gemma2", 2, 4096, false},  {"gemma3", 6, 0, false},      {"gemma3n", 5, 0, false},
    {"gemma4", 0, 0, false},     {"cohere2", 4, 0, false},     {"cohere2moe", 4, 0, true},
    {"gpt-oss", 2, 0, false},    {"olmo2", 4, 0, false},       {"exaone4", 4, 0, false},
    {"exaone-moe", 4, 0, false}, {"smallthinker", 4, 0, true}, {"afmoe", 4, 0, false},
    {"mellum", 4, 0, false},     {"plamo3", 8, 0, false},      {"llama4", 4, 8192, false},
};

static const struct window_rule *find_rule(const char *arch)
{
    for (size_t i = 0; i < sizeof window_rules / sizeof window_rules[0]; i++)
        if (!strcmp(arch, window_rules[i].arch)) return &window_rules[i];
    return NULL;
}

static uint32_t window_of(const gguf_facts *f, uint32_t layer)
{
    const struct window_rule *rule = find_rule(f->arch);
    uint32_t window = f->sliding_window ? f->sliding_window : rule ? rule->window : 0;
    if (!window || (!rule && f->window_pattern.n < 2)) return 0;
    if (f->window_pattern.n > 1)
        return layer < f->window_pattern.n && f->window_pattern.value[layer] ? window : 0;
    uint32_t period = f->window_pattern.n ? f->window_pattern.value[0] : rule->period;
    if (!period) return 0;
    bool is_full = rule->first_is_full ? layer % period == 0 : layer % period == period - 1;
    return is_full ? 0 : window;
}

/* -------------------------------------------------------------------- layers */

static uint32_t value_at(const gguf_list *list, uint32_t layer)
{
    if (list->n == 1) return list->value[0];
    return layer < list->n ? list->value[layer] : 0;
}

/* Layers that are recurrent, or that read the cache of another one, keep none. */
static bool keeps_rows(const gguf_facts *f, uint32_t layer, uint32_t n_layers)
{
    uint32_t every = f->full_attention_interval;
    if (every && (layer + 1) % every) return false;
    if (!strcmp(f->arch, "gemma3n")) return layer < 20;
    return !f->shared_kv_layers || layer + f->shared_kv_layers < n_layers;
}

static uint32_t pick(uint32_t special, uint32_t usual, uint32_t otherwise)
{
    return special ? special : usual ? usual : otherwise;
}

static bool fill_layer(quire_layer *l, const gguf_facts *f, uint32_t layer, uint32_t n_layers)
{
    uint32_t n_heads = value_at(&f->head_count, layer);
    uint32_t n_kv = f->head_count_kv.n ? value_at(&f->head_count_kv, layer) : n_heads;
    if (!n_heads || !n_kv || !keeps_rows(f, layer, n_layers)) return false;
    uint32_t window = window_of(f, layer), d = f->embedding_length / n_heads;
    *l = (quire_layer){.n_q_heads = n_heads,
                       .n_kv_heads = n_kv,
                       .d_k = pick(window ? f->key_length_swa : 0, f->key_length, d),
                       .d_v = pick(window ? f->value_length_swa : 0, f->value_length, d),
                       .v_in_k = f->key_length_mla && f->value_length_mla,
                       .window = window};
    return l->d_k && l->d_v;
}

bool model_from_facts(model *m, const gguf_facts *f, char *message, size_t size)
{
    quire_layer some = {0};
    *m = (model){.context = f->context_length};
    memcpy(m->arch, f->arch, sizeof m->arch);
    memcpy(m->name, f->name, sizeof m->name);
    if (f->block_count > f->nextn_predict_layers) m->n_layers = f->block_count - f->nextn_predict_layers;
    if (!m->n_layers || m->n_layers > GGUF_MAX_LAYERS) {
        snprintf(message, size, "it has %u layers", m->n_layers);
        return false;
    }
    for (uint32_t i = 0; i < m->n_layers; i++)
        if ((m->has_kv[i] = fill_layer(&m->layers[i], f, i, m->n_layers))) {
            some = m->layers[i];
            m->n_kv_layers++;
        }
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (!m->has_kv[i]) m->layers[i] = some;
    if (!m->n_kv_layers) snprintf(message, size, "a model of architecture %s without a KV cache", m->arch);
    return m->n_kv_layers;
}

quire_geometry model_geometry(const model *m)
{
    return (quire_geometry){.version = QUIRE_OPTIONS, .n_layers = m->n_layers, .layers = m->layers};
}

/* ---------------------------------------------------------------------- file */

/* name-00001-of-00003.gguf: all three. */
static uint64_t parts_bytes(const char *path, uint64_t first)
{
    unsigned part, n_parts;
    char other[4096];
    struct stat s;
    size_t n = strlen(path);
    if (n < 20 || n >= sizeof other || sscanf(path + n - 20, "-%5u-of-%5u.gguf", &part, &n_parts) != 2)
        return first;
    uint64_t bytes = first;
    for (unsigned i = 1; i <= n_parts && i <= 9999; i++) {
        snprintf(other, sizeof other, "%.*s-%05u-of-%05u.gguf", (int)(n - 20), path, i, n_parts % 100000);
        if (i != part && !stat(other, &s)) bytes += (uint64_t)s.st_size;
    }
    return bytes;
}

bool model_open(model *m, const char *path, char *message, size_t size)
{
    char why[256];
    struct stat s;
    static gguf_facts facts; /* large; one file at a time */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s) || !S_ISREG(s.st_mode)) {
        snprintf(message, size, "%s: %s", path, fd < 0 ? strerror(errno) : "not a file");
        if (fd >= 0) close(fd);
        return false;
    }
    size_t n = (uint64_t)s.st_size < MAX_METADATA ? (size_t)s.st_size : MAX_METADATA;
    void *bytes = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    snprintf(why, sizeof why, "it cannot be read");
    bool right = bytes != MAP_FAILED && gguf_read(&facts, bytes, n, why, sizeof why) &&
                 model_from_facts(m, &facts, why, sizeof why);
    if (bytes != MAP_FAILED) munmap(bytes, n);
    if (right)
        m->file_bytes = parts_bytes(path, (uint64_t)s.st_size);
    else
        snprintf(message, size, "%s: %s", path, why);
    return right;
}

bool model_profile_path(char *path, size_t size, const char *model_path)
{
    size_t n = strlen(model_path);
    if (n > 5 && !strcmp(model_path + n - 5, ".gguf")) n -= 5;
    return snprintf(path, size, "%.*s.quire-profile", (int)n, model_path) < (int)size;
}

/* --------------------------------------------------------------------- sizes */

static double f16_bytes(const quire_layer *l)
{
    return 2.0 * l->n_kv_heads * (l->d_k + (l->v_in_k ? 0 : l->d_v));
}

static double token_bytes(const model *m, const quire_plan *plan, uint32_t layer)
{
    quire_plan_layer info;
    if (!plan || quire_plan_layer_info(plan, layer, &info)) return f16_bytes(&m->layers[layer]);
    return info.bytes_per_token;
}

/* Cells of a sequence in a window layer. */
static uint64_t window_cells(uint32_t window, uint64_t tokens)
{
    uint64_t cells = ((uint64_t)window + BATCH_CELLS + CELL_STEP - 1) / CELL_STEP * CELL_STEP;
    return cells < tokens ? cells : tokens;
}

double model_kv_bytes(const model *m, const quire_plan *plan, const model_use *use)
{
    double bytes = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        uint32_t window = m->layers[i].window;
        uint64_t cells = window ? window_cells(window, use->tokens) : use->tokens;
        if (m->has_kv[i]) bytes += token_bytes(m, plan, i) * (double)cells;
    }
    return bytes * use->sequences;
}

uint64_t model_kv_tokens(const model *m, const quire_plan *plan, uint32_t sequences, double bytes)
{
    uint64_t low = 0, high = UINT64_C(1) << 31;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        if (model_kv_bytes(m, plan, &(model_use){middle, sequences}) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool has_growing(const model *m)
{
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (m->has_kv[i] && !m->layers[i].window) return true;
    return false;
}

double model_kv_token_bytes(const model *m, const quire_plan *plan)
{
    bool growing = has_growing(m);
    double bytes = 0;
    for (uint32_t i = 0; i < m->n_layers; i++)
        if (m->has_kv[i] && growing == !m->layers[i].window) bytes += token_bytes(m, plan, i);
    return bytes;
}

double model_kv_bits(const model *m, const quire_plan *plan)
{
    return 16 * model_kv_token_bytes(m, plan) / model_kv_token_bytes(m, NULL);
}

bool model_plan_is_calibrated(const quire_plan *plan)
{
    quire_plan_layer info;
    for (uint32_t i = 0; !quire_plan_layer_info(plan, i, &info); i++)
        if (!strncmp(info.k, "c:", 2)) return true;
    return false;
}
