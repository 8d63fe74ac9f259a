/* SPDX-License-Identifier: MIT */
/* The check of an index: finds rows and parts of the schema that SQLite takes for good. */
#define _GNU_SOURCE
#include "store/index.h"
#include "store/kit/file_kit.h"
#include "store/kit/sqlite_kit.h"

#include <pthread.h>
#include <sqlite3.h>
#include <string.h>
#include <unistd.h>

static const char *const changes[] = {
    NULL, /* nothing */
    "UPDATE objects SET sum = sum + 1 WHERE id = 2",
    "UPDATE objects SET ns = 7 WHERE id = 2",
    "UPDATE namespaces SET bytes = bytes + 1",
    "UPDATE objects SET version = 9 WHERE id = 2",
    "UPDATE objects SET k = k + 1 WHERE id = 2",
    "UPDATE objects SET slab = -1 WHERE id = 2",
    "UPDATE objects SET at = 9223372036854771712 WHERE id = 2",
    "UPDATE objects SET bytes = -4096 WHERE id = 2",
    "UPDATE objects SET object = x'00' WHERE id = 2",
    "UPDATE free SET sum = sum + 1",
    "UPDATE free SET bytes = bytes + 4096",
    "DELETE FROM head",
    "CREATE INDEX another ON objects(bytes)",
    "DROP INDEX by_namespace",
};

static void make(char *path)
{
    quire_index ix;
    quire_index_head h = {.cap_bytes = 1 << 30, .slab = 1, .end = 100 * 4096, .next_slab = 2, .n_objects = 5};
    KIT_REQUIRE(!quire_index_make(path, &h));
    quire_index_init(&ix, path);
    KIT_REQUIRE(!quire_index_begin(&ix, true, 1000));
    quire_namespace_row row = {.root.byte = {7}};
    int64_t ns;
    KIT_REQUIRE(!quire_index_namespace(&ix, &row, &ns));
    for (uint32_t i = 0; i < 5; i++) {
        quire_entry e = {.object.byte = {(uint8_t)(i + 1), 1, 2, 3},
                         .ns = ns,
                         .place = {1, 4096 + i * 8192, 8192},
                         .version = QUIRE_RECORD_VERSION,
                         .tick = i + 1};
        KIT_REQUIRE(!quire_index_insert(&ix, &e));
    }
    KIT_REQUIRE(!quire_index_add_free(&ix, &(quire_place){1, 4096 + 5 * 8192, 8192}));
    KIT_REQUIRE(!quire_index_end(&ix, QUIRE_INDEX_OK));
    quire_index_close(&ix);
}

static uint32_t n_namespaces(quire_index *ix)
{
    quire_namespace_row rows[4];
    uint32_t n;
    KIT_REQUIRE(quire_index_next_namespaces(ix, 0, rows, 4, &n) <= QUIRE_INDEX_NONE);
    return n;
}

/* The row of a namespace goes with its last object, and comes back with its next one. */
static void forget_empty(char *path)
{
    quire_index ix;
    quire_entry entries[8];
    quire_namespace_row row = {.root.byte = {7}};
    uint32_t n;
    int64_t ns;
    make(path);
    quire_index_init(&ix, path);
    KIT_REQUIRE(!quire_index_begin(&ix, true, 1000));
    KIT_REQUIRE(!quire_index_next(&ix, 0, entries, 8, &n) && n == 5);
    for (uint32_t i = 0; i < n; i++) {
        KIT_REQUIRE(n_namespaces(&ix) == 1);
        KIT_REQUIRE(!quire_index_delete(&ix, &entries[i]));
    }
    KIT_REQUIRE(n_namespaces(&ix) == 0);
    KIT_REQUIRE(!quire_index_namespace(&ix, &row, &ns));
    entries[0].ns = ns;
    KIT_REQUIRE(!quire_index_insert(&ix, &entries[0]) && n_namespaces(&ix) == 1);
    KIT_REQUIRE(!quire_index_check(&ix));
    KIT_REQUIRE(!quire_index_end(&ix, QUIRE_INDEX_OK));
    quire_index_close(&ix);
}

