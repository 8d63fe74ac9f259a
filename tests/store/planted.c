/* SPDX-License-Identifier: MIT */
/* Things that lie in the directory and should not: what a power failure left of the head file, and other kinds of files under the
 * names of ours. The store opens, saves and loads, or refuses in a sentence; nothing outside of the directory is touched; nothing
 * hangs. */
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

/* ------------------------------------------------------------------ outside */

/* What planted links lead to, in a directory of its own: nothing, a file, a directory with a file in it, and the store's own file that
 * had the name. */
enum { NOTHING, FILE_OUTSIDE, DIRECTORY, OWN, TARGETS };
static const char *const targets[TARGETS] = {"nothing", "file", "directory", "own"};

typedef struct outside {
    char *dir;
    struct stat st[5]; /* of what is there */
    uint8_t *bytes[5];
} outside;

/* The directory itself, all names in it and in its directory. */
static const char *const seen[] = {".", "file", "directory", "directory/file", "own"};

static char *outside_path(const outside *o, const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", o->dir, name);
    return path;
}

static void outside_begin(outside *o)
{
    uint8_t bytes[20000];
    *o = (outside){.dir = kit_directory(NULL)};
    assert_int_equal(mkdir(outside_path(o, "directory"), 0750), 0);
    for (uint32_t i = 0; i < 2; i++) {
        FILE *f = fopen(outside_path(o, i ? "directory/file" : "file"), "wb");
        assert_non_null(f);
        memset(bytes, (int)(i + 1), sizeof bytes);
        assert_true(fwrite(bytes, sizeof bytes, 1, f) == 1 && fclose(f) == 0);
        assert_int_equal(chmod(outside_path(o, i ? "directory/file" : "file"), 0640), 0);
    }
}

static uint8_t *read_bytes(const char *path, size_t n)
{
    uint8_t *bytes = (uint8_t *)malloc(n + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOATIME);
    assert_true(bytes && fd >= 0);
    assert_int_equal(read(fd, bytes, n + 1), n);
    close(fd);
    return bytes;
}

/* From now on nothing may change. The times lie in the past: what reads a file changes that of its last use. */
static void outside_watch(outside *o)
{
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    for (uint32_t i = 0; i < 5; i++) {
        char *path = outside_path(o, seen[i]);
        free(o->bytes[i]);
        o->bytes[i] = NULL;
        o->st[i] = (struct stat){0};
        if (lstat(path, &o->st[i])) continue;
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
        assert_int_equal(lstat(path, &o->st[i]), 0);
        if (S_ISREG(o->st[i].st_mode)) o->bytes[i] = read_bytes(path, (size_t)o->st[i].st_size);
    }
}

static bool is_same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static void outside_is_untouched(const outside *o, const char *name, const char *target)
{
    for (uint32_t i = 0; i < 5; i++) {
        const struct stat *was = &o->st[i];
        char *path = outside_path(o, seen[i]);
        struct stat st = {0};
        (void)lstat(path, &st);
        if (st.st_ino != was->st_ino || st.st_mode != was->st_mode || st.st_uid != was->st_uid ||
            st.st_gid != was->st_gid || st.st_nlink != was->st_nlink || st.st_size != was->st_size ||
            st.st_blocks != was->st_blocks)
            fail_msg("%s links to %s: \"%s\" is another file, or has another mode or size", name, target,
                     seen[i]);
        if (!is_same_time(st.st_mtim, was->st_mtim) || !is_same_time(st.st_ctim, was->st_ctim) ||
            !is_same_time(st.st_atim, was->st_atim))
            fail_msg("%s links to %s: \"%s\" was read or changed", name, target, seen[i]);
        if (!o->bytes[i]) continue;
        uint8_t *bytes = read_bytes(path, (size_t)was->st_size);
        assert_memory_equal(bytes, o->bytes[i], (size_t)was->st_size);
        free(bytes);
    }
    struct stat st;
    assert_int_not_equal(lstat(outside_path(o, "nothing"), &st), 0);
}

static void outside_end(outside *o)
{
    for (uint32_t i = 0; i < 5; i++) free(o->bytes[i]);
    kit_remove(o->dir);
}

/* ----------------------------------------------------------------- planting */

static void plant(const char *dir, const char *name, const char *what)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)unlink(path);
    if (!strcmp(what, "fifo")) assert_int_equal(mkfifo(path, 0600), 0);
    if (!strcmp(what, "directory")) assert_int_equal(mkdir(path, 0700), 0);
    if (!strcmp(what, "zeros")) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && ftruncate(fd, 64) == 0);
        close(fd);
    }
}

