/* SPDX-License-Identifier: MIT */
/* store: the index: rows. */
#include "store/index_sql.h"

#include <sqlite3.h>

_Static_assert(QUIRE_SQL_COUNT <= QUIRE_INDEX_STATEMENTS, "room for the statements");

static const char *const texts[] = {
#define TEXT(name, text) text,
    QUIRE_SQL_LIST(TEXT)
#undef TEXT
};

/* --------------------------------------------------------------- statements */

sqlite3_stmt *quire_index_ready(quire_index *ix, quire_sql which, quire_index_rc *rc)
{
    sqlite3_stmt **s = &ix->statement[which];
    *rc = QUIRE_INDEX_OK;
    if (!*s)
        *rc = quire_index_judge(
            sqlite3_prepare_v3(ix->db, texts[which], -1, SQLITE_PREPARE_PERSISTENT, s, NULL));
    return *rc ? NULL : *s;
}

void quire_index_numbers(sqlite3_stmt *s, const int64_t *values, int n)
{
    for (int i = 0; i < n; i++) (void)sqlite3_bind_int64(s, i + 1, values[i]);
}

quire_index_rc quire_index_finish(sqlite3_stmt *s)
{
    int rc = sqlite3_step(s), end = sqlite3_reset(s);
    (void)sqlite3_clear_bindings(s);
    return rc == SQLITE_DONE ? QUIRE_INDEX_OK : quire_index_judge(end ? end : rc);
}

quire_index_rc quire_index_run(quire_index *ix, quire_sql which)
{
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_ready(ix, which, &rc);
    return s ? quire_index_finish(s) : rc;
}

quire_index_rc quire_index_run_numbers(quire_index *ix, quire_sql which, const int64_t *values, int n)
{
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_ready(ix, which, &rc);
    if (!s) return rc;
    quire_index_numbers(s, values, n);
    return quire_index_finish(s);
}

sqlite3_stmt *quire_index_row(quire_index *ix, quire_sql which, const int64_t *values, int n,
                              quire_index_rc *rc)
{
    sqlite3_stmt *s = quire_index_ready(ix, which, rc);
    if (!s) return NULL;
    quire_index_numbers(s, values, n);
    int step = sqlite3_step(s);
    if (step == SQLITE_ROW) return s;
    int end = sqlite3_reset(s);
    *rc = step == SQLITE_DONE ? QUIRE_INDEX_NONE : quire_index_judge(end ? end : step);
    return NULL;
}

static void done(sqlite3_stmt *s)
{
    (void)sqlite3_reset(s);
}

/* --------------------------------------------------------------------- head */

#define HEAD_NUMBERS 15u

quire_index_rc quire_index_read_head(quire_index *ix, quire_index_head *out)
{
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_row(ix, QUIRE_SQL_READ_HEAD, NULL, 0, &rc);
    if (!s) return rc == QUIRE_INDEX_NONE ? QUIRE_INDEX_DAMAGED : rc;
    const uint8_t *b = (const uint8_t *)sqlite3_column_blob(s, 0);
    uint64_t v[HEAD_NUMBERS];
    if (!b || sqlite3_column_bytes(s, 0) != 8 * (int)(HEAD_NUMBERS + 1) ||
        quire_load64(b + 8 * HEAD_NUMBERS) != XXH3_64bits(b, 8 * HEAD_NUMBERS))
        rc = QUIRE_INDEX_DAMAGED;
    for (uint32_t i = 0; i < HEAD_NUMBERS && !rc; i++) v[i] = quire_load64(b + 8 * i);
    done(s);
    if (!rc)
        *out = (quire_index_head){v[0], v[1], v[2],  v[3],  v[4],  v[5],  v[6], v[7],
                                  v[8], v[9], v[10], v[11], v[12], v[13], v[14]};
    return rc;
}

