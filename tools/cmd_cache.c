/* SPDX-License-Identifier: MIT */
/* quire cache: prompt-cache files of mlx-lm, shown or written in other codecs and layouts. */
#define _POSIX_C_SOURCE 200809L
#include <quire/quire.h>

#include "commands.h"

#include "common/place.h"
#include "common/progress.h"
#include "common/tool.h"
#include "files/mlx_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct cache_options {
    const char *verb, *path, *out;
    char codecs[2][32];
    mlx_layout layout;
    bool to, has_layout, json;
} cache_options;

/* ----------------------------------------------------------------- options */

static const char *set_word(void *ctx, const char *word)
{
    cache_options *o = ctx;
    if (!o->verb) {
        o->verb = word;
        return strcmp(word, "show") && strcmp(word, "convert") ? "the first word must be show or convert, not"
                                                               : NULL;
    }
    if (o->path) return "give only one file; the second one is";
    o->path = word;
    return NULL;
}

static const char *set_layout(void *ctx, const char *value)
{
    cache_options *o = ctx;
    o->has_layout = true;
    o->layout = (*value | 32) == 'a' ? MLX_LAYOUT_A : MLX_LAYOUT_B;
    return ((*value | 32) == 'a' || (*value | 32) == 'b') && !value[1] ? NULL : "a or b";
}

/* CODEC, K/V, or a preset that stands for a pair. */
static const char *set_to(void *ctx, const char *value)
{
    cache_options *o = ctx;
    o->to = true;
    for (uint32_t i = 0; i < quire_preset_count(); i++)
        if (!strcmp(value, quire_preset_at(i)->name)) value = quire_preset_at(i)->without;
    size_t n = strcspn(value, "/");
    const char *v = value[n] ? value + n + 1 : value;
    if (n >= sizeof o->codecs[0] || strlen(v) >= sizeof o->codecs[1])
        return "codecs, as in a4g64 or a8g64/a4g64";
    snprintf(o->codecs[QUIRE_K], sizeof o->codecs[0], "%.*s", (int)n, value);
    snprintf(o->codecs[QUIRE_V], sizeof o->codecs[1], "%s", v);
    return quire_codec_find(o->codecs[0]) && quire_codec_find(o->codecs[1])
               ? NULL
               : "codecs, as in a4g64 or a8g64/a4g64";
}

static const tool_option options[] = {
    {"--to", "CODECS",
     "convert to f16, bf16, f32, an affine codec such as a8g64, or a pair K/V\nsuch as a8g64/a4g64 (default: unchanged)",
     .set = set_to},
    {"--layout", "a|b",
     "convert to layout a, for mlx-lm up to 0.31, or b, for 0.32 and later\n(default: unchanged)",
     .set = set_layout},
    {"--out", "FILE", "the file that convert writes", TOOL_WORD(cache_options, out)},
    {"--json", NULL, "print the result as one JSON object", TOOL_FLAG(cache_options, json)},
};

static const tool_command command = {
    .name = "cache",
    .usage = "show [--json] FILE | convert [--to CODECS] [--layout a|b] --out FILE FILE",
    .about =
        "Shows what is in a prompt-cache file of mlx-lm (safetensors), or converts the file to other codecs or to the\n"
        "file layout of another mlx-lm version. Rows of trimmed tokens are not written.",
    .examples =
        "  quire cache show prompt.safetensors\n"
        "  quire cache convert --to a8g64 --out small.safetensors prompt.safetensors\n"
        "  quire cache convert --layout a --out old.safetensors prompt.safetensors    for mlx-lm 0.31\n",
    TOOL_OPTIONS(options),
    .set_name = set_word,
};

/* -------------------------------------------------------------------- show */

static double layer_bytes(const mlx_layer *l)
{
    double bytes = 0;
    for (int side = 0; side < 2 && l->kind < MLX_EMPTY; side++) {
        const mlx_side *s = &l->sides[side];
        bytes += (double)s->data->bytes + (s->bits ? (double)s->scales->bytes + (double)s->biases->bytes : 0);
    }
    return bytes;
}