/* A link in place of the file of this name. What it leads to is watched from now on. */
static void plant_link(const char *dir, const char *name, outside *o, int target)
{
    char path[600], other[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(other, sizeof other, "%s/%s", o->dir, targets[target]);
    if (target == OWN) (void)rename(path, other);
    (void)unlink(path);
    assert_int_equal(symlink(other, path), 0);
    outside_watch(o);
}

static void head_of_zeros(void **state)
{
    (void)state;
    char *dir = kit_directory(NULL);
    plant(dir, "quire-store", "zeros");
    use(dir, 1);
    kit_remove(dir);
}

/* Where the next slab would be made, and where one was. */
static void slabs(void **state)
{
    static const char *const kinds[] = {"fifo", "directory"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = kit_directory(NULL);
        plant(dir, "slab-00000001", kinds[i]);
        alarm(600);
        use(dir, 1);
        plant(dir, "slab-00000002", kinds[i]);
        use(dir, 2);
        alarm(0);
        kit_remove(dir);
    }
}

static void index_files(void **state)
{
    static const char *const names[] = {"index", "index-journal", "index.new"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char *dir = kit_directory(NULL);
        use(dir, 1);
        plant(dir, names[i], "fifo");
        alarm(600);
        use(dir, 2);
        alarm(0);
        kit_remove(dir);
    }
}

/* The file of limits: what cannot be read is as good as none. */
static void limits(void **state)
{
    static const char *const kinds[] = {"fifo", "directory"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char *dir = kit_directory(NULL);
        use(dir, 1);
        plant(dir, "quotas", kinds[i]);
        alarm(600);
        use(dir, 2);
        alarm(0);
        kit_remove(dir);
    }
}

/* Every name of ours as a link: used, with a limit set, trimmed, opened again, and with an index that is made anew. */
static void links(void **state)
{
    static const char *const names[] = {"slab-00000001", "slab-00000002",     "index",  "index-journal",
                                        "index.new",     "index.new-journal", "quotas", "quotas.new"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int target = 0; target < TARGETS; target++) {
            outside o;
            char *dir = kit_directory(NULL), path[600];
            uint8_t tenant[16];
            kit_tenant_id(2, tenant);
            outside_begin(&o);
            if (target == OWN) { /* with all files that a store has */
                quire_store *store = kit_open(dir, KIT_CAP, NULL);
                assert_int_equal(quire_store_set_quota(store, tenant, 1 << 30), QUIRE_OK);
                quire_store_close(store);
                use(dir, 1);
            }
            alarm(600);
            if (i % 2) use(dir, 1);
            plant_link(dir, names[i], &o, target);
            use(dir, 2);
            quire_store *store = kit_open(dir, KIT_CAP, NULL);
            (void)quire_store_set_quota(store, tenant, 1 << 29);
            assert_int_equal(quire_store_gc(store, 0, 0, NULL), QUIRE_OK);
            quire_store_close(store);
            use(dir, 3);
            outside_is_untouched(&o, names[i], targets[target]);
            snprintf(path, sizeof path, "%s/index", dir);
            (void)unlink(path);
            plant_link(dir, names[i], &o, target == OWN ? NOTHING : target);
            use(dir, 4);
            alarm(0);
            outside_is_untouched(&o, names[i], targets[target]);
            kit_remove(dir);
            outside_end(&o);
        }
}

/* Refused in a sentence that names the file. */
static void refuses(const char *dir, const char *name)
{
    char message[300] = "";
    quire_store_options options = kit_options(dir, KIT_CAP, NULL);
    quire_store *store = NULL;
    options.message = message;
    options.message_size = sizeof message;
    alarm(600);
    assert_int_equal(quire_store_open(&store, &options), QUIRE_EIO);
    alarm(0);
    assert_non_null(strstr(message, name));
}

/* A link in place of the head file is not followed, and not removed. */
static void head_elsewhere(void **state)
{
    (void)state;
    for (int target = 0; target < TARGETS; target++) {
        outside o;
        char *dir = kit_directory(NULL);
        outside_begin(&o);
        use(dir, 1);
        plant_link(dir, "quire-store", &o, target);
        refuses(dir, "quire-store");
        outside_is_untouched(&o, "quire-store", targets[target]);
        kit_remove(dir);
        outside_end(&o);
    }
}

/* They are not removed. */
static void directories(void **state)
{
    static const char *const names[] = {"quire-store", "index", "index-journal", "index.new",
                                        "index.new-journal"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *dir = kit_directory(NULL), path[600];
        use(dir, 1);
        snprintf(path, sizeof path, "%s/index", dir);
        (void)unlink(path);
        plant(dir, names[i], "directory");
        refuses(dir, i ? "index" : names[i]);
        kit_remove(dir);
    }
    char *dir = kit_directory(NULL);
    plant(dir, "quire-store", "fifo");
    refuses(dir, "quire-store");
    kit_remove(dir);
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
    plant(dir, "slab-00000001", "fifo");
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
        plant(dir, names[i], "zeros");
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
        cmocka_unit_test(links),         cmocka_unit_test(head_elsewhere), cmocka_unit_test(directories),
        cmocka_unit_test(limits),        cmocka_unit_test(open_slab),      cmocka_unit_test(endless_index),
        cmocka_unit_test(far_slabs),     cmocka_unit_test(name_with_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
