/* SPDX-License-Identifier: MIT */
/* Pages of a pool on OS pages of 4, 16 and 64 KiB: what is given back to the system is whole OS pages in which nobody's page lies, and all
 * of them; and the two ways of giving back. Under qemu with 16 KiB this is what macOS does (tests/CMakeLists.txt). */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/system.h"
#include "page/page.h"
#include "support/cache_kit.h"

#include <sys/mman.h>
#include <unistd.h>

#define KIB ((size_t)1024)
#define N_PAGES 96
#define STEPS 1600

static uint64_t random_state = 1;
static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* --------------------------------------------- an allocator that watches */

typedef struct watch {
    size_t os_page;
    size_t discarded;
    bool is_lazy; /* some of the memory that was given back still has its old bytes, as with MADV_FREE */
} watch;

static void *watch_reserve(void *ctx, size_t bytes)
{
    const watch *w = (const watch *)ctx;
    void *ptr = NULL;
    KIT_REQUIRE(!posix_memalign(&ptr, w->os_page, bytes + w->os_page));
    memset(ptr, 0, bytes);
    return ptr;
}

static void watch_release(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(ptr);
}

static void watch_discard(void *ctx, void *ptr, size_t bytes)
{
    watch *w = (watch *)ctx;
    KIT_REQUIRE(bytes && bytes % w->os_page == 0 && (uintptr_t)ptr % w->os_page == 0);
    for (size_t at = 0; at < bytes; at += w->os_page)
        if (!w->is_lazy || random_below(2)) memset((uint8_t *)ptr + at, 0, w->os_page);
    w->discarded += bytes;
}

/* ------------------------------------------------------------------- pages */

static void fill(const quire_page *page, uint8_t byte)
{
    memset(page->data, byte, page->layout->bytes);
}

static void require_all(const quire_page *page, uint8_t byte)
{
    KIT_REQUIRE(page->data[0] == byte && !memcmp(page->data, page->data + 1, page->layout->bytes - 1));
}

/* Pages of two sizes are taken and dropped in any order. Each keeps its bytes as long as it is held and begins with zeros. */
static void take_and_drop(size_t os_page, size_t small, size_t large, bool is_lazy)
{
    watch w = {.os_page = os_page, .is_lazy = is_lazy};
    quire_allocator given = {.size = sizeof given,
                             .ctx = &w,
                             .reserve = watch_reserve,
                             .release = watch_release,
                             .discard = watch_discard};
    quire_allocator allocator;
    quire_pages pages;
    quire_page_layout layout[2] = {{.bytes = small}, {.bytes = large}};
    quire_page *held[N_PAGES] = {0};
    KIT_REQUIRE(!quire_allocator_read(&allocator, &given));
    KIT_REQUIRE(!quire_pages_init(&pages, &allocator, N_PAGES * (small + large)));
    pages.os_page = os_page;
    for (int i = 0; i < 2; i++) KIT_REQUIRE(!quire_pages_add(&pages, &layout[i]));
    for (uint32_t step = 0; step < STEPS; step++) {
        /* Waves: mostly taken, then mostly dropped, so that OS pages become empty. */
        bool is_taking = random_below(8) ? step / 200 % 2 == 0 : step / 200 % 2;
        uint32_t i = random_below(N_PAGES);
        if (held[i]) require_all(held[i], (uint8_t)(i + 1));
        if (is_taking && !held[i]) {
            held[i] = quire_page_take(&pages, &layout[random_below(2)]);
            KIT_REQUIRE(held[i]);
            require_all(held[i], 0);
            fill(held[i], (uint8_t)(i + 1));
        } else if (!is_taking && held[i]) {
            quire_page_drop(&pages, held[i]);
            held[i] = NULL;
        }
    }
    for (uint32_t i = 0; i < N_PAGES; i++) {
        if (held[i]) require_all(held[i], (uint8_t)(i + 1));
        quire_page_drop(&pages, held[i]);
    }
    KIT_REQUIRE(w.discarded);
    quire_pages_fini(&pages);
}

static void every_size(void **state)
{
    (void)state;
    const size_t os_page[] = {4 * KIB, 16 * KIB, 64 * KIB, (size_t)sysconf(_SC_PAGESIZE)};
    /* Many in an OS page, one and a bit, many OS pages; the last is above the size from which strides are rounded to 4 KiB. */
    const size_t bytes[][2] = {{192, 4160}, {4096, 20544}, {16384, 65536}, {36928, 262208}};
    for (size_t o = 0; o < sizeof os_page / sizeof os_page[0]; o++)
        for (size_t b = 0; b < sizeof bytes / sizeof bytes[0]; b++)
            if (N_PAGES * bytes[b][0] > 8 * os_page[o]) /* otherwise no OS page ever becomes empty for sure */
                for (int is_lazy = 0; is_lazy < 2; is_lazy++)
                    take_and_drop(os_page[o], bytes[b][0], bytes[b][1], is_lazy);
}

/* ------------------------------------------------------------------ system */

static bool is_resident(void *page)
{
    unsigned char is = 0;
    KIT_REQUIRE(!mincore(page, 1, &is));
    return is & 1;
}

/* Linux uses the first way and macOS the second; both must do what the header says. */
static void given_back(void **state)
{
    (void)state;
    void (*const ways[])(void *, size_t) = {quire_system_discard, quire_system_map_anew};
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = 8;
    for (int way = 0; way < 2; way++) {
        uint8_t *base =
            (uint8_t *)mmap(NULL, n * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        KIT_REQUIRE(base != MAP_FAILED);
        memset(base, 1, n * page);
        for (size_t i = 0; i < n; i++) KIT_REQUIRE(is_resident(base + i * page));
        ways[way](base + 2 * page, 3 * page);
        for (size_t i = 0; i < n; i++) KIT_REQUIRE(is_resident(base + i * page) == (i < 2 || i >= 5));
        for (size_t i = 0; i < n * page; i++) KIT_REQUIRE(base[i] == (i < 2 * page || i >= 5 * page));
        memset(base, 2, n * page); /* still writable */
        KIT_REQUIRE(!munmap(base, n * page));
    }
}

/* Under an emulator that was asked for another size. */
static void size_as_asked(void **state)
{
    (void)state;
    const char *asked = getenv("QUIRE_OS_PAGE");
    if (asked) assert_int_equal(sysconf(_SC_PAGESIZE), atol(asked));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size),
        cmocka_unit_test(given_back),
        cmocka_unit_test(size_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