static quire_index_rc check(char *path)
{
    quire_index ix;
    quire_index_init(&ix, path);
    quire_index_rc rc = quire_index_begin(&ix, false, 1000);
    if (!rc) rc = quire_index_end(&ix, quire_index_check(&ix));
    quire_index_close(&ix);
    return rc;
}

/* Single bits of what SQLite's file format says is in use. Behind the first page, whose texts SQLite reads as it likes, each
 * one is noticed. */
static void flip_bits(char *path)
{
    size_t n;
    uint32_t n_flips = 0, n_seen = 0;
    make(path);
    uint8_t *part = kit_sqlite_parts(path, &n);
    for (size_t i = 4096 * 8; i < n * 8; i += 11) {
        if (part[i / 8] == KIT_PART_UNUSED) continue;
        kit_flip_bit(path, i / 8, (uint32_t)(i % 8));
        bool seen = check(path) != QUIRE_INDEX_OK;
        kit_flip_bit(path, i / 8, (uint32_t)(i % 8));
        if (!seen) fprintf(stderr, "bit %zu of byte %zu is not noticed\n", i % 8, i / 8);
        n_flips++;
        n_seen += seen;
    }
    free(part);
    printf("%u bits of trees and rows flipped, %u noticed\n", n_flips, n_seen);
    KIT_REQUIRE(n_flips > 200 && n_seen == n_flips);
    KIT_REQUIRE(check(path) == QUIRE_INDEX_OK);
}

/* A bit that makes the file one that a later SQLite may write to, and this one may not: nothing could be saved for good. */
static void flip_write_version(char *path)
{
    quire_index ix;
    make(path);
    quire_index_init(&ix, path);
    KIT_REQUIRE(!quire_index_begin(&ix, true, 1000) && !quire_index_end(&ix, QUIRE_INDEX_OK));
    kit_flip_bit(path, 18, 5);
    kit_flip_bit(path, 27, 0); /* as if another process had written: what is cached is read again */
    quire_index_rc rc = QUIRE_INDEX_OK;
    for (int i = 0; i < 3 && rc != QUIRE_INDEX_DAMAGED; i++) {
        rc = quire_index_begin(&ix, true, 1000);
        if (!rc) (void)quire_index_end(&ix, QUIRE_INDEX_OK);
    }
    KIT_REQUIRE(rc == QUIRE_INDEX_DAMAGED);
    quire_index_close(&ix);
}

/* A bit of a row's own number, which is in no sum: a walk over all rows must come to an end. */
static void flip_row_number(char *path)
{
    enum { ROWS = 300, STEP = 128 };
    quire_index ix;
    quire_index_head h = {.cap_bytes = 1 << 30, .slab = 1, .end = 4096 + ROWS * 8192, .next_slab = 2};
    quire_entry e = {.version = QUIRE_RECORD_VERSION}, out[STEP];
    KIT_REQUIRE(!quire_index_make(path, &h));
    quire_index_init(&ix, path);
    KIT_REQUIRE(!quire_index_begin(&ix, true, 1000));
    quire_namespace_row row = {.root.byte = {7}};
    KIT_REQUIRE(!quire_index_namespace(&ix, &row, &e.ns));
    quire_key last = {0};
    for (uint32_t i = 0; i < ROWS; i++) {
        memset(e.object.byte, 0x55, 32);
        quire_store32(e.object.byte + 8, i);
        e.place = (quire_place){1, 4096 + i * 8192, 8192};
        e.tick = i + 1;
        if (i == STEP - 1) last = e.object;
        KIT_REQUIRE(!quire_index_insert(&ix, &e));
    }
    KIT_REQUIRE(!quire_index_end(&ix, QUIRE_INDEX_OK));
    quire_index_close(&ix);
    /* Before the key: the short key, and a row's header of twelve bytes; before these the number, 128. */
    uint64_t at = kit_find_bytes(path, 0, last.byte, 32);
    KIT_REQUIRE(at != UINT64_MAX);
    KIT_REQUIRE(kit_find_bytes(path, at - 22, "\x81\0\x0c", 3) == at - 22);
    kit_flip_bit(path, at - 22, 0);
    quire_index_init(&ix, path);
    KIT_REQUIRE(!quire_index_begin(&ix, false, 1000));
    int64_t after = INT64_MIN;
    uint32_t n = STEP, n_steps = 0;
    quire_index_rc rc = QUIRE_INDEX_OK;
    for (; !rc && n == STEP && n_steps < 10; n_steps++) {
        rc = quire_index_next(&ix, after, out, STEP, &n);
        after = out[n ? n - 1 : 0].id;
    }
    (void)quire_index_end(&ix, rc);
    quire_index_close(&ix);
    KIT_REQUIRE(n_steps < 10 && rc == QUIRE_INDEX_DAMAGED);
}

