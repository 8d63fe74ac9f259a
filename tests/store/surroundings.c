/* SPDX-License-Identifier: MIT */
/* What changes around a store: the clock, the name of its directory, slabs that other processes remove. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/disk_inside.h"
#include "store/kit/raw_kit.h"
#include "store/store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <unistd.h>

#define BYTES 200000u
#define PAGES 4u

static void save(quire_store *store, uint64_t first, uint64_t n)
{
    kit_raw raw;
    kit_raw_begin(&raw, store, BYTES);
    for (uint64_t t = first; t < first + n; t++) {
        kit_raw_save(&raw, t, PAGES);
        assert_int_equal(quire_store_flush(store, 20000), 0);
    }
    kit_raw_end(&raw);
}

static uint32_t load(quire_store *store, uint64_t first, uint64_t n)
{
    uint32_t pages = 0;
    kit_raw raw;
    kit_raw_begin(&raw, store, BYTES);
    for (uint64_t t = first; t < first + n; t++) pages += kit_raw_load(&raw, t, PAGES, 5000);
    kit_raw_end(&raw);
    return pages;
}

/* Pages were used when the clock was ten years ahead. They must not stay for these ten years, and new ones go at once. */
static void clock_goes_back(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[600];
    sqlite3 *db;
    quire_store *store = kit_open(dir, 32u << 20, NULL);
    save(store, 0, 60); /* full */
    quire_store_close(store);
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "UPDATE objects SET tick = tick + 315360000000000", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    store = kit_open(dir, 0, NULL);
    save(store, 100, 12);
    assert_int_equal(load(store, 100, 12), 12 * PAGES);
    quire_store_close(store);
    kit_remove(dir);
}

static int count_open(const quire_slabs *s)
{
    int n = 0;
    for (const quire_slab *slab = s->first; slab; slab = slab->next) n++;
    return n;
}

static int count_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* A process that read from slabs that another one has removed does not keep them open. */
static void removed_slabs_are_closed(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    quire_disk *d[1];
    quire_slabs other;
    quire_counters counters = {0};
    quire_allocator a = quire_mem_allocator(NULL);
    assert_int_equal(quire_disk_open(&d[0], dir, 32u << 20, &a, &counters, NULL, NULL, 0), 0);
    int n_files = count_files();
    quire_slabs_init(&other, &a, dir, d[0]->directory_fd); /* as another process has it */
    for (uint32_t id = 100; id < 200; id++) {
        quire_slab_give(&d[0]->slabs, quire_slab_create(&d[0]->slabs, id, d[0]->key));
        quire_slab *slab = quire_slab_take(&other, id);
        assert_non_null(slab);
        (void)quire_slab_open_cached(&other, slab);
        quire_slab_give(&other, slab);
        (void)quire_slab_remove(&d[0]->slabs, id);
    }
    assert_true(count_open(&other) <= 2);
    assert_true(count_files() <= n_files + 4); /* a slab has two of them open */
    quire_slabs_fini(&other);
    quire_disk_close(d[0]);
    kit_remove(dir);
}

/* The directory is moved away while it is open, and another store made in its place: the first one leaves that alone. */
static void directory_is_moved(void **state)
{
    (void)state;
    char *parent = kit_directory(NULL), dir[300], away[300];
    snprintf(dir, sizeof dir, "%s/store", parent);
    snprintf(away, sizeof away, "%s/away", parent);
    quire_store *first = kit_open(dir, 32u << 20, NULL);
    save(first, 0, 2);
    assert_int_equal(rename(dir, away), 0);
    quire_store *second = kit_open(dir, 32u << 20, NULL);
    save(second, 100, 2);
    (void)load(first, 0, 2);
    save(first, 10, 2); /* fails, or goes where the directory is now */
    (void)load(first, 100, 2);
    assert_int_equal(kit_stats(second).disk_objects, 2 * PAGES);
    assert_int_equal(load(second, 100, 2), 2 * PAGES);
    quire_store_close(first);
    assert_int_equal(load(second, 100, 2), 2 * PAGES);
    quire_store_close(second);
    first = kit_open(away, 0, NULL);
    assert_int_equal(load(first, 0, 2), 2 * PAGES); /* moved back or opened there: all is well */
    quire_store_close(first);
    char command[700];
    snprintf(command, sizeof command, "rm -rf '%s' '%s'", dir, away);
    assert_int_equal(system(command), 0);
    kit_remove(parent);
}

/* A relative name means the directory that it meant at first. */
static void process_goes_elsewhere(void **state)
{
    (void)state;
    char *parent = kit_directory(NULL), before[600];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(parent), 0);
    quire_store *store = kit_open("store", 32u << 20, NULL);
    save(store, 0, 1);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(load(store, 0, 1), PAGES);
    save(store, 1, 1);
    assert_int_equal(load(store, 1, 1), PAGES);
    quire_store_close(store);
    assert_int_equal(chdir(before), 0);
    kit_remove(parent);
}

int main(int argc, char **argv)
{
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clock_goes_back),
        cmocka_unit_test(removed_slabs_are_closed),
        cmocka_unit_test(directory_is_moved),
        cmocka_unit_test(process_goes_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
