/* SPDX-License-Identifier: MIT */
/* store: inside of the index: its statements. */
#ifndef QUIRE_STORE_INDEX_SQL_H
#define QUIRE_STORE_INDEX_SQL_H

#include "store/index.h"

#define QUIRE_ENTRY_COLUMNS "id, object, ns, slab, at, bytes, version, sum, tick, pinned"

#define QUIRE_NAMESPACE_COLUMNS "id, root, tenant, tenant_name, model_name, named, sum, n, bytes, pinned"

#define QUIRE_SQL_LIST(X)                                                                                    \
    X(BEGIN_READ, "BEGIN")                                                                                   \
    X(BEGIN_WRITE, "BEGIN IMMEDIATE")                                                                        \
    X(COMMIT, "COMMIT")                                                                                      \
    X(ROLLBACK, "ROLLBACK")                                                                                  \
    X(READ_HEAD, "SELECT value FROM head WHERE id = 1")                                                      \
    X(WRITE_HEAD, "INSERT OR REPLACE INTO head(id, value) VALUES(1, ?1)")                                    \
    X(FIND, "SELECT " QUIRE_ENTRY_COLUMNS " FROM objects INDEXED BY by_key WHERE k = ?1")                    \
    X(OLDEST, "SELECT " QUIRE_ENTRY_COLUMNS " FROM objects INDEXED BY by_use"                                \
              " WHERE pinned = 0 AND version = ?1 ORDER BY tick LIMIT 1")                                    \
    X(NEWEST, "SELECT tick FROM objects INDEXED BY by_use"                                                   \
              " WHERE pinned = 0 AND version = ?1 ORDER BY tick DESC LIMIT 1")                               \
    X(NEXT, "SELECT " QUIRE_ENTRY_COLUMNS " FROM objects WHERE id > ?1 ORDER BY id LIMIT ?2")                \
    X(BEFORE, "SELECT " QUIRE_ENTRY_COLUMNS " FROM objects INDEXED BY by_place"                              \
              " WHERE slab = ?1 AND at < ?2 ORDER BY at DESC LIMIT 1")                                       \
    X(IN_SLAB, "SELECT 1 FROM objects INDEXED BY by_place WHERE slab = ?1 LIMIT 1")                          \
    X(FOREIGN_IN_SLAB, "SELECT 1 FROM foreign_records WHERE slab = ?1 LIMIT 1")                              \
    X(INSERT, "INSERT INTO objects(k, object, ns, slab, at, bytes, version, sum, tick, pinned)"              \
              " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")                                            \
    X(DELETE, "DELETE FROM objects WHERE id = ?1")                                                           \
    X(TOUCH, "UPDATE objects SET tick = ?2 WHERE id = ?1")                                                   \
    X(PIN, "UPDATE objects SET pinned = ?2 WHERE id = ?1")                                                   \
    X(VERSION, "UPDATE objects SET version = ?2, sum = ?3 WHERE id = ?1")                                    \
    X(NAMESPACE, "SELECT " QUIRE_NAMESPACE_COLUMNS " FROM namespaces WHERE root = ?1 AND tenant = ?2")       \
    X(NEW_NAMESPACE,                                                                                         \
      "INSERT INTO namespaces(root, tenant, tenant_name, model_name, named, sum, n, bytes, pinned)"          \
      " VALUES(?1, ?2, ?3, ?4, ?5, ?6, 0, 0, 0)")                                                            \
    X(NAME_NAMESPACE,                                                                                        \
      "UPDATE namespaces SET tenant_name = ?3, model_name = ?4, named = ?5, sum = ?6 WHERE id = ?1")         \
    X(COUNT_NAMESPACE,                                                                                       \
      "UPDATE namespaces SET n = n + ?2, bytes = bytes + ?3, pinned = pinned + ?4 WHERE id = ?1")            \
    X(NEXT_NAMESPACES,                                                                                       \
      "SELECT " QUIRE_NAMESPACE_COLUMNS " FROM namespaces WHERE id > ?1 ORDER BY id LIMIT ?2")               \
    X(DELETE_NAMESPACE, "DELETE FROM namespaces WHERE id = ?1 AND n <= 0")                                   \
    X(LAST_USED, "SELECT tick FROM objects INDEXED BY by_namespace WHERE ns = ?1 AND pinned = ?2"            \
                 " ORDER BY tick DESC LIMIT 1")                                                              \
    X(IN_NAMESPACE, "SELECT " QUIRE_ENTRY_COLUMNS " FROM objects INDEXED BY by_namespace"                    \
                    " WHERE ns = ?1 AND version = ?2 LIMIT ?3")                                              \
    X(OLDEST_IN, "SELECT " QUIRE_ENTRY_COLUMNS " FROM objects INDEXED BY by_namespace"                       \
                 " WHERE ns = ?1 AND pinned = 0 AND version = ?2 ORDER BY tick LIMIT 1")                     \
    X(ROOT_USAGE, "SELECT coalesce(sum(n), 0), coalesce(sum(bytes), 0) FROM namespaces WHERE root = ?1")     \
    X(TENANT_BYTES, "SELECT coalesce(sum(bytes), 0) FROM namespaces INDEXED BY by_tenant WHERE tenant = ?1") \
    X(OF_TENANT, "SELECT id FROM namespaces INDEXED BY by_tenant WHERE tenant = ?1 AND n > 0")               \
    X(FREE_BEFORE, "SELECT slab, at, bytes, sum FROM free WHERE slab = ?1 AND at < ?2"                       \
                   " ORDER BY at DESC LIMIT 1")                                                              \
    X(FREE_AT, "SELECT slab, at, bytes, sum FROM free WHERE slab = ?1 AND at = ?2")                          \
    X(FREE_FROM,                                                                                             \
      "SELECT slab, at, bytes, sum FROM free WHERE (slab, at) >= (?1, ?2) ORDER BY slab, at LIMIT 1")        \
    X(FREE_FIT, "SELECT slab, at, bytes, sum FROM free INDEXED BY free_by_size"                              \
                " WHERE bytes >= ?1 ORDER BY bytes LIMIT 1")                                                 \
    X(FREE_LARGEST, "SELECT slab, at, bytes, sum FROM free INDEXED BY free_by_size"                          \
                    " ORDER BY bytes DESC LIMIT 1")                                                          \
    X(FREE_ADD, "INSERT INTO free(slab, at, bytes, sum) VALUES(?1, ?2, ?3, ?4)")                             \
    X(FREE_DELETE, "DELETE FROM free WHERE slab = ?1 AND at = ?2")                                           \
    X(FREE_IN_SLAB, "SELECT total(bytes) FROM free WHERE slab = ?1")                                         \
    X(FREE_DROP_SLAB, "DELETE FROM free WHERE slab = ?1")                                                    \
    X(FOREIGN_ADD, "INSERT OR IGNORE INTO foreign_records(slab, at, bytes) VALUES(?1, ?2, ?3)")

