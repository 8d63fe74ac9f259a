/* SPDX-License-Identifier: MIT */
/* quire_check: compares every role of every kernel table of this machine with the C table, for every codec and many head
 * sizes, on memory between guard pages; or times the same calls. */
#include "check.h"

#include "support/reference.h"

#include <stdio.h>
#include <stdlib.h>

static const uint32_t sizes[] = {16, 48, 64, 80, 96, 112, 128, 192, 256, 512, 576, 40, 200, 1024};
static const uint32_t quick_sizes[] = {48, 64, 96, 128, 576};

static const char usage[] =
    "usage: quire_check [--isa NAME] [--codec NAME] [--d SIZE] [--seed N] [--quick]\n"
    "       quire_check --bench [--isa NAME] [--codec NAME] [--d SIZE] [--rows N]\n"
    "       quire_check --list\n"
    "Compares the kernels of this machine with the C table, or times them (d 128 and 4 query rows, unless given).\n";

/* Sanitizers make C slow, and what they find does not depend on all sizes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

static int misused(const char *what)
{
    fprintf(stderr, "quire_check: %s\n%s", what, usage);
    return 2;
}

/* A number from 0 to most; false: none. */
static bool parse(const char *text, unsigned long long most, unsigned long long *out)
{
    char *end;
    if (!text || *text < '0' || *text > '9') return false;
    *out = strtoull(text, &end, 10);
    return !*end && *out <= most;
}

/* 0, or the status to exit with. */
static int read_options(int argc, char **argv, check_options *o)
{
    *o = (check_options){.seed = 1, .quick = SANITIZED};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        unsigned long long number = 0;
        if (strcmp(name, "--bench") == 0) {
            o->bench = true;
        } else if (strcmp(name, "--list") == 0) {
            o->list = true;
        } else if (strcmp(name, "--quick") == 0) {
            o->quick = true;
        } else if (strcmp(name, "--isa") == 0 && value) {
            o->isa = argv[++i];
        } else if (strcmp(name, "--codec") == 0 && value) {
            o->codec = argv[++i];
        } else if (strcmp(name, "--seed") == 0 && parse(value, UINT64_MAX, &number)) {
            o->seed = number;
            i++;
        } else if (strcmp(name, "--d") == 0 && parse(value, MOST_D, &number) && number) {
            o->d = (uint32_t)number;
            i++;
        } else if (strcmp(name, "--rows") == 0 && parse(value, QUIRE_MAX_QUERY_ROWS, &number) && number) {
            o->rows = (uint32_t)number;
            i++;
        } else {
            return misused(name);
        }
    }
    if (!o->rows) o->rows = 4;
    if (o->codec && !quire_codec_find(o->codec)) return misused("no such codec");
    return 0;
}

void check_use(const check_isas *isas, uint32_t index)
{
    REF_OK(quire_isa_use(isas->name[index]));
    check_at.isa = isas->name[index];
}

const char *check_same_bits(const char *isa)
{
    if (strcmp(isa, "avx512vbmi") == 0 || strcmp(isa, "amx") == 0) return "avx512vnni";
    return strncmp(isa, "neon-", 5) == 0 ? "neon" : NULL;
}

/* C, and what else is wanted of the others. */
static check_isas find_isas(const char *only)
{
    check_isas all = {0};
    const char *name;
    for (uint32_t i = 0; (name = quire_isa_at(i)); i++) {
        if (i && only && strcmp(name, only)) continue;
        all.name[all.n] = name;
        check_use(&all, all.n);
        all.kernels[all.n++] = quire_kernels_get();
    }
    return all;
}

static int list(const check_isas *isas)
{
    printf("instruction sets:");
    for (uint32_t i = 0; i < isas->n; i++) printf(" %s", isas->name[i]);
    printf("\nhead sizes:");
    for (uint32_t i = 0; i < COUNT(sizes); i++) printf(" %u", sizes[i]);
    printf("\ncodecs:");
    for (uint32_t i = 0; i < quire_codec_count(); i++)
        printf("%s%s", i % 12 ? " " : "\n  ", quire_codec_at(i)->name);
    printf("\ncontents of tiles:");
    for (uint32_t i = 0; i < N_FILLS; i++) printf(" %s", check_fill_names[i]);
    printf("\nbounds:\n");
    for (uint32_t i = 0; i < N_BOUNDS; i++)
        printf("  %-21s %-8g %s\n", check_bounds[i].name, check_bounds[i].value, check_bounds[i].reason);
    return 0;
}

/* One head size: every codec that takes it. */
static void try_size(const check_isas *isas, uint32_t d)
{
    quire_geometry geometry = {sizeof(quire_geometry), .n_layers = 1, .n_q_heads = 1,
                               .n_kv_heads = 1,        .d_k = d,      .d_v = d};
    quire_profile *profile = ref_profile(&geometry);
    for (uint32_t i = 0; i < quire_codec_count(); i++) {
        quire_tile_format k, v;
        check_case c = {.codec = quire_codec_at(i)->name, .d = d};
        const quire_codec *codec = quire_codec_get(c.codec);
        if (check_given.codec && strcmp(check_given.codec, c.codec)) continue;
        if (quire_tile_format_init(&k, codec, QUIRE_K, d, 0, profile, 0) != QUIRE_OK) continue;
        c.k = &k;
        if (quire_tile_format_init(&v, codec, QUIRE_V, d, 0, NULL, 0) == QUIRE_OK) c.v = &v;
        if (check_given.bench) {
            check_bench(isas, &c);
            continue;
        }
        check_scores(isas, &c);
        check_mixes(isas, &c);
    }
    quire_profile_destroy(profile);
}

int main(int argc, char **argv)
{
    int status = read_options(argc, argv, &check_given);
    if (status) return status;
    check_isas isas = find_isas(check_given.isa);
    if (check_given.isa && strcmp(isas.name[isas.n - 1], check_given.isa))
        return misused("this machine has no such instruction set");
    if (check_given.list) return list(&isas);
    if (check_given.bench) {
        check_bench_head(&isas);
        try_size(&isas, check_given.d ? check_given.d : 128);
        return 0;
    }
    const uint32_t *all = check_given.quick ? quick_sizes : sizes;
    size_t n = check_given.quick ? COUNT(quick_sizes) : COUNT(sizes);
    check_guard_open();
    for (size_t i = 0; i < n && !check_given.d; i++) try_size(&isas, all[i]);
    if (check_given.d) try_size(&isas, check_given.d);
    if (!check_given.codec && !check_given.d) {
        check_softmax(&isas);
        check_state(&isas);
    }
    check_guard_close();
    check_summary();
    printf("%s: %llu failures\n", check_failures() ? "FAILED" : "passed",
           (unsigned long long)check_failures());
    return check_failures() != 0;
}
