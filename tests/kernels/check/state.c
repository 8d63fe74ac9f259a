/* SPDX-License-Identifier: MIT */
/* check: what a call leaves behind in the thread. The float mode and the tile registers are the host's: attention finds
 * them in any state, must not depend on it, and leaves it as it was. */
#include "check.h"

#include "support/reference.h"

#include <stdio.h>

enum { D = 64, N_Q = 8, N_TILES = 2 };

#if defined(QUIRE_X86)

/* Kept and flushed denormals, and other rounding. */
static const uint32_t modes[] = {0x1f80, 0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0xdfc0};

static void set_mode(uint32_t mode)
{
    __builtin_ia32_ldmxcsr(mode);
}

static uint32_t mode_now(void)
{
    return __builtin_ia32_stmxcsr() & 0xffc0u; /* without what has happened so far */
}

/* As ldtilecfg reads it. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

#if defined(QUIRE_EMULATE) /* tests/emulate: no instruction knows of those registers */
#include <immintrin.h>
#define load_config _tile_loadconfig
#define store_config _tile_storeconfig
#else
__attribute__((target("amx-tile"))) static void load_config(const tile_config *c)
{
    if (c->palette)
        __asm__ volatile("ldtilecfg %0" : : "m"(*c));
    else
        __asm__ volatile("tilerelease");
}

__attribute__((target("amx-tile"))) static void store_config(tile_config *c)
{
    __asm__ volatile("sttilecfg %0" : "=m"(*c));
}
#endif

#elif defined(QUIRE_ARM)

static const uint32_t modes[] = {0, 0x1000000, 0x400000, 0x1c00000};

static void set_mode(uint32_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}

static uint32_t mode_now(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (uint32_t)mode;
}

#else

static const uint32_t modes[] = {0};

static void set_mode(uint32_t mode)
{
    (void)mode;
}

static uint32_t mode_now(void)
{
    return 0;
}

#endif

/* -------------------------------------------------------------- float mode */

typedef struct host {
    quire_workspace *workspace;
    quire_tile_format *k, *v;
    _Alignas(64) uint8_t memory[2 * N_TILES][D * TOKENS * sizeof(float)];
    quire_tile_ref tile[N_TILES];
    float q[N_Q * D], out[N_Q * D];
} host;

static void fill_tile(const quire_tile_format *f, uint8_t *tile, uint64_t *state)
{
    static float x[TOKENS * D];
    ref_normals(state, x, COUNT(x), 1);
    quire_rows rows = {.size = sizeof(quire_rows), .form = QUIRE_F32, .data = x};
    REF_OK(quire_tile_encode(f, 0, tile, 0, TOKENS, &rows, NULL));
}

static void host_open(host *h, const char *k, const char *v)
{
    uint64_t state = check_given.seed;
    quire_tile_format_options options = {.size = sizeof(quire_tile_format_options), .side = QUIRE_K, .d = D};
    memset(h, 0, sizeof *h);
    REF_OK(quire_tile_format_create(&h->k, k, &options));
    options.side = QUIRE_V;
    REF_OK(quire_tile_format_create(&h->v, v, &options));
    REF_OK(quire_workspace_create(&h->workspace, NULL, NULL));
    ref_normals(&state, h->q, COUNT(h->q), 1);
    for (uint32_t i = 0; i < N_TILES; i++) {
        fill_tile(h->k, h->memory[2 * i], &state);
        fill_tile(h->v, h->memory[2 * i + 1], &state);
        h->tile[i] = (quire_tile_ref){.k = h->memory[2 * i],
                                      .v = h->memory[2 * i + 1],
                                      .k_format = h->k,
                                      .v_format = h->v,
                                      .first = i * TOKENS,
                                      .n_rows = TOKENS};
    }
}

static void host_close(host *h)
{
    quire_workspace_destroy(h->workspace);
    quire_tile_format_destroy(h->k);
    quire_tile_format_destroy(h->v);
}

