/* SPDX-License-Identifier: MIT */
/*
 * Huge OS pages in the memory of a pool: only regions of 2 MiB that pages in use own whole get one, resident memory stays within
 * what pages own plus one region, freed memory returns, failures and churn are not answered with more and more attempts.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "huge_scene.h"

#include <sys/prctl.h>
#include <sys/wait.h>

/* -------------------------------------------------------------------- tests */

static void only_whole_regions(void **state)
{
    (void)state;
    const size_t sizes[] = {64, 100 * KIB + 64, 300 * KIB, 2 * MIB, 5 * MIB + 4096};
    for (int k = 0; k < 5; k++) {
        scene *s = open_scene(sizes[k], fake);
        uint32_t n = sizes[k] == 64 ? 4000 : (uint32_t)(24 * MIB / s->c->stride);
        if (sizes[k] == 64)
            s->c->n_used_slots = (uint32_t)(HUGE / 64 - 2000); /* as if others had been taken */
        for (uint32_t i = 0; i < n; i++) {
            uint32_t before = n_asked;
            take(s);
            for (uint32_t j = before; j < n_asked; j++) {
                assert_int_equal((uintptr_t)asked[j] % HUGE, 0);
                if (sizes[k] != 64) assert_true(is_whole(s, asked[j]));
            }
        }
        /* Every region that became whole was asked for, at once. */
        if (sizes[k] != 64) assert_int_equal(n_asked, s->c->stride * n / HUGE);
        if (sizes[k] == 64) assert_int_equal(n_asked, 0);
        close_scene(s);
    }
}

static void regions_become_huge(void **state)
{
    (void)state;
    if (!has_huge_pages()) skip();
    const size_t sizes[] = {100 * KIB + 64, 300 * KIB, 5 * MIB + 4096};
    for (int k = 0; k < 3; k++) {
        scene *s = open_scene(sizes[k], NULL);
        uint32_t n = (uint32_t)(20 * MIB / s->c->stride);
        for (uint32_t i = 0; i < n; i++) {
            take(s);
            fill(s, i);
            has_regions(&s->pages, s->c->stride * (i + 1) / HUGE);
        }
        for (uint32_t i = 0; i < n; i++) assert_true(is_filled(s, i));
        /* What is accessible, and the rest: a process can have 65,530 mappings. */
        assert_in_range(smaps(s->c->memory, s->c->stride * s->c->n_slots, NULL), 1, 2);
        close_scene(s);
    }
}

/* Whatever is taken and freed in whatever order. */
static void resident_is_bounded(void **state)
{
    (void)state;
    const size_t sizes[] = {300 * KIB, 8 * MIB / 3 / 4096 * 4096, 2 * MIB};
    for (int k = 0; k < 3; k++) {
        scene *s = open_scene(sizes[k], NULL);
        uint32_t most = (uint32_t)(BUDGET / s->c->stride) * 3 / 4, random = 1;
        for (uint32_t i = 0; i < 600; i++) {
            random = random * 1664525u + 1013904223u;
            bool grows = (i / 120) % 2 == 0;
            if (s->n < most && (grows || (random >> 20) % 4 == 0)) {
                take(s);
                memset(s->page[s->n - 1]->data, 1, 4096 * ((random >> 8) % 8));
            } else if (s->n) {
                drop(s, (random >> 8) % s->n);
            }
            size_t now = rss(s->c);
            if (now > s->pages.resident + HUGE)
                fail_msg("pages of %zu bytes, step %u: %zu bytes are resident, the pool says %zu", sizes[k],
                         i, now, s->pages.resident);
        }
        close_scene(s);
    }
}

/* Pages that share OS pages: what the last of them leaves returns, too. */
static void shared_os_pages_return(void **state)
{
    (void)state;
    const size_t sizes[] = {5 * KIB, 36 * KIB + 64, 100 * KIB + 64};
    for (int k = 0; k < 3; k++)
        for (int is_backwards = 0; is_backwards < 2; is_backwards++) {
            scene *s = open_scene(sizes[k], fake);
            uint32_t most = (uint32_t)(20 * MIB / sizes[k]);
            s->pages.collapse = NULL; /* each page returns on its own */
            for (uint32_t i = 0; i < (most < 4096 ? most : 4096); i++) {
                take(s);
                fill(s, i);
            }
            uint32_t kept = s->n / 2; /* its neighbours return, it stays as it is */
            quire_page *page = s->page[kept];
            s->page[kept] = s->page[--s->n];
            while (s->n) drop(s, is_backwards ? s->n - 1 : 0);
            for (size_t b = 0; b < s->layout.bytes; b++) assert_int_equal(page->data[b], kept % 251 + 1);
            size_t n_resident = s->pages.resident / s->c->stride, now = rss(s->c);
            /* Each resident page may lie in two OS pages that it does not own. */
            if (now > s->pages.resident + n_resident * 2 * s->pages.os_page)
                fail_msg("pages of %zu bytes: %zu bytes are resident, the pool says %zu", sizes[k], now,
                         s->pages.resident);
            quire_page_drop(&s->pages, page);
            close_scene(s);
        }
}