static bool is_alike(const mlx_layer *a, const mlx_layer *b)
{
    return !strcmp(a->class_name, b->class_name) && a->kind == b->kind && a->n_rows == b->n_rows &&
           a->offset == b->offset && a->n_heads == b->n_heads && a->sides[0].d == b->sides[0].d &&
           a->sides[1].d == b->sides[1].d && !strcmp(a->sides[0].codec, b->sides[0].codec) &&
           !strcmp(a->sides[1].codec, b->sides[1].codec);
}

static void print_layers(const mlx_layer *l, uint32_t first, uint32_t last)
{
    char bytes[TOOL_BYTES_SIZE];
    if (first == last)
        printf("layer %u: %s", first, l->class_name);
    else
        printf("layers %u-%u: %s", first, last, l->class_name);
    if (l->kind == MLX_EMPTY) printf(", empty");
    if (l->kind < MLX_EMPTY) {
        printf(", %llu tokens", (unsigned long long)l->n_rows);
        if (l->offset != l->n_rows) printf(" of %llu seen", (unsigned long long)l->offset);
        if (l->n_seqs > 1) printf(", %u sequences", l->n_seqs);
        printf(", %u heads of %u", l->n_heads, l->sides[0].d);
        if (l->sides[1].d != l->sides[0].d) printf("/%u", l->sides[1].d);
        printf(", K %s V %s, %s", l->sides[0].codec, l->sides[1].codec, tool_bytes(bytes, layer_bytes(l)));
        if (first != last) printf(" each");
        if (l->kind == MLX_ROTATING)
            printf(", ring of %llu, the first %llu kept", (unsigned long long)l->max_size,
                   (unsigned long long)l->keep);
        if (l->n_buffer_rows > l->n_rows)
            printf(", %llu unused rows", (unsigned long long)(l->n_buffer_rows - l->n_rows));
    }
    printf("\n");
}

static void show_text(const mlx_cache *c)
{
    printf("mlx-lm prompt cache, layout %s, %u layers\n",
           c->layout == MLX_LAYOUT_A ? "a (up to 0.31)" : "b (from 0.32)", c->n_layers);
    for (uint32_t first = 0, i = 1; i <= c->n_layers; i++)
        if (i == c->n_layers || !is_alike(&c->layers[first], &c->layers[i])) {
            print_layers(&c->layers[first], first, i - 1);
            first = i;
        }
    const char *prefix = c->layout == MLX_LAYOUT_A ? "1." : "0.";
    for (size_t i = 0; i < c->file.n_metadata; i++)
        if (!strncmp(c->file.metadata[i].key, prefix, 2))
            printf("%s: %s\n", c->file.metadata[i].key + 2, c->file.metadata[i].value);
}

static void show_json(const mlx_cache *c)
{
    printf("{\"layout\":\"%s\",\"layers\":[", c->layout == MLX_LAYOUT_A ? "a" : "b");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const mlx_layer *l = &c->layers[i];
        printf("%s{\"class\":", i ? "," : "");
        tool_json_string(stdout, l->class_name);
        if (l->kind < MLX_EMPTY)
            printf(
                ",\"tokens\":%llu,\"offset\":%llu,\"buffer_rows\":%llu,\"sequences\":%u,\"heads\":%u,\"d_k\":%u,\"d_v\":%u,"
                "\"k\":\"%s\",\"v\":\"%s\",\"bytes\":%.0f",
                (unsigned long long)l->n_rows, (unsigned long long)l->offset,
                (unsigned long long)l->n_buffer_rows, l->n_seqs, l->n_heads, l->sides[0].d, l->sides[1].d,
                l->sides[0].codec, l->sides[1].codec, layer_bytes(l));
        if (l->kind == MLX_ROTATING)
            printf(",\"max_size\":%llu,\"keep\":%llu,\"index\":%llu", (unsigned long long)l->max_size,
                   (unsigned long long)l->keep, (unsigned long long)l->index);
        printf("}");
    }
    printf("]}\n");
}

/* ----------------------------------------------------------------- convert */

