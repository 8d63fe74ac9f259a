/* SPDX-License-Identifier: MIT */
/* Pages of one class, what the system says about their memory, and a collapse that only counts. For huge_pages.c. */
#ifndef QUIRE_TESTS_UNIT_HUGE_SCENE_H
#define QUIRE_TESTS_UNIT_HUGE_SCENE_H

#include "cache/cache.h"
#include "core/reserve.h"
#include "support/cache_kit.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)
#define HUGE QUIRE_HUGE_PAGE
#define BUDGET (64 * MIB)

/* ------------------------------------------------------------------- system */

/* A number of /proc/self/smaps, summed over the mappings in a range, in bytes; NULL: how many mappings there are. */
static size_t smaps(const void *memory, size_t bytes, const char *key)
{
    uintptr_t first = (uintptr_t)memory, last = first + bytes;
    char line[512];
    size_t sum = 0, n = key ? strlen(key) : 0;
    bool is_inside = false;
    FILE *file = fopen("/proc/self/smaps", "r");
    KIT_REQUIRE(file);
    while (fgets(line, sizeof line, file)) {
        unsigned long begin, end, kib;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            is_inside = begin < last && end > first, sum += !key && is_inside;
        else if (key && is_inside && strncmp(line, key, n) == 0 && sscanf(line + n, ": %lu", &kib) == 1)
            sum += kib * KIB;
    }
    fclose(file);
    return sum;
}

static size_t rss(const quire_page_class *c)
{
    return smaps(c->memory, c->stride * c->n_slots, "Rss");
}

static size_t huge(const quire_page_class *c)
{
    return smaps(c->memory, c->stride * c->n_slots, "AnonHugePages");
}

/* Without it, what can be seen only with huge pages is not looked at. */
static bool has_huge_pages(void)
{
    static int known = -1;
    if (known >= 0) return known;
    uint8_t *base = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KIT_REQUIRE(base != MAP_FAILED);
    int error = quire_memory_collapse(base + (HUGE - (uintptr_t)base % HUGE) % HUGE, 4096);
    munmap(base, 2 * HUGE);
    known = !error && quire_huge_is_allowed(QUIRE_HUGE_SETTINGS);
    if (!known)
        printf("skipped: no huge pages here (%s; settings say %s)\n", strerror(error),
               quire_huge_is_allowed(QUIRE_HUGE_SETTINGS) ? "yes" : "never");
    return known;
}

/* The system's own collapse. It may refuse a region, or take so long that the pool leaves the next ones as they are: how many there
 * are can then not be said. */
static _Atomic uint32_t n_refused;

static int watched(void *region, size_t os_page)
{
    struct timespec start, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    int error = quire_memory_collapse(region, os_page);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    n_refused += error || seconds > 0.01; /* the pool's limit is 0.02 */
    return error;
}

/* All that the system gave are there. */
static void has_regions(const quire_pages *pages, uint64_t expected)
{
    assert_int_equal(huge(pages->classes), pages->n_huge * HUGE);
    assert_in_range(pages->n_huge, n_refused ? 0 : expected, expected);
}

/* -------------------------------------------------------------------- pages */

typedef struct scene {
    quire_pages pages;
    quire_page_layout layout;
    quire_page_class *c;
    quire_page *page[4096];
    uint32_t n;
} scene;

static void *asked[1024];
static uint32_t n_asked;
static int answer;

static int fake(void *region, size_t os_page)
{
    KIT_REQUIRE(os_page && n_asked < 1024);
    asked[n_asked++] = region;
    return answer;
}

static scene *open_scene(size_t page_bytes, quire_collapse_fn *collapse)
{
    scene *s = calloc(1, sizeof *s);
    quire_allocator a;
    KIT_REQUIRE(s && !quire_allocator_read(&a, NULL) && !quire_pages_init(&s->pages, &a, BUDGET));
    s->pages.collapse = collapse ? collapse : s->pages.collapse ? watched : NULL;
    s->layout.bytes = page_bytes;
    KIT_REQUIRE(!quire_pages_add(&s->pages, &s->layout));
    s->c = s->pages.classes;
    n_asked = 0;
    n_refused = 0;
    answer = 0;
    return s;
}

static void take(scene *s)
{
    quire_page *page = quire_page_take(&s->pages, &s->layout);
    KIT_REQUIRE(page && s->n < 4096);
    s->page[s->n++] = page;
    quire_pages_settle(&s->pages);
}

static void fill(scene *s, uint32_t i)
{
    memset(s->page[i]->data, (int)(i % 251 + 1), s->layout.bytes);
}

static bool is_filled(const scene *s, uint32_t i)
{
    const uint8_t *b = s->page[i]->data;
    for (size_t k = 0; k < s->layout.bytes; k++)
        if (b[k] != i % 251 + 1) return false;
    return true;
}

/* Takes the i-th page out of the list, in exchange for the last. */
static void drop(scene *s, uint32_t i)
{
    quire_page *page = s->page[i];
    s->page[i] = s->page[--s->n];
    quire_page_drop(&s->pages, page);
}

static void close_scene(scene *s)
{
    while (s->n) drop(s, s->n - 1);
    quire_pages_fini(&s->pages);
    free(s);
}

static bool is_whole(const scene *s, const uint8_t *region)
{
    size_t owned = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const uint8_t *begin = s->page[i]->data, *end = begin + s->c->stride;
        if (begin < region) begin = region;
        if (end > region + HUGE) end = region + HUGE;
        if (begin < end) owned += (size_t)(end - begin);
    }
    return owned == HUGE;
}

#endif
