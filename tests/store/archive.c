/* SPDX-License-Identifier: MIT */
/* Exports that are cut, that have bytes behind their end, or whose bytes were changed: quire store import refuses them in a sentence, or
 * says how many objects it left out. What it stores is what was exported. The commands run in this process. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/raw_kit.h"
#include "store/options.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGES = 2, HEAD = 16, LENGTH = 8 };
#define TEXT 1u

/* A file of quire store export. Record i, a length and an object, lies from at[i] to at[i + 1]. */
typedef struct exported {
    uint8_t *bytes;
    size_t n, at[PAGES + 1], page_bytes;
    uint32_t n_pages;
    char *dir; /* of the file that is imported */
} exported;

/* ----------------------------------------------------------------- commands */

#define SAID 1000

/* One command; what it prints is in said. */
static int run(int (*command)(int argc, char **argv), char **argv, char said[SAID])
{
    static FILE *file;
    int argc = 0, own[2];
    if (!file) file = tmpfile();
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), 0), 0);
    assert_int_equal(lseek(fileno(file), 0, SEEK_SET), 0);
    for (int i = 0; i < 2; i++) {
        fflush(i ? stderr : stdout);
        own[i] = dup(i + 1);
        assert_true(own[i] >= 0 && dup2(fileno(file), i + 1) >= 0);
    }
    while (argv[argc]) argc++;
    int code = command(argc, argv);
    for (int i = 0; i < 2; i++) {
        fflush(i ? stderr : stdout);
        assert_true(dup2(own[i], i + 1) >= 0 && close(own[i]) == 0);
    }
    ssize_t n = pread(fileno(file), said, SAID - 1, 0);
    assert_true(n >= 0);
    said[n] = 0;
    return code;
}

static char *file_of(const exported *e)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/pages.quire", e->dir);
    return path;
}

