/* SPDX-License-Identifier: MIT */
/* quire codecs: the registry, or the presets, as a table or as JSON. */
#include <quire/quire.h>

#include "commands.h"

#include "common/tool.h"

#include <string.h>

static const uint32_t head_sizes[] = {64, 128, 256};
#define N_SIZES (sizeof head_sizes / sizeof head_sizes[0])

#define MAX_NAMES 128

typedef struct codecs_options {
    bool json, presets;
    const quire_codec_info *chosen[MAX_NAMES];
    size_t n_chosen;
} codecs_options;

static const char *set_name(void *ctx, const char *word)
{
    codecs_options *o = (codecs_options *)ctx;
    const quire_codec_info *info = quire_codec_find(word);
    if (!info) return "unknown codec";
    if (o->n_chosen == MAX_NAMES) return "too many codecs; the first one over the limit is";
    o->chosen[o->n_chosen++] = info;
    return NULL;
}

static const tool_option options[] = {
    {"--presets", NULL, "list the presets and the codecs they stand for", TOOL_FLAG(codecs_options, presets)},
    {"--json", NULL, "print one JSON object per line", TOOL_FLAG(codecs_options, json)},
};

static const tool_command command = {
    .name = "codecs",
    .usage = "[--json] [--presets | NAME...]",
    .about =
        "Lists all codecs, or the ones you name. For each it prints the bits per value at head sizes 64, 128 and 256\n"
        "(codes, scales, biases and padding), the sides it can encode, and the program (MLX, ggml or mlx-vlm) whose rows it\n"
        "exchanges without encoding them again.",
    .examples = "  quire codecs\n"
                "  quire codecs r4 r5 tq4\n"
                "  quire codecs --presets\n"
                "  quire codecs --json\n",
    TOOL_OPTIONS(options),
    .set_name = set_name,
};

static bool is_k_only(const quire_codec_info *info)
{
    return info->flags & QUIRE_CODEC_CALIBRATED;
}

static const char *partner(const quire_codec_info *info)
{
    if (info->flags & QUIRE_CODEC_MLX_VLM) return "mlx-vlm";
    return info->flags & QUIRE_CODEC_MLX ? "MLX" : info->flags & QUIRE_CODEC_GGML ? "ggml" : NULL;
}

static void print_json(const quire_codec_info *info)
{
    printf("{\"name\":");
    tool_json_string(stdout, info->name);
    printf(",\"bits\":{");
    for (size_t i = 0; i < N_SIZES; i++)
        printf("%s\"%u\":%g", i ? "," : "", head_sizes[i], quire_codec_bits(info->name, head_sizes[i]));
    printf("},\"sides\":[\"k\"%s],\"exchanges\":", is_k_only(info) ? "" : ",\"v\"");
    if (partner(info))
        tool_json_string(stdout, partner(info));
    else
        printf("null");
    printf(",\"code_bits\":%u,\"group\":%u,\"float\":%s,\"rotated\":%s,\"calibrated\":%s,\"summary\":",
           info->bits, info->group, info->flags & QUIRE_CODEC_FLOAT ? "true" : "false",
           info->flags & QUIRE_CODEC_ROTATED ? "true" : "false", is_k_only(info) ? "true" : "false");
    tool_json_string(stdout, info->summary);
    printf("}\n");
}

static void print_line(const quire_codec_info *info)
{
    printf("%-10s", info->name);
    for (size_t i = 0; i < N_SIZES; i++) printf("%8g", quire_codec_bits(info->name, head_sizes[i]));
    printf("  %-5s  %-9s  %s\n", is_k_only(info) ? "K" : "K V", partner(info) ? partner(info) : "",
           info->summary);
}

static void print_presets(bool json)
{
    if (!json) printf("%-10s%-14s%-14s%s\n", "preset", "no profile", "profile", "description");
    for (uint32_t i = 0; i < quire_preset_count(); i++) {
        const quire_preset *p = quire_preset_at(i);
        if (json) {
            printf("{\"name\":\"%s\",\"without\":\"%s\",\"with_profile\":\"%s\",\"summary\":", p->name,
                   p->without, p->with_profile);
            tool_json_string(stdout, p->summary);
            printf("}\n");
        } else {
            printf("%-10s%-14s%-14s%s\n", p->name, p->without, p->with_profile, p->summary);
        }
    }
}

static void print_codecs(const codecs_options *o)
{
    size_t n = o->n_chosen ? o->n_chosen : quire_codec_count();
    if (!o->json) {
        printf("%-10s", "codec");
        for (size_t i = 0; i < N_SIZES; i++) {
            char title[16];
            snprintf(title, sizeof title, "D=%u", head_sizes[i]);
            printf("%8s", title);
        }
        printf("  %-5s  %-9s  %s\n", "sides", "exchanges", "description");
    }
    for (size_t i = 0; i < n; i++) {
        const quire_codec_info *info = o->n_chosen ? o->chosen[i] : quire_codec_at((uint32_t)i);
        if (o->json)
            print_json(info);
        else
            print_line(info);
    }
}

int cmd_codecs(int argc, char **argv)
{
    codecs_options o = {0};
    int code = tool_parse(&command, argc, argv, &o);
    if (code >= 0) return code;
    if (o.presets && o.n_chosen) return tool_usage("codecs", "--presets cannot be combined with codec names");
    if (o.presets)
        print_presets(o.json);
    else
        print_codecs(&o);
    return tool_finish("codecs");
}