static void host_attend(host *h)
{
    quire_attend_job job = {.tile_stride = sizeof(quire_tile_ref),
                            .tiles = h->tile,
                            .n_tiles = N_TILES,
                            .n_q_heads = N_Q,
                            .n_kv_heads = 1,
                            .d_k = D,
                            .d_v = D,
                            .n_queries = 1,
                            .first_query = N_TILES * TOKENS - 1,
                            .q = h->q,
                            .out = h->out};
    REF_OK(quire_attend(h->workspace, NULL, &job, 1, sizeof(quire_attend_job)));
}

static void try_modes(host *h)
{
    float want[COUNT(h->out)];
    for (uint32_t i = 0; i < COUNT(modes); i++) {
        uint32_t own = mode_now(), found;
        set_mode(modes[i]);
        host_attend(h);
        found = mode_now();
        set_mode(own);
        check_share(0, 1);
        if (found != modes[i]) check_fail("float mode %#x before attend, %#x after it", modes[i], found);
        if (!i) memcpy(want, h->out, sizeof want);
        size_t at = check_difference(h->out, want, COUNT(want));
        if (at < COUNT(want))
            check_fail("float mode %#x changes output %zu: %.9g instead of %.9g", modes[i], at,
                       (double)h->out[at], (double)want[at]);
    }
}

/* ------------------------------------------------------------------- tiles */

#if defined(QUIRE_X86)

static bool has_tiles(void)
{
    const char *name;
    for (uint32_t i = 0; (name = quire_isa_at(i)); i++)
        if (strcmp(name, "amx") == 0) return true;
    return false;
}

static void print_config(const tile_config *c, char *to, size_t bytes)
{
    snprintf(to, bytes, "palette %u, tile 0 %u x %u, tile 7 %u x %u", c->palette, c->rows[0], c->bytes[0],
             c->rows[7], c->bytes[7]);
}

static void compare_config(const tile_config *want, const char *call)
{
    _Alignas(64) tile_config found;
    store_config(&found);
    check_at.call = call;
    check_share(0, 1);
    if (memcmp(&found, want, sizeof found) == 0) return;
    char a[96], b[96];
    print_config(&found, a, sizeof a);
    print_config(want, b, sizeof b);
    check_fail("tile configuration %s; before the call %s", a, b);
}

/* A configuration of the host, and none. */
static void try_configs(host *h, const quire_kernels *kernels)
{
    static const _Alignas(64) tile_config configs[] = {
        {.palette = 1, .bytes = {4, 8, 12, 64, 60, 16, 20, 24}, .rows = {1, 2, 3, 16, 15, 4, 5, 6}},
        {.palette = 0},
    };
    if (!has_tiles()) return;
    for (uint32_t i = 0; i < COUNT(configs); i++) {
        load_config(&configs[i]);
        host_attend(h);
        compare_config(&configs[i], "attend");
        if (!kernels->enter) continue;
        _Alignas(64) uint8_t saved[64], inner[64];
        kernels->enter(saved, 1);
        kernels->enter(inner, QUIRE_MAX_QUERY_ROWS); /* a host's callback may attend again */
        kernels->leave(inner);
        kernels->leave(saved);
        compare_config(&configs[i], "enter and leave");
    }
    load_config(&configs[1]);
}

#else

static void try_configs(host *h, const quire_kernels *kernels)
{
    (void)h;
    (void)kernels;
}

#endif

void check_state(const check_isas *isas)
{
    static const char *const pairs[][2] = {
        {"a4g64", "r4"}, {"r8", "a8g64"}, {"q4_0", "q5_1"}, {"f16", "f16"}};
    for (uint32_t p = 0; p < COUNT(pairs); p++) {
        static host h;
        check_at = (check_where){.role = ROLE_STATE, .fill = pairs[p][0], .call = "attend"};
        check_use(isas, 0);
        host_open(&h, pairs[p][0], pairs[p][1]);
        for (uint32_t i = 0; i < isas->n; i++) {
            check_use(isas, i);
            check_at.call = "attend";
            try_modes(&h);
            try_configs(&h, isas->kernels[i]);
        }
        host_close(&h);
    }
}
