/* SPDX-License-Identifier: MIT */
/* store: the index: rows of namespaces: what each of them has, and what operators call it. */
#include "store/index_sql.h"

#include <sqlite3.h>

/* Over what does not change with every object. */
static int64_t row_sum(const quire_namespace_row *r)
{
    uint8_t b[32 + QUIRE_TENANT + 2 * QUIRE_NAME + 8];
    memcpy(b, r->root.byte, 32);
    memcpy(b + 32, r->tenant, QUIRE_TENANT);
    memcpy(b + 32 + QUIRE_TENANT, r->tenant_name, QUIRE_NAME);
    memcpy(b + 32 + QUIRE_TENANT + QUIRE_NAME, r->model_name, QUIRE_NAME);
    quire_store64(b + sizeof b - 8, r->named_us);
    return (int64_t)XXH3_64bits(b, sizeof b);
}

static bool read_bytes(sqlite3_stmt *s, int column, void *out, int least, int most)
{
    const void *bytes = sqlite3_column_blob(s, column);
    int n = sqlite3_column_bytes(s, column);
    if (n < least || n > most || (n && !bytes)) return false;
    if (n) memcpy(out, bytes, (size_t)n);
    return true;
}

static uint64_t read_count(sqlite3_stmt *s, int column)
{
    int64_t value = sqlite3_column_int64(s, column);
    return value > 0 ? (uint64_t)value : 0;
}

static quire_index_rc read_row(sqlite3_stmt *s, quire_namespace_row *out)
{
    *out = (quire_namespace_row){.id = sqlite3_column_int64(s, 0)};
    if (!read_bytes(s, 1, out->root.byte, 32, 32) ||
        !read_bytes(s, 2, out->tenant, QUIRE_TENANT, QUIRE_TENANT) ||
        !read_bytes(s, 3, out->tenant_name, 0, QUIRE_NAME - 1) ||
        !read_bytes(s, 4, out->model_name, 0, QUIRE_NAME - 1))
        return QUIRE_INDEX_DAMAGED;
    out->named_us = (uint64_t)sqlite3_column_int64(s, 5);
    out->n = read_count(s, 7);
    out->bytes = read_count(s, 8);
    out->n_pinned = read_count(s, 9);
    return sqlite3_column_int64(s, 6) == row_sum(out) ? QUIRE_INDEX_OK : QUIRE_INDEX_DAMAGED;
}