quire_index_rc quire_index_write_head(quire_index *ix, const quire_index_head *h)
{
    const uint64_t v[HEAD_NUMBERS] = {h->cap_bytes, h->live_bytes,      h->free_bytes,    h->n_objects,
                                      h->n_pinned,  h->n_foreign,       h->foreign_bytes, h->slab,
                                      h->end,       h->next_slab,       h->scan_slab,     h->scan_at,
                                      h->scan_end,  h->unscanned_bytes, h->boot};
    uint8_t b[8 * (HEAD_NUMBERS + 1)];
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_ready(ix, QUIRE_SQL_WRITE_HEAD, &rc);
    if (!s) return rc;
    for (uint32_t i = 0; i < HEAD_NUMBERS; i++) quire_store64(b + 8 * i, v[i]);
    quire_store64(b + 8 * HEAD_NUMBERS, XXH3_64bits(b, 8 * HEAD_NUMBERS));
    (void)sqlite3_bind_blob(s, 1, b, sizeof b, SQLITE_STATIC);
    return quire_index_finish(s);
}

/* ------------------------------------------------------------------ objects */

static int64_t short_key(const quire_key *object)
{
    return (int64_t)quire_load64(object->byte);
}

static int64_t entry_sum(const quire_entry *e)
{
    uint8_t b[64];
    memcpy(b, e->object.byte, 32);
    quire_store32(b + 32, e->place.slab);
    quire_store32(b + 36, e->version);
    quire_store64(b + 40, e->place.at);
    quire_store64(b + 48, e->place.bytes);
    quire_store64(b + 56, (uint64_t)e->ns);
    return (int64_t)XXH3_64bits(b, sizeof b);
}

quire_index_rc quire_index_read_entry(sqlite3_stmt *s, quire_entry *out)
{
    const void *object = sqlite3_column_blob(s, 1);
    if (!object || sqlite3_column_bytes(s, 1) != 32) return QUIRE_INDEX_DAMAGED;
    out->id = sqlite3_column_int64(s, 0);
    memcpy(out->object.byte, object, 32);
    out->ns = sqlite3_column_int64(s, 2);
    out->place = (quire_place){(uint32_t)sqlite3_column_int64(s, 3), (uint64_t)sqlite3_column_int64(s, 4),
                               (uint64_t)sqlite3_column_int64(s, 5)};
    out->version = (uint32_t)sqlite3_column_int64(s, 6);
    out->tick = (uint64_t)sqlite3_column_int64(s, 8);
    out->is_pinned = sqlite3_column_int64(s, 9) != 0;
    return sqlite3_column_int64(s, 7) == entry_sum(out) ? QUIRE_INDEX_OK : QUIRE_INDEX_DAMAGED;
}

quire_index_rc quire_index_one_entry(quire_index *ix, quire_sql which, const int64_t *values, int n,
                                     quire_entry *out)
{
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_row(ix, which, values, n, &rc);
    if (!s) return rc;
    rc = quire_index_read_entry(s, out);
    done(s);
    return rc;
}

quire_index_rc quire_index_find(quire_index *ix, const quire_key *object, quire_entry *out)
{
    const int64_t k = short_key(object);
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_row(ix, QUIRE_SQL_FIND, &k, 1, &rc);
    if (!s) return rc;
    for (int step = SQLITE_ROW; step == SQLITE_ROW && !rc; step = sqlite3_step(s)) {
        rc = quire_index_read_entry(s, out);
        if (!rc && quire_key_equal(&out->object, object)) {
            done(s);
            return QUIRE_INDEX_OK;
        }
        if (!rc && short_key(&out->object) != k)
            rc = QUIRE_INDEX_DAMAGED; /* the tree says so, the row does not */
    }
    int end = sqlite3_reset(s);
    return rc ? rc : end ? quire_index_judge(end) : QUIRE_INDEX_NONE;
}