/* Whether the OS page belongs to a huge page, for who may look; else -1. */
static int belongs_to_huge(const void *at)
{
    uint64_t entry = 0, flags = 0;
    FILE *map = fopen("/proc/self/pagemap", "rb"), *kernel = fopen("/proc/kpageflags", "rb");
    bool ok = map && kernel && !fseek(map, (long)((uintptr_t)at / 4096 * 8), SEEK_SET) &&
              fread(&entry, 8, 1, map) == 1 && (entry & (((uint64_t)1 << 55) - 1)) &&
              !fseek(kernel, (long)((entry & (((uint64_t)1 << 55) - 1)) * 8), SEEK_SET) &&
              fread(&flags, 8, 1, kernel) == 1;
    if (map) fclose(map);
    if (kernel) fclose(kernel);
    return ok ? (int)(flags >> 22 & 1) : -1; /* KPF_THP */
}

static void freed_memory_returns(void **state)
{
    (void)state;
    if (!has_huge_pages()) skip();
    scene *s = open_scene(256 * KIB, NULL); /* eight in a region */
    for (uint32_t i = 0; i < 64; i++) {
        take(s);
        fill(s, i);
    }
    has_regions(&s->pages, 8);
    /* One page of each region stays. 2 MiB may be kept for reuse, and one region waits. */
    for (uint32_t i = 64; i-- > 0;)
        if (i % 8) drop(s, i);
    assert_true(rss(s->c) <= 8 * 256 * KIB + BUDGET / 32 + HUGE);
    assert_true(huge(s->c) <= 2 * HUGE);
    /* Not only unmapped: what remains of a region is no longer one huge page, which the system would keep. */
    uint32_t n_huge = 0;
    for (uint32_t i = 0; i < s->n; i++) n_huge += belongs_to_huge(s->page[i]->data) == 1;
    assert_true(n_huge <= 2);
    /* A region that is free as a whole returns as a whole. */
    while (s->n) drop(s, 0);
    assert_true(rss(s->c) <= BUDGET / 32 + HUGE);
    /* Whole again, huge again: they were empty. */
    uint64_t before = s->pages.n_huge;
    for (uint32_t i = 0; i < 64; i++) take(s);
    if (!n_refused) assert_true(s->pages.n_huge >= before + 7);
    if (!n_refused) assert_true(huge(s->c) >= 7 * HUGE);
    close_scene(s);
}

static void churn_is_not_followed(void **state)
{
    (void)state;
    scene *s = open_scene(256 * KIB, fake);
    for (uint32_t i = 0; i < 32; i++) take(s);
    assert_int_equal(n_asked, 4);
    /* Half of the pages come and go, but the first of each region stays. */
    for (uint32_t k = 0; k < 640; k++) {
        for (uint32_t i = s->n; i-- > 0;)
            if ((size_t)(s->page[i]->data - s->c->memory) % HUGE && (i + k) % 4) drop(s, i);
        while (s->n < 32) take(s);
    }
    assert_in_range(n_asked, 8, 4 * (1 + 6 + 640 / 64));
    close_scene(s);
}

static void failures_are_remembered(void **state)
{
    (void)state;
    scene *s = open_scene(2 * MIB, fake); /* each page is a region */
    answer = ENOMEM;
    for (uint32_t i = 0; i < 31; i++) take(s);
    assert_in_range(n_asked, 2, 5); /* regions 0, 3, 8, 17 */
    close_scene(s);

    s = open_scene(2 * MIB, fake);
    take(s);
    answer = EAGAIN;
    take(s);
    answer = 0; /* after the pause it works, and goes on working */
    for (uint32_t i = 2; i < 31; i++) take(s);
    assert_int_equal(n_asked, 31 - 2);
    close_scene(s);

    s = open_scene(2 * MIB, fake); /* an old system */
    answer = EINVAL;
    for (uint32_t i = 0; i < 31; i++) take(s);
    assert_int_equal(n_asked, 1);
    assert_null(s->pages.collapse);
    for (uint32_t i = 0; i < 31; i++) fill(s, i);
    for (uint32_t i = 0; i < 31; i++) assert_true(is_filled(s, i));
    close_scene(s);
}

