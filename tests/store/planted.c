/* SPDX-License-Identifier: MIT */
/* Things that lie in the directory and should not: what a power failure left of the head file, and other kinds of files under the
 * names of ours. The store opens, saves and loads; nothing outside of the directory is touched; nothing hangs. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/file_kit.h"
#include "store/kit/tenant_kit.h"
#include "store/record.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES 20000u
#define PAGES 4u

/* Opens, saves and loads, in this process. */
static void use(const char *dir, uint64_t text)
{
    kit_raw raw;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, text, PAGES);
    assert_int_equal(quire_store_flush(store, 20000), 0);
    assert_int_equal(kit_raw_load(&raw, text, PAGES, 5000), PAGES);
    kit_raw_end(&raw);
    quire_store_close(store);
}

static void plant(const char *dir, const char *name, const char *what, const char *target)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)unlink(path);
    if (!strcmp(what, "fifo")) assert_int_equal(mkfifo(path, 0600), 0);
    if (!strcmp(what, "directory")) assert_int_equal(mkdir(path, 0700), 0);
    if (!strcmp(what, "link")) assert_int_equal(symlink(target, path), 0);
    if (!strcmp(what, "zeros")) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && ftruncate(fd, 64) == 0);
        close(fd);
    }
}

static void head_of_zeros(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    plant(dir, "quire-store", "zeros", NULL);
    use(dir, 1);
    kit_remove(dir);
}

/* Where the next slab would be made, and where one was. */
static void slabs(void **state)
{
    static const char *const kinds[] = {"fifo", "directory", "link"};
    (void)state;
    char *outside = kit_directory(NULL), target[600];
    struct stat st;
    snprintf(target, sizeof target, "%s/target", outside);
    for (int i = 0; i < 3; i++) {
        char *dir = kit_directory(NULL);
        plant(dir, "slab-00000001", kinds[i], target);
        alarm(600);
        use(dir, 1);
        plant(dir, "slab-00000002", kinds[i], target);
        use(dir, 2);
        alarm(0);
        assert_int_not_equal(stat(target, &st), 0);
        kit_remove(dir);
    }
    kit_remove(outside);
}

static void index_files(void **state)
{
    (void)state;
    char *outside = kit_directory(NULL), target[600];
    struct stat st;
    snprintf(target, sizeof target, "%s/target", outside);
    static const char *const kinds[] = {"link", "fifo"}, *const names[] = {"index", "index-journal",
                                                                           "index.new"};
    for (int i = 0; i < 6; i++) {
        char *dir = kit_directory(NULL);
        use(dir, 1);
        plant(dir, names[i / 2], kinds[i % 2], target);
        alarm(600);
        use(dir, 2);
        alarm(0);
        assert_int_not_equal(stat(target, &st), 0);
        kit_remove(dir);
    }
    kit_remove(outside);
}

/* The file of limits: what cannot be read is as good as none. */
static void limits(void **state)
{
    static const char *const kinds[] = {"fifo", "directory", "link"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char *dir = kit_directory(NULL);
        use(dir, 1);
        plant(dir, "quotas", kinds[i], "/dev/zero");
        alarm(600);
        use(dir, 2);
        alarm(0);
        kit_remove(dir);
    }
}

/* A slab that is open, and then something else under its name: the second load opens the file once more, for the page cache. */
static void open_slab(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    kit_raw raw;
    quire_store *store = kit_open(dir, KIT_CAP, NULL);
    kit_raw_begin(&raw, store, BYTES);
    kit_raw_save(&raw, 1, PAGES);
    assert_int_equal(quire_store_flush(store, 20000), 0);
    assert_int_equal(kit_raw_load(&raw, 1, PAGES, 5000), PAGES);
    plant(dir, "slab-00000001", "fifo", NULL);
    alarm(600);
    for (int i = 0; i < 3; i++) (void)kit_raw_load(&raw, 1, PAGES, 5000);
    kit_raw_end(&raw);
    quire_store_close(store);
    alarm(0);
    kit_remove(dir);
}