static quire_index_rc write_row(quire_index *ix, quire_sql which, const quire_namespace_row *r)
{
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_ready(ix, which, &rc);
    if (!s) return rc;
    if (which == QUIRE_SQL_NEW_NAMESPACE) {
        (void)sqlite3_bind_blob(s, 1, r->root.byte, 32, SQLITE_STATIC);
        (void)sqlite3_bind_blob(s, 2, r->tenant, QUIRE_TENANT, SQLITE_STATIC);
    } else {
        (void)sqlite3_bind_int64(s, 1, r->id);
    }
    (void)sqlite3_bind_text(s, 3, r->tenant_name, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(s, 4, r->model_name, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(s, 5, (int64_t)r->named_us);
    (void)sqlite3_bind_int64(s, 6, row_sum(r));
    return quire_index_finish(s);
}

/* A statement with a key of a tenant or a namespace as its first value. */
static sqlite3_stmt *row_by_bytes(quire_index *ix, quire_sql which, const void *bytes, int n,
                                  quire_index_rc *rc)
{
    sqlite3_stmt *s = quire_index_ready(ix, which, rc);
    if (!s) return NULL;
    (void)sqlite3_bind_blob(s, 1, bytes, n, SQLITE_TRANSIENT);
    int step = sqlite3_step(s);
    if (step == SQLITE_ROW) return s;
    int end = sqlite3_reset(s);
    *rc = step == SQLITE_DONE ? QUIRE_INDEX_NONE : quire_index_judge(end ? end : step);
    return NULL;
}

static quire_index_rc find(quire_index *ix, const quire_namespace_row *want, quire_namespace_row *out)
{
    quire_index_rc rc;
    sqlite3_stmt *s = quire_index_ready(ix, QUIRE_SQL_NAMESPACE, &rc);
    if (!s) return rc;
    (void)sqlite3_bind_blob(s, 2, want->tenant, QUIRE_TENANT, SQLITE_TRANSIENT);
    s = row_by_bytes(ix, QUIRE_SQL_NAMESPACE, want->root.byte, 32, &rc);
    if (!s) return rc;
    rc = read_row(s, out);
    (void)sqlite3_reset(s);
    return rc;
}

quire_index_rc quire_index_namespace(quire_index *ix, const quire_namespace_row *row, int64_t *out)
{
    quire_namespace_row own;
    quire_index_rc rc = find(ix, row, &own);
    if (rc == QUIRE_INDEX_NONE) {
        rc = write_row(ix, QUIRE_SQL_NEW_NAMESPACE, row);
        if (!rc) *out = sqlite3_last_insert_rowid(ix->db);
        return rc;
    }
    if (rc) return rc;
    *out = own.id;
    bool has_names = row->tenant_name[0] || row->model_name[0];
    bool differs = memcmp(own.tenant_name, row->tenant_name, QUIRE_NAME) != 0 ||
                   memcmp(own.model_name, row->model_name, QUIRE_NAME) != 0;
    if (!has_names || !differs || row->named_us < own.named_us) return QUIRE_INDEX_OK;
    memcpy(own.tenant_name, row->tenant_name, QUIRE_NAME);
    memcpy(own.model_name, row->model_name, QUIRE_NAME);
    own.named_us = row->named_us;
    return write_row(ix, QUIRE_SQL_NAME_NAMESPACE, &own);
}

quire_index_rc quire_index_next_namespaces(quire_index *ix, int64_t after, quire_namespace_row *out,
                                           uint32_t cap, uint32_t *n)
{
    const int64_t values[] = {after, cap};
    quire_index_rc rc;
    *n = 0;
    sqlite3_stmt *s = quire_index_row(ix, QUIRE_SQL_NEXT_NAMESPACES, values, 2, &rc);
    if (!s) return rc;
    for (int step = SQLITE_ROW; step == SQLITE_ROW && *n < cap && !rc; step = sqlite3_step(s)) {
        rc = read_row(s, &out[*n]);
        if (!rc && out[*n].id <= after) rc = QUIRE_INDEX_DAMAGED; /* a walk that goes back has no end */
        after = out[(*n)++].id;
    }
    int end = sqlite3_reset(s);
    return rc ? rc : quire_index_judge(end);
}

quire_index_rc quire_index_delete_namespace(quire_index *ix, int64_t ns)
{
    return quire_index_run_numbers(ix, QUIRE_SQL_DELETE_NAMESPACE, &ns, 1);
}

quire_index_rc quire_index_last_used(quire_index *ix, int64_t ns, uint64_t *tick)
{
    *tick = 0;
    for (int64_t pinned = 0; pinned < 2; pinned++) {
        const int64_t values[] = {ns, pinned};
        quire_index_rc rc;
        sqlite3_stmt *s = quire_index_row(ix, QUIRE_SQL_LAST_USED, values, 2, &rc);
        if (rc > QUIRE_INDEX_NONE) return rc;
        if (!s) continue;
        uint64_t found = read_count(s, 0);
        if (found > *tick) *tick = found;
        (void)sqlite3_reset(s);
    }
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_in_namespace(quire_index *ix, int64_t ns, quire_entry *out, uint32_t cap,
                                        uint32_t *n)
{
    const int64_t values[] = {ns, QUIRE_RECORD_VERSION, cap};
    return quire_index_entries(ix, QUIRE_SQL_IN_NAMESPACE, values, 3, out, cap, n);
}

quire_index_rc quire_index_root_usage(quire_index *ix, const quire_key *root, uint64_t *n, uint64_t *bytes)
{
    quire_index_rc rc;
    sqlite3_stmt *s = row_by_bytes(ix, QUIRE_SQL_ROOT_USAGE, root->byte, 32, &rc);
    if (!s) return rc;
    *n = read_count(s, 0);
    *bytes = read_count(s, 1);
    (void)sqlite3_reset(s);
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_tenant_bytes(quire_index *ix, const uint8_t tenant[QUIRE_TENANT], uint64_t *bytes)
{
    quire_index_rc rc;
    sqlite3_stmt *s = row_by_bytes(ix, QUIRE_SQL_TENANT_BYTES, tenant, QUIRE_TENANT, &rc);
    if (!s) return rc;
    *bytes = read_count(s, 0);
    (void)sqlite3_reset(s);
    return QUIRE_INDEX_OK;
}

quire_index_rc quire_index_oldest_in(quire_index *ix, int64_t ns, quire_entry *out)
{
    const int64_t values[] = {ns, QUIRE_RECORD_VERSION};
    return quire_index_one_entry(ix, QUIRE_SQL_OLDEST_IN, values, 2, out);
}

quire_index_rc quire_index_oldest_of(quire_index *ix, const uint8_t tenant[QUIRE_TENANT], quire_entry *out,
                                     uint64_t *until)
{
    quire_index_rc rc;
    bool any = false;
    *until = UINT64_MAX;
    sqlite3_stmt *s = row_by_bytes(ix, QUIRE_SQL_OF_TENANT, tenant, QUIRE_TENANT, &rc);
    if (!s) return rc;
    for (int step = SQLITE_ROW; step == SQLITE_ROW; step = sqlite3_step(s)) {
        quire_entry e;
        rc = quire_index_oldest_in(ix, sqlite3_column_int64(s, 0), &e);
        if (rc > QUIRE_INDEX_NONE) break;
        if (rc) continue;
        if (any) {
            uint64_t later = e.tick > out->tick ? e.tick : out->tick;
            if (later < *until) *until = later;
        }
        if (!any || e.tick < out->tick) *out = e;
        any = true;
    }
    int end = sqlite3_reset(s);
    if (rc > QUIRE_INDEX_NONE) return rc;
    return end ? quire_index_judge(end) : any ? QUIRE_INDEX_OK : QUIRE_INDEX_NONE;
}

/* Rows without one: a statement that finds what is wrong. */
static quire_index_rc expect_none(quire_index *ix, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(ix->db, sql, -1, &s, NULL);
    if (!rc) rc = sqlite3_step(s);
    (void)sqlite3_finalize(s);
    return rc == SQLITE_ROW ? QUIRE_INDEX_DAMAGED : quire_index_judge(rc);
}

quire_index_rc quire_index_check_namespaces(quire_index *ix)
{
    quire_namespace_row row = {.id = INT64_MIN};
    uint32_t n = 1;
    quire_index_rc rc = QUIRE_INDEX_OK;
    while (!rc && n) rc = quire_index_next_namespaces(ix, row.id, &row, 1, &n);
    if (rc > QUIRE_INDEX_NONE) return rc;
    /* Limits of tenants and what operators see depend on these counts. */
    rc = expect_none(ix, "SELECT 1 FROM (SELECT ns, count(*) AS n, sum(bytes) AS bytes, sum(pinned) AS pinned"
                         " FROM objects GROUP BY ns) AS o LEFT JOIN namespaces AS s ON s.id = o.ns"
                         " WHERE s.id IS NULL OR s.n != o.n OR s.bytes != o.bytes OR s.pinned != o.pinned");
    if (rc) return rc;
    return expect_none(ix, "SELECT 1 FROM namespaces WHERE n != 0 AND NOT EXISTS"
                           " (SELECT 1 FROM objects WHERE ns = namespaces.id)");
}