static void *read_a_while(void *arg)
{
    quire_index *ix = (quire_index *)arg;
    usleep(400000);
    KIT_REQUIRE(!quire_index_end(ix, QUIRE_INDEX_OK));
    return NULL;
}

/* A transaction that took longer than its own time limit is committed all the same, when a reader has ended. */
static void commit_late(char *path)
{
    quire_index writer, reader;
    quire_index_head h;
    pthread_t thread;
    make(path);
    quire_index_init(&writer, path);
    quire_index_init(&reader, path);
    KIT_REQUIRE(!quire_index_begin(&writer, true, 100) && !quire_index_read_head(&writer, &h));
    KIT_REQUIRE(!quire_index_begin(&reader, false, 100) && !quire_index_read_head(&reader, &h));
    usleep(200000);
    KIT_REQUIRE(!pthread_create(&thread, NULL, read_a_while, &reader));
    h.cap_bytes += 4096;
    KIT_REQUIRE(!quire_index_write_head(&writer, &h) && !quire_index_end(&writer, QUIRE_INDEX_OK));
    pthread_join(thread, NULL);
    quire_index_close(&writer);
    quire_index_close(&reader);
}

int main(void)
{
    char *dir = kit_directory(NULL), path[600];
    snprintf(path, sizeof path, "%s/index", dir);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        sqlite3 *db;
        make(path);
        KIT_REQUIRE(sqlite3_open(path, &db) == SQLITE_OK);
        if (changes[i] && sqlite3_exec(db, changes[i], NULL, NULL, NULL)) {
            fprintf(stderr, "%s: %s\n", changes[i], sqlite3_errmsg(db));
            return 1;
        }
        sqlite3_close(db);
        quire_index_rc rc = check(path);
        if (rc != (changes[i] ? QUIRE_INDEX_DAMAGED : QUIRE_INDEX_OK)) {
            fprintf(stderr, "%s: found %d\n", changes[i] ? changes[i] : "unchanged", rc);
            return 1;
        }
    }
    commit_late(path);
    forget_empty(path);
    /* Free space that cannot be is no space. */
    sqlite3 *db;
    quire_index ix;
    uint64_t bytes = 1;
    make(path);
    KIT_REQUIRE(sqlite3_open(path, &db) == SQLITE_OK);
    KIT_REQUIRE(!sqlite3_exec(db, "UPDATE free SET bytes = -9000000000000000000", NULL, NULL, NULL));
    sqlite3_close(db);
    quire_index_init(&ix, path);
    KIT_REQUIRE(!quire_index_begin(&ix, true, 1000) && !quire_index_drop_free(&ix, 1, &bytes) && !bytes);
    KIT_REQUIRE(!quire_index_end(&ix, QUIRE_INDEX_OK));
    quire_index_close(&ix);
    /* A flipped bit in the schema, which SQLite still understands. */
    static const char *const words[] = {"sum INTEGER", "tick INTEGER", "foreign_records", "pinned = 0"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        make(path);
        uint64_t at = kit_find_bytes(path, 0, words[i], strlen(words[i]));
        KIT_REQUIRE(at < 4096);
        kit_flip_bit(path, at + strlen(words[i]) - 1, 0);
        quire_index_rc rc = check(path);
        if (rc != QUIRE_INDEX_DAMAGED) {
            fprintf(stderr, "%s: found %d\n", words[i], rc);
            return 1;
        }
    }
    flip_row_number(path);
    flip_write_version(path);
    flip_bits(path);
    kit_remove(dir);
    return 0;
}