static void show_progress(void *ctx, uint32_t layers)
{
    progress_show(ctx, layers);
}

static void tell_converted(const cache_options *o, const quire_counts *counts)
{
    struct stat old, new;
    if (stat(o->path, &old) || stat(o->out, &new)) return;
    char a[TOOL_BYTES_SIZE], b[TOOL_BYTES_SIZE];
    if (o->json) {
        printf("{\"out\":");
        tool_json_string(stdout, o->out);
        printf(",\"bytes\":%lld,\"old_bytes\":%lld,\"nan\":%llu,\"saturated\":%llu,\"recoded\":%llu}\n",
               (long long)new.st_size, (long long)old.st_size, (unsigned long long)counts->nan,
               (unsigned long long)counts->saturated, (unsigned long long)counts->recoded);
        return;
    }
    printf("%s: %s, was %s", o->out, tool_bytes(a, (double)new.st_size), tool_bytes(b, (double)old.st_size));
    if (counts->nan) printf(", %llu NaN values became 0", (unsigned long long)counts->nan);
    if (counts->saturated) printf(", %llu values were too large", (unsigned long long)counts->saturated);
    printf("\n");
}

/* The file has its name when it is whole. */
static int convert(const cache_options *o, const mlx_cache *c)
{
    char message[512], part[PLACE_SIZE];
    quire_counts counts = {0};
    progress bar;
    mlx_convert_options how = {.layout = o->has_layout ? o->layout : c->layout,
                               .codecs = {o->to ? o->codecs[0] : NULL, o->to ? o->codecs[1] : NULL},
                               .progress = show_progress,
                               .ctx = &bar};
    if (snprintf(part, sizeof part, "%s.part", o->out) >= (int)sizeof part)
        return tool_failed("cache", "the file name is too long");
    FILE *file = fopen(part, "wb");
    if (!file) return tool_failed("cache", "%s: %s", part, strerror(errno));
    progress_start(&bar, "converting", "layers", c->n_layers);
    bool right = mlx_cache_write(c, &how, file, &counts, message, sizeof message);
    progress_end(&bar);
    if (fclose(file) && right) {
        snprintf(message, sizeof message, "%s", strerror(errno));
        right = false;
    }
    if (right && rename(part, o->out)) {
        snprintf(message, sizeof message, "%s: %s", o->out, strerror(errno));
        right = false;
    }
    if (!right) {
        remove(part);
        return tool_failed("cache", "%s: %s", o->path, message);
    }
    tell_converted(o, &counts);
    return TOOL_OK;
}

/* -------------------------------------------------------------------- main */

static int work(const cache_options *o, const uint8_t *bytes, size_t n)
{
    char message[512];
    mlx_cache c;
    int code = TOOL_OK;
    if (!mlx_cache_read(&c, bytes, n, message, sizeof message))
        return tool_failed("cache", "%s: %s", o->path, message);
    if (!strcmp(o->verb, "convert"))
        code = convert(o, &c);
    else if (o->json)
        show_json(&c);
    else
        show_text(&c);
    mlx_cache_free(&c);
    return code;
}

int cmd_cache(int argc, char **argv)
{
    cache_options o = {0};
    struct stat s;
    int code = tool_parse(&command, argc, argv, &o);
    if (code >= 0) return code;
    if (!o.verb || !o.path)
        return tool_usage("cache", "give show or convert, and a file; see quire cache --help");
    bool converts = !strcmp(o.verb, "convert");
    if (converts && !o.out) return tool_usage("cache", "convert needs --out FILE");
    if (!converts && (o.out || o.to || o.has_layout))
        return tool_usage("cache", "--to, --layout and --out work only with convert");
    int fd = open(o.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s)) return tool_failed("cache", "%s: %s", o.path, strerror(errno));
    void *bytes = s.st_size > 0 ? mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (bytes == MAP_FAILED) return tool_failed("cache", "%s: the file is empty or cannot be read", o.path);
    code = work(&o, bytes, (size_t)s.st_size);
    munmap(bytes, (size_t)s.st_size);
    return code == TOOL_OK ? tool_finish("cache") : code;
}