typedef enum quire_sql {
#define QUIRE_SQL_ENUM(name, text) QUIRE_SQL_##name,
    QUIRE_SQL_LIST(QUIRE_SQL_ENUM)
#undef QUIRE_SQL_ENUM
        QUIRE_SQL_COUNT
} quire_sql;

quire_index_rc quire_index_judge(int sqlite_rc);

/* Ready to be given values; NULL and *rc if it cannot be had. */
sqlite3_stmt *quire_index_ready(quire_index *ix, quire_sql which, quire_index_rc *rc);
/* Values 1 to n. */
void quire_index_numbers(sqlite3_stmt *s, const int64_t *values, int n);
/* Runs it without result. */
quire_index_rc quire_index_finish(sqlite3_stmt *s);
/* One row: OK and the statement stays on it until it is reset. */
sqlite3_stmt *quire_index_row(quire_index *ix, quire_sql which, const int64_t *values, int n,
                              quire_index_rc *rc);
quire_index_rc quire_index_run_numbers(quire_index *ix, quire_sql which, const int64_t *values, int n);
/* Rows of objects. */
quire_index_rc quire_index_read_entry(sqlite3_stmt *s, quire_entry *out);
quire_index_rc quire_index_one_entry(quire_index *ix, quire_sql which, const int64_t *values, int n,
                                     quire_entry *out);
quire_index_rc quire_index_entries(quire_index *ix, quire_sql which, const int64_t *values, int n_values,
                                   quire_entry *out, uint32_t cap, uint32_t *n);
/* Whether rows of namespaces and their counts are right. */
quire_index_rc quire_index_check_namespaces(quire_index *ix);
/* A statement without values. */
quire_index_rc quire_index_run(quire_index *ix, quire_sql which);
/* Whether every row has its right sum. */
quire_index_rc quire_index_check_rows(quire_index *ix);

#endif