/* Views and triggers in the index, which would never come to an end. */
static void endless_index(void **state)
{
    static const char *const plants[] = {
        "ALTER TABLE head RENAME TO other; CREATE VIEW head AS SELECT o.id, o.value FROM other AS o, endless",
        "CREATE TRIGGER t AFTER INSERT ON objects BEGIN SELECT sum(x) FROM endless; END",
    };
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = kit_directory(NULL), path[600];
        sqlite3 *db;
        use(dir, 1);
        snprintf(path, sizeof path, "%s/index", dir);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db,
                                      "CREATE VIEW endless AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL"
                                      " SELECT x + 1 FROM c) SELECT x FROM c WHERE x < 0",
                                      NULL, NULL, NULL),
                         SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, plants[i], NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        alarm(600);
        use(dir, 2);
        alarm(0);
        kit_remove(dir);
    }
}

/* Numbers of slabs that no store has come to: an index that is made anew does not count up to them. */
static void far_slabs(void **state)
{
    static const char *const names[] = {"slab-ffffffff", "slab-fffffffe", "slab-3fffffff", "slab-00000000"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char *dir = kit_directory(NULL), path[600];
        use(dir, 1);
        plant(dir, names[i], "zeros", NULL);
        snprintf(path, sizeof path, "%s/index", dir);
        assert_int_equal(unlink(path), 0);
        kit_raw raw;
        quire_store *store = kit_open(dir, 0, NULL);
        kit_wait_for_scan(store);
        kit_raw_begin(&raw, store, BYTES);
        kit_raw_save(&raw, 2, PAGES);
        assert_int_equal(quire_store_flush(store, 20000), 0);
        for (uint64_t t = 1; t < 3; t++) assert_int_equal(kit_raw_load(&raw, t, PAGES, 5000), PAGES);
        kit_raw_end(&raw);
        quire_store_close(store);
        kit_remove(dir);
    }
}

/* A record with something behind the end of a name: the index would keep less than what its sum is of. */
static void name_with_tail(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL), path[600];
    uint8_t key[32], block[QUIRE_BLOCK], header[QUIRE_OBJECT_HEADER];
    quire_record r;
    quire_place place = {.slab = 1, .at = QUIRE_BLOCK};
    quire_allocator a = quire_mem_allocator(NULL);
    use(dir, 1);
    snprintf(path, sizeof path, "%s/slab-00000001", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(pread(fd, key, sizeof key, 24) == 32 &&
                pread(fd, block, sizeof block, QUIRE_BLOCK) == QUIRE_BLOCK);
    quire_mac *mac = quire_mac_create(&a, key);
    assert_int_equal(quire_record_read(&r, block, mac, &place), QUIRE_MISS_NONE);
    memcpy(header, block + QUIRE_RECORD_OBJECT, sizeof header);
    memcpy(r.tenant_name, "a\0b", 4);
    assert_true(quire_record_write(block, mac, &r, header));
    assert_int_equal(pwrite(fd, block, sizeof block, QUIRE_BLOCK), QUIRE_BLOCK);
    close(fd);
    quire_mac_destroy(mac);
    snprintf(path, sizeof path, "%s/index", dir);
    assert_int_equal(unlink(path), 0);
    quire_store *store = kit_open(dir, 0, NULL);
    kit_wait_for_scan(store);
    assert_int_equal(kit_usage_get(store).n, 1);
    quire_store_close(store);
    use(dir, 2);
    kit_remove(dir);
}

int main(int argc, char **argv)
{
    if (argc == 2) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_of_zeros), cmocka_unit_test(slabs),          cmocka_unit_test(index_files),
        cmocka_unit_test(limits),        cmocka_unit_test(open_slab),      cmocka_unit_test(endless_index),
        cmocka_unit_test(far_slabs),     cmocka_unit_test(name_with_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
