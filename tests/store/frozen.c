/* SPDX-License-Identifier: MIT */
/*
 * Pages of earlier versions, in tests/golden/frozen/VERSION: an export (store.pages) and a directory (store/). `store.list` says what they
 * hold; the version that wrote them wrote it. An export of any version is imported and loaded. A directory is opened, also after its
 * index or its head file was lost; one of version 0.1 is refused and stays as it is, also without its head file.
 *
 *   store_frozen --write folder     writes both; for a release only (docs/promises.md)
 *
 * It compiles with every version from 0.1 on, as tests/golden/frozen.c does.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/kit/store_kit.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENS 200u
#define WHOLE 192u /* in whole pages */
#define CAP (16u << 20)
#define POLICY "r5/r3,window=a4g32"

static const struct {
    const char *version;
    bool directory_is_read;
} versions[] = {{"0.1", false}, {"0.2", true}};

static const char magic[16] = "QUIRE PAGES 1\n\n";

static void begin(kit_scene *s, quire_store *store)
{
    quire_geometry g = kit_geometry(1, 32, 16);
    kit_scene_begin_with(s, store, &g, POLICY, 11, 0, 0);
}

typedef struct path {
    char text[1400];
} path;

/* Lives until the end of the expression that it is used in. */
static path in(const char *folder, const char *name)
{
    path p;
    KIT_REQUIRE((size_t)snprintf(p.text, sizeof p.text, "%s/%s", folder, name) < sizeof p.text);
    return p;
}

static void read_file(kit_bytes *bytes, const char *name)
{
    uint8_t part[4096];
    FILE *f = fopen(name, "rb");
    if (!f) fprintf(stderr, "%s cannot be opened; QUIRE_GOLDEN names the folder above frozen\n", name);
    KIT_REQUIRE(f);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) kit_write(bytes, part, n);
    fclose(f);
}

/* ------------------------------------------------------------------- write */

static quire_status write_object(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    uint64_t length = n;
    (void)info;
    return fwrite(&length, 8, 1, (FILE *)ctx) == 1 && fwrite(bytes, 1, n, (FILE *)ctx) == n ? QUIRE_OK
                                                                                            : QUIRE_EIO;
}

static int write_all(const char *folder)
{
    kit_scene s;
    uint8_t root[32];
    quire_store *store = kit_open(in(folder, "store").text, CAP, NULL);
    begin(&s, store);
    quire_seq *seq = kit_compute(&s, TOKENS, true);
    KIT_REQUIRE(!quire_store_flush(store, 60000));
    KIT_REQUIRE(!quire_seq_trim(seq, WHOLE));
    FILE *f = fopen(in(folder, "store.list").text, "w");
    KIT_REQUIRE(f);
    quire_namespace_root(s.ns, root);
    fprintf(f, "# Written by store_frozen --write of version %s; tests/store/frozen.c reads it.\nroot ",
            quire_version());
    for (int i = 0; i < 32; i++) fprintf(f, "%02x", root[i]);
    fprintf(f, "\nrows %016" PRIx64 "\n", kit_rows_hash(&s.g, seq));
    fclose(f);
    f = fopen(in(folder, "store.pages").text, "wb");
    KIT_REQUIRE(f && fwrite(magic, 1, sizeof magic, f) == sizeof magic);
    KIT_REQUIRE(!quire_store_each(store, 1, write_object, f) && !fclose(f));
    quire_seq_destroy(seq);
    kit_scene_end(&s);
    quire_store_close(store);
    return 0;
}

/* ------------------------------------------------------------------- read */

typedef struct wanted {
    char folder[1200], root[65];
    uint64_t rows;
} wanted;

static wanted read_list(const char *version)
{
    const char *golden = getenv("QUIRE_GOLDEN");
    wanted w;
    char line[256];
    snprintf(w.folder, sizeof w.folder, "%s/frozen/%s", golden ? golden : "tests/golden", version);
    FILE *f = fopen(in(w.folder, "store.list").text, "r");
    KIT_REQUIRE(f && fgets(line, sizeof line, f));
    KIT_REQUIRE(fscanf(f, " root %64s rows %" SCNx64, w.root, &w.rows) == 2);
    fclose(f);
    return w;
}

/* The pages of the prompt, as the version that saved them had them. An index that is made anew has them after a moment. */
static void expect_pages(quire_store *store, const wanted *w, const char *what)
{
    kit_scene s;
    uint8_t root[32];
    char text[65];
    begin(&s, store);
    quire_namespace_root(s.ns, root);
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", root[i]);
    assert_string_equal(text, w->root);
    quire_seq *seq = kit_load(&s, TOKENS, 60000);
    for (int i = 0; i < 500 && quire_seq_length(seq) != WHOLE; i++) {
        usleep(20000);
        quire_seq_destroy(seq);
        seq = kit_load(&s, TOKENS, 60000);
    }
    if (quire_seq_length(seq) != WHOLE) fail_msg("%s: %u tokens, not %u", what, quire_seq_length(seq), WHOLE);
    if (kit_rows_hash(&s.g, seq) != w->rows) fail_msg("%s: other rows", what);
    quire_seq_destroy(seq);
    kit_scene_end(&s);
    printf("%s: the same rows\n", what);
}