static void read_file(exported *e)
{
    struct stat st;
    FILE *f = fopen(file_of(e), "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    e->n = (size_t)st.st_size;
    e->bytes = (uint8_t *)malloc(e->n);
    assert_non_null(e->bytes);
    assert_int_equal(fread(e->bytes, 1, e->n, f), e->n);
    fclose(f);
}

static void export_begin(exported *e, uint32_t n_pages, size_t page_bytes)
{
    char command[] = "export", option[] = "--dir", *dir = kit_directory(NULL), said[SAID];
    kit_raw raw;
    *e = (exported){.n_pages = n_pages, .page_bytes = page_bytes, .dir = kit_directory(NULL)};
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw_begin(&raw, store, page_bytes);
    kit_raw_save(&raw, TEXT, n_pages);
    kit_raw_end(&raw);
    quire_store_close(store);
    char *argv[] = {command, option, dir, file_of(e), NULL};
    assert_int_equal(run(store_export, argv, said), 0);
    read_file(e);
    size_t at = HEAD;
    for (uint32_t i = 0; i < n_pages; i++) {
        uint64_t n = 0;
        e->at[i] = at;
        assert_true(at + LENGTH <= e->n);
        for (int b = LENGTH; b--;) n = n << 8 | e->bytes[at + (size_t)b];
        at += LENGTH + (size_t)n;
    }
    e->at[n_pages] = at;
    assert_int_equal(at, e->n);
    kit_remove(dir);
}

static void export_end(exported *e)
{
    kit_remove(e->dir);
    free(e->bytes);
}

typedef struct imported {
    int code;
    unsigned objects, left_out; /* if the code is 0 */
    char said[SAID];
} imported;

static imported import(const exported *e, const char *dir, const void *bytes, size_t n)
{
    char command[] = "import", to[] = "--dir", cap[] = "--cap", cap_bytes[] = "64M", json[] = "--json";
    imported r = {0};
    FILE *f = fopen(file_of(e), "wb");
    assert_non_null(f);
    assert_true(fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    char *argv[] = {command, to, (char *)(uintptr_t)dir, cap, cap_bytes, file_of(e), json, NULL};
    r.code = run(store_import, argv, r.said);
    if (!r.code)
        assert_int_equal(sscanf(r.said, "{\"objects\":%u,\"left_out\":%u,", &r.objects, &r.left_out), 2);
    return r;
}

static void expect_refusal(const imported *r, const char *what, size_t at)
{
    bool has_reason = strstr(r->said, "ends in the middle") || strstr(r->said, "is damaged") ||
                      strstr(r->said, "was not written by");
    if (r->code != 1 || !has_reason) fail_msg("%s %zu: status %d: %s", what, at, r->code, r->said);
}

/* --------------------------------------------------------------- what is there */

typedef struct found {
    const exported *exported;
    uint32_t records; /* a bit for each */
} found;

static quire_status look(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    found *f = (found *)ctx;
    const exported *e = f->exported;
    assert_int_equal(info->damage, QUIRE_MISS_NONE);
    for (uint32_t i = 0; i < e->n_pages; i++)
        if (e->at[i] + LENGTH + n == e->at[i + 1] && !memcmp(e->bytes + e->at[i] + LENGTH, bytes, n)) {
            assert_false(f->records >> i & 1);
            f->records |= 1u << i;
            return QUIRE_OK;
        }
    fail_msg("an object of %zu bytes was not in the export", n);
    return QUIRE_EIO;
}

/* The records whose objects the directory has; it has nothing else. All of them load. */
static uint32_t records_in(const exported *e, const char *dir)
{
    found f = {.exported = e};
    kit_raw raw;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    assert_int_equal(quire_store_each(store, 1, look, &f), QUIRE_OK);
    kit_raw_begin(&raw, store, e->page_bytes);
    uint32_t n = kit_raw_load(&raw, TEXT, e->n_pages, 10000);
    assert_true((n == e->n_pages) == (f.records == (1u << e->n_pages) - 1));
    kit_raw_end(&raw);
    quire_store_close(store);
    return f.records;
}

/* -------------------------------------------------------------------- cases */

/* One directory for all lengths: it never has more than the records that were whole so far. A file that ends behind a record cannot be
 * told from an export of fewer objects. */
static void cut_anywhere(void **state)
{
    (void)state;
    exported e;
    export_begin(&e, PAGES, 16);
    char *dir = kit_directory(NULL);
    uint32_t n_whole = 0;
    for (size_t n = 0; n <= e.n; n++) {
        bool is_whole = n == HEAD || (n_whole < PAGES && n == e.at[n_whole + 1]);
        imported r = import(&e, dir, e.bytes, n);
        if (is_whole) {
            n_whole += n > HEAD;
            if (r.code || r.objects != n_whole || r.left_out)
                fail_msg("cut at %zu: status %d: %s", n, r.code, r.said);
        } else {
            expect_refusal(&r, "cut at", n);
            assert_non_null(strstr(r.said, n < HEAD ? "was not written by" : "ends in the middle"));
        }
        if (is_whole || n + 1 == e.at[n_whole + (n_whole < PAGES)])
            assert_int_equal(records_in(&e, dir), (1u << n_whole) - 1);
    }
    assert_int_equal(n_whole, PAGES);
    kit_remove(dir);
    export_end(&e);
}

/* What came before the cut is stored. */
static void before_the_cut(void **state)
{
    (void)state;
    static const size_t behind[] = {1, 7, LENGTH, 150};
    exported e;
    export_begin(&e, PAGES, 16);
    for (uint32_t i = 0; i < PAGES; i++)
        for (size_t k = 0; k < sizeof behind / sizeof *behind; k++) {
            char *dir = kit_directory(NULL);
            imported r = import(&e, dir, e.bytes, e.at[i] + behind[k]);
            expect_refusal(&r, "cut at", e.at[i] + behind[k]);
            assert_int_equal(records_in(&e, dir), (1u << i) - 1);
            kit_remove(dir);
        }
    export_end(&e);
}

static void bytes_behind(void **state)
{
    (void)state;
    static const uint8_t tails[][16] = {
        {0},
        {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
        {208, 0, 0, 0, 0, 0, 0, 0, 'Q', 'U', 'I', 'R', 'E', 'P', 'G', 0},
        {8, 0, 0, 0, 0, 0, 0, 0, 'Q', 'U', 'I', 'R', 'E', 'P', 'G', 0},
        "QUIRE PAGES 1\n\n",
    };
    exported e;
    export_begin(&e, PAGES, 16);
    char *dir = kit_directory(NULL);
    uint8_t *bytes = (uint8_t *)malloc(e.n + 16);
    assert_non_null(bytes);
    memcpy(bytes, e.bytes, e.n);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        memcpy(bytes + e.n, tails[i], 16);
        for (size_t more = 1; more <= 16; more++) {
            imported r = import(&e, dir, bytes, e.n + more);
            expect_refusal(&r, "appended", more);
        }
        assert_int_equal(records_in(&e, dir), (1u << PAGES) - 1);
    }
    free(bytes);
    kit_remove(dir);
    export_end(&e);
}

/* Bit `bit` of the byte at `at` is the other one. record: the one that it lies in. */
static void change(const exported *e, const char *dir, uint8_t *bytes, size_t at, uint32_t bit,
                   uint32_t record)
{
    bytes[at] ^= (uint8_t)(1u << bit);
    imported r = import(e, dir, bytes, e->n);
    bytes[at] ^= (uint8_t)(1u << bit);
    bool in_length = at < e->at[record] + LENGTH;
    if (in_length && r.code)
        expect_refusal(&r, "changed at", at);
    else if (r.code || r.left_out < 1 || (!in_length && r.objects != PAGES - 1))
        fail_msg("bit %u changed at %zu: status %d: %s", bit, at, r.code, r.said);
}

/* A directory for each record: whatever is changed in a record, nothing of it is stored. */
static void any_byte_changed(void **state)
{
    (void)state;
    exported e;
    export_begin(&e, PAGES, 16);
    uint8_t *bytes = (uint8_t *)malloc(e.n);
    char *dir = kit_directory(NULL);
    struct stat st;
    assert_non_null(bytes);
    memcpy(bytes, e.bytes, e.n);
    for (size_t at = 0; at < HEAD; at++) {
        bytes[at] ^= (uint8_t)(1u << at % 8);
        imported r = import(&e, dir, bytes, e.n);
        bytes[at] ^= (uint8_t)(1u << at % 8);
        expect_refusal(&r, "changed at", at);
    }
    char path[600];
    snprintf(path, sizeof path, "%s/quire-store", dir);
    assert_int_not_equal(stat(path, &st), 0); /* not even a store was made */
    kit_remove(dir);
    for (uint32_t i = 0; i < PAGES; i++) {
        dir = kit_directory(NULL);
        for (size_t at = e.at[i]; at < e.at[i + 1]; at++)
            for (uint32_t bit = 0; bit < 8; bit++)
                if (at < e.at[i] + LENGTH || bit == at % 8) change(&e, dir, bytes, at, bit, i);
        assert_int_equal(records_in(&e, dir), ((1u << PAGES) - 1) & ~(1u << i));
        kit_remove(dir);
    }
    free(bytes);
    export_end(&e);
}

/* An object that is read in several parts. */
static void large_object(void **state)
{
    (void)state;
    static const size_t parts[] = {1u << 20, 2u << 20};
    exported e;
    export_begin(&e, 1, (3u << 20) + 5);
    char *dir = kit_directory(NULL);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (size_t n = HEAD + LENGTH + parts[i] - 1; n <= HEAD + LENGTH + parts[i] + 1; n++) {
            imported r = import(&e, dir, e.bytes, n);
            expect_refusal(&r, "cut at", n);
        }
    imported r = import(&e, dir, e.bytes, e.n - 1);
    expect_refusal(&r, "cut at", e.n - 1);
    assert_int_equal(records_in(&e, dir), 0);
    r = import(&e, dir, e.bytes, e.n);
    assert_true(!r.code && r.objects == 1 && !r.left_out);
    assert_int_equal(records_in(&e, dir), 1);
    kit_remove(dir);
    export_end(&e);
}

/* A length of 8 GiB in a short file, with room for 2 GiB. */
static void length_without_bytes(void **state)
{
    (void)state;
    exported e;
    unsigned long long pages = 0;
    struct rlimit limit, own;
    export_begin(&e, 1, 16);
    char *dir = kit_directory(NULL);
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu", &pages), 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_AS, &own), 0);
    limit = own;
    limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (2u << 30);
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    e.bytes[HEAD + 4] = 2;
    imported r = import(&e, dir, e.bytes, e.n);
    assert_int_equal(setrlimit(RLIMIT_AS, &own), 0);
    expect_refusal(&r, "changed at", HEAD + 4);
    assert_non_null(strstr(r.said, "ends in the middle"));
    kit_remove(dir);
    export_end(&e);
}

/* What cannot be read is not an end. */
static void no_file(void **state)
{
    (void)state;
    char command[] = "import", to[] = "--dir", cap[] = "--cap", cap_bytes[] = "64M", said[SAID];
    char *dir = kit_directory(NULL);
    char *argv[] = {command, to, dir, cap, cap_bytes, dir, NULL};
    assert_int_equal(run(store_import, argv, said), 1);
    assert_non_null(strstr(said, "Is a directory"));
    kit_remove(dir);
}

int main(int argc, char **argv)
{
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_anywhere), cmocka_unit_test(before_the_cut),
        cmocka_unit_test(bytes_behind), cmocka_unit_test(any_byte_changed),
        cmocka_unit_test(large_object), cmocka_unit_test(length_without_bytes),
        cmocka_unit_test(no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
