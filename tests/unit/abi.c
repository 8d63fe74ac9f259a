/* SPDX-License-Identifier: MIT */
/* Sizes of the public structures on 64-bit machines. One that changes breaks programs that were compiled before: members are
 * added at the end, behind a version (QUIRE_OPTIONS), and this list and CHANGELOG.md say so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/quire.h"

#define SIZES(X)                \
    X(quire_allocator, 48)      \
    X(quire_executor, 24)       \
    X(quire_codec_info, 32)     \
    X(quire_counts, 24)         \
    X(quire_rows, 88)           \
    X(quire_rows_out, 88)       \
    X(quire_layer, 24)          \
    X(quire_geometry, 48)       \
    X(quire_rope, 16)           \
    X(quire_preset, 32)         \
    X(quire_plan_options, 40)   \
    X(quire_plan_layer, 64)     \
    X(quire_pool_options, 32)   \
    X(quire_pool_stats, 72)     \
    X(quire_seq_options, 16)    \
    X(quire_snapshot_info, 536) \
    X(quire_mask, 40)           \
    X(quire_attend_options, 40) \
    X(quire_format_options, 40) \
    X(quire_tile_ref, 56)       \
    X(quire_attend_job, 120)    \
    X(quire_workspace_stats, 16)

static void test_sizes(void **state)
{
    (void)state;
    if (sizeof(void *) != 8) skip();
#define X(type, size) \
    if (sizeof(type) != (size)) fail_msg("%s has %zu bytes, not %d", #type, sizeof(type), size);
    SIZES(X)
#undef X
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