static void check_export(const wanted *w)
{
    kit_bytes b = {0};
    uint32_t n_objects = 0, n_refused = 0;
    char *dir = kit_directory(NULL);
    quire_store *store = kit_open(dir, CAP, NULL);
    read_file(&b, in(w->folder, "store.pages").text);
    assert_true(b.n > sizeof magic);
    assert_memory_equal(b.data, magic, sizeof magic);
    for (size_t at = sizeof magic; at < b.n; n_objects++) {
        uint64_t n;
        assert_true(b.n - at >= 8);
        memcpy(&n, b.data + at, 8);
        at += 8;
        assert_true(n <= b.n - at);
        if (n_objects == 0) /* every byte of an object counts */
            for (size_t i = 0; i < n; i++) {
                b.data[at + i] = (uint8_t)(b.data[at + i] ^ 1u << (i * 5 % 8));
                n_refused += quire_store_put_object(store, b.data + at, n) != QUIRE_OK;
                b.data[at + i] = (uint8_t)(b.data[at + i] ^ 1u << (i * 5 % 8));
                if (n_refused != i + 1) fail_msg("an object is accepted with byte %zu changed", i);
            }
        assert_int_equal(quire_store_put_object(store, b.data + at, n), QUIRE_OK);
        at += n;
    }
    printf("%u objects; one of them with each of its %u bytes changed: refused\n", n_objects, n_refused);
    expect_pages(store, w, "the export");
    quire_store_close(store);
    kit_remove(dir);
    kit_bytes_free(&b);
}

static uint64_t hash_file(uint64_t hash, const char *name)
{
    kit_bytes b = {0};
    read_file(&b, name);
    for (size_t i = 0; i < b.n; i++) hash = (hash ^ b.data[i]) * 0x100000001b3u;
    kit_bytes_free(&b);
    return hash;
}

/* Calls one() for each file of a directory; the sum does not depend on their order. */
static uint64_t each_file(const char *directory, uint64_t (*one)(const char *from, const char *to),
                          const char *to)
{
    uint64_t sum = 0;
    DIR *dir = opendir(directory);
    KIT_REQUIRE(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') sum += one(in(directory, e->d_name).text, in(to, e->d_name).text);
    closedir(dir);
    return sum;
}

/* With the mode that the store gives its files; git does not keep it. */
static uint64_t copy_file(const char *from, const char *to)
{
    kit_bytes b = {0};
    read_file(&b, from);
    int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    KIT_REQUIRE(fd >= 0 && write(fd, b.data, b.n) == (ssize_t)b.n && !close(fd));
    kit_bytes_free(&b);
    return 1;
}

static uint64_t sum_file(const char *from, const char *to)
{
    (void)to;
    return hash_file(0xcbf29ce484222325u, from);
}

static void check_directory(const wanted *w, bool is_read, const char *lost)
{
    char *dir = kit_directory(NULL), what[64];
    char message[512] = "";
    quire_store *store = NULL;
    assert_true(each_file(in(w->folder, "store").text, copy_file, dir) > 0);
    if (lost) KIT_REQUIRE(!unlink(in(dir, lost).text));
    quire_store_options o = kit_options(dir, CAP, NULL);
    o.message = message, o.message_size = sizeof message;
    uint64_t before = each_file(dir, sum_file, dir);
    quire_status status = quire_store_open(&store, &o);
    snprintf(what, sizeof what, "the directory%s%s", lost ? " without " : "", lost ? lost : "");
    if (is_read) {
        if (status) fail_msg("%s: %s: %s", what, quire_status_name(status), message);
        expect_pages(store, w, what);
        quire_store_close(store);
    } else {
        assert_int_equal(status, QUIRE_EVERSION);
        assert_true(strlen(message) > 20);
        if (each_file(dir, sum_file, dir) != before) fail_msg("%s was refused and changed", what);
        printf("%s is refused: %s\n", what, strrchr(message, '/') ? strrchr(message, '/') : message);
    }
    kit_remove(dir);
}

static void frozen(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        printf("version %s\n", versions[i].version);
        wanted w = read_list(versions[i].version);
        check_export(&w);
        check_directory(&w, versions[i].directory_is_read, NULL);
        check_directory(&w, versions[i].directory_is_read, "quire-store");
        if (versions[i].directory_is_read) check_directory(&w, true, "index");
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write")) return write_all(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(frozen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
