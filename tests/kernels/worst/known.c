/* SPDX-License-Identifier: MIT */
/* worst: inputs that once exceeded the bound. */
#include "worst.h"

#include "reference.h"

#include <math.h>

/* All rows are there, and 0. */
static void open_zero(worst_input *in, const char *k, const char *v, uint32_t d_k, uint32_t d_v,
                      uint32_t n_tokens)
{
    worst_open(in, k, v, d_k, d_v, n_tokens, NULL);
    in->terms.scale = 1;
    in->terms.sink = -INFINITY;
    worst_begin(in);
    for (uint32_t t = 0; t < n_tokens; t++)
        for (uint32_t side = 0; side < 2; side++) worst_change(in, side, t);
}

static void put_largest(worst_input *in, uint32_t side, uint32_t t, uint16_t scale)
{
    const quire_coder *coder = &in->side[side].format->coder;
    quire_coded_row *row = worst_change(in, side, t);
    for (uint32_t g = 0; g < coder->n_groups; g++) row->scale[g] = scale;
    for (uint32_t c = 0; c < coder->d; c++) row->code[c] = (uint8_t)((1u << coder->codec->info.bits) - 1);
}

static void end(worst_input *in, const char *what)
{
    worst_result r = worst_measure(in);
    worst_close(in);
    if (!(r.by_bound <= 1 && r.by_lse <= 1))
        fail_msg("%s: %s: the error is %g of what is allowed, that of log-sum-exp %g", quire_isa_in_use(),
                 what, r.by_bound, r.by_lse);
}

/* One token of value 0 has the weight; behind it are tiles of the smallest scale, whose units are no normal numbers. */
static void far_tiles(worst_input *in, const char *v, uint32_t d)
{
    open_zero(in, "f32", v, 16, d, 320);
    in->terms.has_mask = true;
    for (uint32_t t = 1; t < 320; t++) {
        in->terms.mask[t] = t < 64 ? -INFINITY : -60.5f;
        put_largest(in, QUIRE_V, t, 1);
    }
    end(in, "far tiles of small scales");
}

/* A query so small that its steps were not. */
static void tiny_query(worst_input *in)
{
    open_zero(in, "q8_0", "f32", 128, 16, 64);
    in->terms.scale = 1e22f;
    for (uint32_t c = 0; c < 128; c++) in->terms.q[c] = 3.0037e-29f;
    for (uint32_t t = 0; t < 64; t++) put_largest(in, QUIRE_K, t, 0x7bff);
    for (uint32_t c = 0; c < 128; c++) worst_change(in, QUIRE_K, 63)->code[c] = 128;
    end(in, "a tiny query");
}

void worst_known(void)
{
    static worst_input in;
    far_tiles(&in, "q8_0", 32);
    far_tiles(&in, "a8g64", 64);
    far_tiles(&in, "r4", 128);
    tiny_query(&in);
}