/* All pages of the region, or all but the last ones, are freed while the system works on it. The first pages that are freed are
 * kept for reuse; they lie elsewhere. */
static scene *meanwhile;
static uint32_t n_left;

static int collapse_and_drop(void *region, size_t os_page)
{
    scene *s = meanwhile;
    if (!s)
        return 0; /* a system that refuses or is slow here would not be asked for the region that the test is about */
    for (uint32_t i = 0; i < s->n - n_left; i++) quire_page_drop(&s->pages, s->page[i]);
    memmove(s->page, s->page + s->n - n_left, sizeof *s->page * n_left);
    s->n = n_left;
    return quire_memory_collapse(region, os_page);
}

static void freed_meanwhile(void **state)
{
    (void)state;
    for (n_left = 0; n_left < 3; n_left++) {
        scene *s = open_scene(512 * KIB, collapse_and_drop);
        for (uint32_t i = 0; i < 15; i++) {
            take(s);
            memset(s->page[i]->data, 5, 512 * KIB);
        }
        meanwhile = s;
        take(s);
        meanwhile = NULL;
        assert_int_equal(s->n, n_left);
        for (size_t k = 0; n_left == 2 && k < 512 * KIB; k++) assert_int_equal(s->page[0]->data[k], 5);
        if (rss(s->c) > s->pages.resident) fail_msg("%zu bytes are resident", rss(s->c));
        close_scene(s);
    }
}

