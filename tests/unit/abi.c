/* SPDX-License-Identifier: MIT */
/* Sizes of the public structures on 64-bit machines. One that changes breaks programs that were compiled before: members are
 * added at the end, and this list, abi/ (scripts/abi --update) and CHANGELOG.md say so. None gets smaller while the library is 0.2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "quire/page.h"
#include "quire/store.h"

#define SIZES(X)                     \
    X(quire_allocator, 56)           \
    X(quire_executor, 32)            \
    X(quire_log, 24)                 \
    X(quire_codec_info, 40)          \
    X(quire_counts, 32)              \
    X(quire_rows, 96)                \
    X(quire_rows_out, 96)            \
    X(quire_layer, 24)               \
    X(quire_geometry, 56)            \
    X(quire_rope, 24)                \
    X(quire_preset, 40)              \
    X(quire_plan_options, 40)        \
    X(quire_plan_layer, 96)          \
    X(quire_tile_format_options, 40) \
    X(quire_tile_ref, 56)            \
    X(quire_paged_memory, 120)       \
    X(quire_block_table, 48)         \
    X(quire_mask, 48)                \
    X(quire_attend_options, 64)      \
    X(quire_workspace_stats, 24)     \
    X(quire_attend_job, 152)         \
    X(quire_scatter_rows, 56)        \
    X(quire_pool_options, 32)        \
    X(quire_pool_stats, 80)          \
    X(quire_seq_options, 24)         \
    X(quire_snapshot_info, 544)      \
    X(quire_step_queries, 104)       \
    X(quire_page_info, 24)           \
    X(quire_store_remote, 104)       \
    X(quire_store_options, 112)      \
    X(quire_store_stats, 776)        \
    X(quire_identity, 72)            \
    X(quire_media, 36)               \
    X(quire_prompt, 40)              \
    X(quire_object_info, 184)        \
    X(quire_store_times, 544)        \
    X(quire_namespace_stats, 656)    \
    X(quire_namespace_usage, 224)    \
    X(quire_store_selection, 40)

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