quire_index_rc quire_index_oldest(quire_index *ix, quire_entry *out)
{
    const int64_t version = QUIRE_RECORD_VERSION;
    return quire_index_one_entry(ix, QUIRE_SQL_OLDEST, &version, 1, out);
}

quire_index_rc quire_index_entries(quire_index *ix, quire_sql which, const int64_t *values, int n_values,
                                   quire_entry *out, uint32_t cap, uint32_t *n)
{
    quire_index_rc rc;
    *n = 0;
    sqlite3_stmt *s = quire_index_row(ix, which, values, n_values, &rc);
    if (!s) return rc;
    for (int step = SQLITE_ROW; step == SQLITE_ROW && *n < cap && !rc; step = sqlite3_step(s))
        rc = quire_index_read_entry(s, &out[(*n)++]);
    int end = sqlite3_reset(s);
    return rc ? rc : quire_index_judge(end);
}

quire_index_rc quire_index_newest(quire_index *ix, uint64_t *tick)
{
    const int64_t version = QUIRE_RECORD_VERSION;
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_row(ix, QUIRE_SQL_NEWEST, &version, 1, &rc);
    if (!s) return rc;
    *tick = (uint64_t)sqlite3_column_int64(s, 0);
    done(s);
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_next(quire_index *ix, int64_t after, quire_entry *out, uint32_t cap, uint32_t *n)
{
    const int64_t values[] = {after, cap};
    quire_index_rc rc = quire_index_entries(ix, QUIRE_SQL_NEXT, values, 2, out, cap, n);
    /* Numbers are in no sum, and a walk that goes back would have no end. */
    for (uint32_t i = 0; i < *n && !rc; i++) {
        if (out[i].id <= after) rc = QUIRE_INDEX_DAMAGED;
        after = out[i].id;
    }
    return rc;
}

static quire_index_rc count_namespace(quire_index *ix, const quire_entry *e, int64_t sign)
{
    const int64_t values[] = {e->ns, sign, sign * (int64_t)e->place.bytes, sign * e->is_pinned};
    return quire_index_run_numbers(ix, QUIRE_SQL_COUNT_NAMESPACE, values, 4);
}

quire_index_rc quire_index_insert(quire_index *ix, const quire_entry *e)
{
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_ready(ix, QUIRE_SQL_INSERT, &rc);
    if (!s) return rc;
    const int64_t values[] = {
        short_key(&e->object),   0,          e->ns,        e->place.slab,    (int64_t)e->place.at,
        (int64_t)e->place.bytes, e->version, entry_sum(e), (int64_t)e->tick, e->is_pinned};
    quire_index_numbers(s, values, 10);
    (void)sqlite3_bind_blob(s, 2, e->object.byte, 32, SQLITE_STATIC);
    rc = quire_index_finish(s);
    return rc ? rc : count_namespace(ix, e, 1);
}

quire_index_rc quire_index_delete(quire_index *ix, const quire_entry *e)
{
    quire_index_rc rc = quire_index_run_numbers(ix, QUIRE_SQL_DELETE, &e->id, 1);
    if (!rc) rc = count_namespace(ix, e, -1);
    /* Tenants come and go: without this, each of them would leave a row for good. */
    return rc ? rc : quire_index_delete_namespace(ix, e->ns);
}

quire_index_rc quire_index_touch(quire_index *ix, int64_t id, uint64_t tick)
{
    const int64_t values[] = {id, (int64_t)tick};
    return quire_index_run_numbers(ix, QUIRE_SQL_TOUCH, values, 2);
}

quire_index_rc quire_index_pin(quire_index *ix, const quire_entry *e, bool pinned)
{
    const int64_t values[] = {e->id, pinned}, counts[] = {e->ns, 0, 0, pinned - e->is_pinned};
    quire_index_rc rc = quire_index_run_numbers(ix, QUIRE_SQL_PIN, values, 2);
    return rc ? rc : quire_index_run_numbers(ix, QUIRE_SQL_COUNT_NAMESPACE, counts, 4);
}

quire_index_rc quire_index_set_version(quire_index *ix, const quire_entry *e, uint32_t version)
{
    quire_entry changed = *e;
    changed.version = version;
    const int64_t values[] = {e->id, version, entry_sum(&changed)};
    return quire_index_run_numbers(ix, QUIRE_SQL_VERSION, values, 3);
}

quire_index_rc quire_index_covers(quire_index *ix, const quire_place *place)
{
    const int64_t values[] = {place->slab, (int64_t)(place->at + place->bytes)};
    quire_entry e;
    quire_index_rc rc = quire_index_one_entry(ix, QUIRE_SQL_BEFORE, values, 2, &e);
    if (rc) return rc;
    return e.place.at + e.place.bytes > place->at ? QUIRE_INDEX_OK : QUIRE_INDEX_NONE;
}

quire_index_rc quire_index_slab_is_used(quire_index *ix, uint32_t slab)
{
    const int64_t value = slab;
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_row(ix, QUIRE_SQL_IN_SLAB, &value, 1, &rc);
    if (!s && rc == QUIRE_INDEX_NONE) s = quire_index_row(ix, QUIRE_SQL_FOREIGN_IN_SLAB, &value, 1, &rc);
    if (s) done(s);
    return rc;
}

/* --------------------------------------------------------------- free space */

static int64_t place_sum(const quire_place *p)
{
    uint8_t b[24];
    quire_store64(b, p->slab);
    quire_store64(b + 8, p->at);
    quire_store64(b + 16, p->bytes);
    return (int64_t)XXH3_64bits(b, sizeof b);
}

static quire_index_rc read_place(sqlite3_stmt *s, quire_place *out)
{
    *out = (quire_place){(uint32_t)sqlite3_column_int64(s, 0), (uint64_t)sqlite3_column_int64(s, 1),
                         (uint64_t)sqlite3_column_int64(s, 2)};
    return sqlite3_column_int64(s, 3) == place_sum(out) ? QUIRE_INDEX_OK : QUIRE_INDEX_DAMAGED;
}

static quire_index_rc one_place(quire_index *ix, quire_sql which, const int64_t *values, int n,
                                quire_place *out)
{
    quire_index_rc rc;
    *out = (quire_place){0};
    sqlite3_stmt *s = quire_index_row(ix, which, values, n, &rc);
    if (!s) return rc;
    if (read_place(s, out)) rc = QUIRE_INDEX_DAMAGED;
    done(s);
    return rc;
}

static quire_index_rc put_free(quire_index *ix, const quire_place *p)
{
    const int64_t values[] = {p->slab, (int64_t)p->at, (int64_t)p->bytes, place_sum(p)};
    return quire_index_run_numbers(ix, QUIRE_SQL_FREE_ADD, values, 4);
}

static quire_index_rc delete_free(quire_index *ix, const quire_place *p)
{
    const int64_t values[] = {p->slab, (int64_t)p->at};
    return quire_index_run_numbers(ix, QUIRE_SQL_FREE_DELETE, values, 2);
}

quire_index_rc quire_index_add_free(quire_index *ix, const quire_place *place)
{
    quire_place whole = *place, other;
    const int64_t before[] = {place->slab, (int64_t)place->at};
    const int64_t after[] = {place->slab, (int64_t)(place->at + place->bytes)};
    quire_index_rc rc = one_place(ix, QUIRE_SQL_FREE_BEFORE, before, 2, &other);
    if (!rc && other.at + other.bytes > place->at) return QUIRE_INDEX_DAMAGED; /* free already */
    if (!rc && other.at + other.bytes == place->at) {
        whole.at = other.at;
        whole.bytes += other.bytes;
        rc = delete_free(ix, &other);
    }
    if (rc > QUIRE_INDEX_NONE) return rc;
    rc = one_place(ix, QUIRE_SQL_FREE_AT, after, 2, &other);
    if (!rc) {
        whole.bytes += other.bytes;
        rc = delete_free(ix, &other);
    }
    return rc > QUIRE_INDEX_NONE ? rc : put_free(ix, &whole);
}

quire_index_rc quire_index_take_free(quire_index *ix, uint64_t bytes, quire_place *out)
{
    const int64_t least = (int64_t)bytes;
    quire_place run;
    quire_index_rc rc = one_place(ix, QUIRE_SQL_FREE_FIT, &least, 1, &run);
    if (!rc) rc = delete_free(ix, &run);
    if (rc) return rc;
    *out = (quire_place){run.slab, run.at, bytes};
    run.at += bytes;
    run.bytes -= bytes;
    return run.bytes ? put_free(ix, &run) : QUIRE_INDEX_OK;
}

quire_index_rc quire_index_take_largest(quire_index *ix, quire_place *out)
{
    quire_index_rc rc = one_place(ix, QUIRE_SQL_FREE_LARGEST, NULL, 0, out);
    return rc ? rc : delete_free(ix, out);
}

quire_index_rc quire_index_take_free_from(quire_index *ix, uint32_t slab, uint64_t at, quire_place *out)
{
    const int64_t values[] = {slab, (int64_t)at};
    quire_index_rc rc = one_place(ix, QUIRE_SQL_FREE_BEFORE, values, 2, out);
    if (rc > QUIRE_INDEX_NONE) return rc;
    if (rc || out->at + out->bytes <= at) rc = one_place(ix, QUIRE_SQL_FREE_FROM, values, 2, out);
    return rc ? rc : delete_free(ix, out);
}

quire_index_rc quire_index_drop_free(quire_index *ix, uint32_t slab, uint64_t *bytes)
{
    const int64_t value = slab;
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_row(ix, QUIRE_SQL_FREE_IN_SLAB, &value, 1, &rc);
    if (!s) return rc;
    int64_t sum = sqlite3_column_int64(s, 0); /* of rows whose sums nobody has looked at */
    *bytes = sum > 0 ? (uint64_t)sum : 0;
    done(s);
    return quire_index_run_numbers(ix, QUIRE_SQL_FREE_DROP_SLAB, &value, 1);
}

quire_index_rc quire_index_add_foreign(quire_index *ix, const quire_place *p)
{
    const int64_t values[] = {p->slab, (int64_t)p->at, (int64_t)p->bytes};
    return quire_index_run_numbers(ix, QUIRE_SQL_FOREIGN_ADD, values, 3);
}

/* -------------------------------------------------------------------- check */

static quire_index_rc check_entry(sqlite3_stmt *s)
{
    quire_entry e;
    quire_index_rc rc = quire_index_read_entry(s, &e);
    return rc || sqlite3_column_int64(s, 10) == short_key(&e.object) ? rc : QUIRE_INDEX_DAMAGED;
}

static quire_index_rc check_free(sqlite3_stmt *s)
{
    quire_place p;
    return read_place(s, &p);
}

static quire_index_rc check_table(quire_index *ix, const char *sql, quire_index_rc (*check)(sqlite3_stmt *))
{
    sqlite3_stmt *s = NULL;
    quire_index_rc found = QUIRE_INDEX_OK;
    int rc = sqlite3_prepare_v2(ix->db, sql, -1, &s, NULL);
    while (!rc && !found && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        found = check(s);
        rc = SQLITE_OK;
    }
    (void)sqlite3_finalize(s);
    return found ? found : quire_index_judge(rc);
}

quire_index_rc quire_index_check_rows(quire_index *ix)
{
    quire_index_rc rc = check_table(ix, "SELECT " QUIRE_ENTRY_COLUMNS ", k FROM objects", check_entry);
    if (!rc) rc = check_table(ix, "SELECT slab, at, bytes, sum FROM free", check_free);
    return rc ? rc : quire_index_check_namespaces(ix);
}