static void *own_reserve(void *ctx, size_t bytes)
{
    (void)ctx;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void own_release(void *ctx, void *p, size_t bytes)
{
    (void)ctx;
    munmap(p, bytes);
}

static void own_discard(void *ctx, void *p, size_t bytes)
{
    (void)ctx;
    madvise(p, bytes, MADV_DONTNEED);
}

static void own_memory_is_left_alone(void **state)
{
    (void)state;
    quire_allocator own = {sizeof own, .reserve = own_reserve, .release = own_release,
                           .discard = own_discard};
    quire_allocator a;
    quire_pages pages;
    quire_page_layout layout = {.bytes = 2 * MIB};
    quire_page *page[20];
    assert_int_equal(quire_allocator_read(&a, &own), QUIRE_OK);
    assert_int_equal(quire_pages_init(&pages, &a, BUDGET), QUIRE_OK);
    assert_null(pages.collapse);
    pages.collapse = fake; /* even then */
    n_asked = 0;
    assert_int_equal(quire_pages_add(&pages, &layout), QUIRE_OK);
    for (int i = 0; i < 20; i++) {
        page[i] = quire_page_take(&pages, &layout);
        assert_non_null(page[i]);
        quire_pages_settle(&pages);
    }
    quire_pages_populate(&pages, page, 16);
    assert_int_equal(n_asked, 0);
    for (int i = 0; i < 20; i++) quire_page_drop(&pages, page[i]);
    quire_pages_fini(&pages);
}

/* A process that refuses huge pages for itself: the pool works without. */
static void refused_by_the_process(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        KIT_REQUIRE(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
        scene *s = open_scene(512 * KIB, NULL);
        for (uint32_t i = 0; i < 40; i++) {
            take(s);
            fill(s, i);
            KIT_REQUIRE(huge(s->c) == 0);
        }
        for (uint32_t i = 0; i < 40; i++) KIT_REQUIRE(is_filled(s, i));
        KIT_REQUIRE(s->pages.n_asked <= 1 && !s->pages.collapse);
        close_scene(s);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---------------------------------------------------------------- sequences */

static void of_sequences(void **state)
{
    (void)state;
    quire_geometry g = {sizeof(quire_geometry), .n_layers = 4, .n_q_heads = 8,
                        .n_kv_heads = 8,        .d_k = 64,     .d_v = 64};
    quire_plan *plan = kit_plan(&g, "f16", NULL);
    quire_allocator own = {sizeof own, .reserve = own_reserve, .release = own_release,
                           .discard = own_discard};
    quire_pool *pool = kit_pool(plan, BUDGET, NULL), *plain = kit_pool(plan, BUDGET, &own);
    quire_seq *a = kit_seq(pool, 0, 0, 0), *b = kit_seq(pool, 0, 0, 0), *expected = kit_seq(plain, 0, 0, 0);
    const quire_page_class *c = pool->pages.classes;
    n_refused = 0;
    if (pool->pages.collapse) pool->pages.collapse = watched;
    /* Two sequences grow in turn, so that their pages share regions. */
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(kit_append(pool, &g, a, 64, 5), QUIRE_OK);
        assert_int_equal(kit_append(pool, &g, b, 64, 6), QUIRE_OK);
        assert_int_equal(kit_append(plain, &g, expected, 64, 5), QUIRE_OK);
    }
    assert_int_equal(c->stride, 512 * KIB);
    if (has_huge_pages()) has_regions(&pool->pages, 10);
    quire_seq_destroy(b);
    assert_true(rss(c) <= pool->pages.resident + HUGE);
    assert_true(kit_rows_hash(&g, a) == kit_rows_hash(&g, expected));
    /* Who comes next fills the regions again, and behind them a few more. */
    b = kit_seq(pool, 0, 0, 0);
    assert_int_equal(kit_append(pool, &g, b, 30 * 64, 7), QUIRE_OK);
    assert_true(rss(c) <= pool->pages.resident + HUGE);
    assert_true(kit_rows_hash(&g, a) == kit_rows_hash(&g, expected));
    quire_seq_destroy(a);
    quire_seq_destroy(b);
    quire_seq_destroy(expected);
    kit_pool_is_empty(pool);
    quire_pool_destroy(pool);
    quire_pool_destroy(plain);
    quire_plan_destroy(plan);
}

/* ------------------------------------------------------------------ threads */

typedef struct player {
    quire_pages *pages;
    const quire_page_layout *layout;
    uint32_t seed;
    bool ok;
} player;

static void *play(void *arg)
{
    player *p = arg;
    quire_page *page[24] = {0};
    uint32_t random = p->seed;
    p->ok = true;
    for (uint32_t k = 0; k < 1500; k++) {
        random = random * 1664525u + 1013904223u;
        quire_page **at = &page[(random >> 16) % 24];
        uint32_t *word = *at ? (uint32_t *)(void *)(*at)->data : NULL;
        size_t last = p->layout->bytes / 4 - 1;
        if (*at) {
            p->ok = p->ok && word[0] == p->seed && word[last / 2] == p->seed && word[last] == p->seed;
            quire_page_drop(p->pages, *at);
            *at = NULL;
        } else if ((*at = quire_page_take(p->pages, p->layout))) {
            quire_pages_settle(p->pages);
            word = (uint32_t *)(void *)(*at)->data;
            p->ok = p->ok && !word[0] && !word[last / 2] && !word[last];
            word[0] = word[last / 2] = word[last] = p->seed;
        }
    }
    for (int i = 0; i < 24; i++) quire_page_drop(p->pages, page[i]);
    return NULL;
}

static void by_threads(void **state)
{
    (void)state;
    scene *s = open_scene(500 * KIB, NULL);
    pthread_t thread[4];
    player players[4];
    for (uint32_t i = 0; i < 4; i++) {
        players[i].pages = &s->pages;
        players[i].layout = &s->layout;
        players[i].seed = i + 1;
        assert_int_equal(pthread_create(&thread[i], NULL, play, &players[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_true(players[i].ok);
    }
    assert_int_equal(s->pages.n_pages, 0);
    assert_true(rss(s->c) <= s->pages.resident + HUGE);
    for (uint32_t r = 0; r < s->c->n_regions; r++) assert_int_equal(s->c->region[r].n_live, 0);
    close_scene(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_whole_regions),
        cmocka_unit_test(regions_become_huge),
        cmocka_unit_test(resident_is_bounded),
        cmocka_unit_test(shared_os_pages_return),
        cmocka_unit_test(freed_memory_returns),
        cmocka_unit_test(churn_is_not_followed),
        cmocka_unit_test(failures_are_remembered),
        cmocka_unit_test(freed_meanwhile),
        cmocka_unit_test(own_memory_is_left_alone),
        cmocka_unit_test(refused_by_the_process),
        cmocka_unit_test(of_sequences),
        cmocka_unit_test(by_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
