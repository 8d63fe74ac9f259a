/* SPDX-License-Identifier: MIT */
/* store: the index: files, connections, transactions. */
#define _GNU_SOURCE
#include "store/index.h"

#include "store/index_sql.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define APPLICATION 0x51524958 /* "QRIX" */
#define INDEX_VERSION 1u
#define MAX_LENGTH 1000000 /* bounds what damaged lengths can ask for */
#define STUCK_MS 1000u     /* for so long nobody waits behind a lock that did not come */
#define STUCK_WAIT_MS 20u
#define COMMIT_MS 2000u /* what readers may take when a transaction ends */

/* As a user_version, which is signed: version and complement. */
#define MARK(version) ((int)((version) << 16 | (~(version)&0xffffu)))

static const char settings[] =
    "PRAGMA journal_mode=PERSIST;" /* freeing blocks is slow on some file systems, and readers wait */
    "PRAGMA synchronous=OFF;"
    "PRAGMA mmap_size=0;"
    "PRAGMA cell_size_check=ON;"
    "PRAGMA trusted_schema=OFF;"
    "PRAGMA temp_store=MEMORY;"
    "PRAGMA automatic_index=OFF;"
    "PRAGMA cache_size=-4096;"
    "PRAGMA cache_spill=OFF;"; /* it would lock readers out */

/* Rows have their numbers in the order of saving: a chain's rows are neighbours. What lies in a row is covered by its sum, but for
 * recency and pins, which change. */
static const char schema[] =
    "CREATE TABLE head(id INTEGER PRIMARY KEY, value BLOB NOT NULL);"
    "CREATE TABLE namespaces(id INTEGER PRIMARY KEY, root BLOB NOT NULL, tenant BLOB NOT NULL, tenant_name TEXT NOT NULL,"
    " model_name TEXT NOT NULL, named INTEGER NOT NULL, sum INTEGER NOT NULL, n INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " pinned INTEGER NOT NULL, UNIQUE(root, tenant));"
    "CREATE INDEX by_tenant ON namespaces(tenant);"
    "CREATE TABLE objects(id INTEGER PRIMARY KEY, k INTEGER NOT NULL, object BLOB NOT NULL, ns INTEGER NOT NULL,"
    " slab INTEGER NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL, version INTEGER NOT NULL, sum INTEGER NOT NULL,"
    " tick INTEGER NOT NULL, pinned INTEGER NOT NULL);"
    "CREATE INDEX by_key ON objects(k);"
    "CREATE INDEX by_use ON objects(version, tick) WHERE pinned = 0;"
    "CREATE INDEX by_place ON objects(slab, at);"
    "CREATE INDEX by_namespace ON objects(ns, pinned, tick);"
    "CREATE TABLE free(slab INTEGER NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL, sum INTEGER NOT NULL,"
    " PRIMARY KEY(slab, at)) WITHOUT ROWID;"
    "CREATE INDEX free_by_size ON free(bytes);"
    "CREATE TABLE foreign_records(slab INTEGER NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " PRIMARY KEY(slab, at)) WITHOUT ROWID;";

/* ------------------------------------------------------------------- errors */

quire_index_rc quire_index_judge(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE: return QUIRE_INDEX_OK;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return QUIRE_INDEX_BUSY;
    case SQLITE_NOMEM:
    case SQLITE_FULL:
    case SQLITE_INTERRUPT:
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_CANTOPEN: /* no descriptors left, for one */ return QUIRE_INDEX_FAILED;
    case SQLITE_READONLY: return rc == SQLITE_READONLY_DBMOVED ? QUIRE_INDEX_LOST : QUIRE_INDEX_FAILED;
    case SQLITE_IOERR:
        /* What cannot be read is as good as damaged; what cannot be written may be written later. */
        return rc == SQLITE_IOERR_READ || rc == SQLITE_IOERR_SHORT_READ || rc == SQLITE_IOERR_CORRUPTFS
                   ? QUIRE_INDEX_DAMAGED
                   : QUIRE_INDEX_FAILED;
    default: return QUIRE_INDEX_DAMAGED; /* of the schema, too: the statements are right */
    }
}

/* -------------------------------------------------------------- connections */

static int wait_for_others(void *arg, int n)
{
    quire_index *ix = (quire_index *)arg;
    (void)n;
    if (quire_now() >= ix->deadline) return 0;
    (void)usleep(200);
    return 1;
}

void quire_index_init(quire_index *ix, char *path)
{
    *ix = (quire_index){.path = path};
}

void quire_index_close(quire_index *ix)
{
    for (uint32_t i = 0; i < QUIRE_INDEX_STATEMENTS; i++) {
        (void)sqlite3_finalize(ix->statement[i]);
        ix->statement[i] = NULL;
    }
    (void)sqlite3_close_v2(ix->db);
    ix->db = NULL;
    ix->is_writing = false;
}

static int read_number(sqlite3 *db, const char *sql, int *out)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
    if (!rc) rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        *out = sqlite3_column_int(s, 0);
        rc = SQLITE_OK;
    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_CORRUPT;
    }
    int end = sqlite3_finalize(s);
    return rc ? rc : end;
}

/* The file's own format versions. A flipped bit there makes it one that may be read only, for good. */
static bool is_writable(sqlite3 *db)
{
    sqlite3_file *file = NULL;
    uint8_t versions[2] = {0};
    return sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file) == SQLITE_OK && file &&
           file->pMethods && file->pMethods->xRead(file, versions, 2, 18) == SQLITE_OK && versions[0] == 1 &&
           versions[1] == 1;
}

static quire_index_rc check_version(sqlite3 *db)
{
    int application = 0, version = 0;
    int rc = read_number(db, "PRAGMA application_id", &application);
    if (!rc) rc = read_number(db, "PRAGMA user_version", &version);
    if (rc) return quire_index_judge(rc);
    uint32_t known = (uint32_t)version >> 16;
    if (application == APPLICATION && version == MARK(INDEX_VERSION))
        return is_writable(db) ? QUIRE_INDEX_OK : QUIRE_INDEX_DAMAGED;
    return application == APPLICATION && version == MARK(known) ? QUIRE_INDEX_FOREIGN : QUIRE_INDEX_DAMAGED;
}

static quire_index_rc configure(quire_index *ix)
{
    (void)sqlite3_extended_result_codes(ix->db, 1);
    (void)sqlite3_busy_handler(ix->db, wait_for_others, ix);
    (void)sqlite3_db_config(ix->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(ix->db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, NULL);
    /* The schema has none; one that somebody else made may never come to an end. */
    (void)sqlite3_db_config(ix->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    (void)sqlite3_db_config(ix->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    (void)sqlite3_limit(ix->db, SQLITE_LIMIT_LENGTH, MAX_LENGTH);
    return quire_index_judge(sqlite3_exec(ix->db, settings, NULL, NULL, NULL));
}

static bool file_id(const char *path, uint64_t *dev, uint64_t *ino, uint64_t *bytes)
{
    struct stat st;
    if (lstat(path, &st) || !S_ISREG(st.st_mode)) return false;
    *dev = st.st_dev;
    *ino = st.st_ino;
    *bytes = (uint64_t)st.st_size;
    return true;
}

/* SQLite does not open what is no plain file, and would fail for good. */
static void drop_odd_journal(const char *path)
{
    char journal[4200];
    struct stat st;
    (void)snprintf(journal, sizeof journal, "%s-journal", path);
    if (lstat(journal, &st) == 0 && !S_ISREG(st.st_mode)) (void)unlink(journal);
}

/* The file may be replaced while we open it: the same one must be there before and after. */
static quire_index_rc open_once(quire_index *ix)
{
    uint64_t dev, ino, bytes;
    int moved = 1;
    drop_odd_journal(ix->path);
    if (!file_id(ix->path, &ix->dev, &ix->ino, &bytes)) return QUIRE_INDEX_LOST;
    if (!bytes) return QUIRE_INDEX_DAMAGED; /* to SQLite this would be a new database */
    int rc = sqlite3_open_v2(ix->path, &ix->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);
    if (rc) return quire_index_judge(rc);
    quire_index_rc found = configure(ix);
    if (!found) found = check_version(ix->db);
    (void)sqlite3_file_control(ix->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (moved || !file_id(ix->path, &dev, &ino, &bytes) || dev != ix->dev || ino != ix->ino)
        return QUIRE_INDEX_LOST;
    return found;
}

static bool is_current(const quire_index *ix)
{
    uint64_t dev, ino, bytes;
    return file_id(ix->path, &dev, &ino, &bytes) && dev == ix->dev && ino == ix->ino;
}

static quire_index_rc make_sure_it_is_open(quire_index *ix)
{
    quire_index_rc rc = QUIRE_INDEX_OK;
    if (ix->db && is_current(ix)) return QUIRE_INDEX_OK;
    for (int i = 0; i < 3; i++) {
        quire_index_close(ix);
        rc = open_once(ix);
        if (rc != QUIRE_INDEX_LOST) break;
    }
    if (rc) quire_index_close(ix);
    return rc;
}

quire_index_rc quire_index_make(const char *path, const quire_index_head *head)
{
    char fresh[4200], journal[4200];
    quire_index ix;
    (void)snprintf(fresh, sizeof fresh, "%s.new", path);
    (void)snprintf(journal, sizeof journal, "%s.new-journal", path);
    (void)unlink(fresh);
    (void)unlink(journal);
    int fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); /* SQLite gives its files this mode */
    if (fd < 0) return QUIRE_INDEX_FAILED;
    close(fd);
    quire_index_init(&ix, fresh);
    ix.deadline = quire_deadline(1000);
    char marks[120];
    (void)snprintf(marks, sizeof marks, "PRAGMA application_id=%d; PRAGMA user_version=%d;", APPLICATION,
                   MARK(INDEX_VERSION));
    int rc = sqlite3_open_v2(fresh, &ix.db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (!rc) rc = sqlite3_exec(ix.db, "PRAGMA page_size=4096;", NULL, NULL, NULL);
    quire_index_rc made = rc ? quire_index_judge(rc) : configure(&ix);
    if (!made) made = quire_index_judge(sqlite3_exec(ix.db, "BEGIN IMMEDIATE", NULL, NULL, NULL));
    if (!made) made = quire_index_judge(sqlite3_exec(ix.db, schema, NULL, NULL, NULL));
    if (!made) made = quire_index_judge(sqlite3_exec(ix.db, marks, NULL, NULL, NULL));
    if (!made) made = quire_index_write_head(&ix, head);
    if (!made) made = quire_index_judge(sqlite3_exec(ix.db, "COMMIT", NULL, NULL, NULL));
    quire_index_close(&ix);
    /* A journal of the old file must not be taken for one of the new. */
    (void)snprintf(journal, sizeof journal, "%s-journal", path);
    if (!made && unlink(journal) && errno != ENOENT) made = QUIRE_INDEX_FAILED;
    if (!made && rename(fresh, path)) made = QUIRE_INDEX_FAILED;
    if (made) (void)unlink(fresh);
    return made == QUIRE_INDEX_OK ? made : QUIRE_INDEX_FAILED;
}

/* ------------------------------------------------------------- transactions */

quire_index_rc quire_index_begin(quire_index *ix, bool write, uint32_t timeout_ms)
{
    uint64_t now = quire_now();
    if (now < ix->stuck_until && timeout_ms > STUCK_WAIT_MS) timeout_ms = STUCK_WAIT_MS;
    ix->deadline = now + timeout_ms * QUIRE_MS;
    quire_index_rc rc = make_sure_it_is_open(ix);
    if (!rc) rc = quire_index_run(ix, write ? QUIRE_SQL_BEGIN_WRITE : QUIRE_SQL_BEGIN_READ);
    ix->is_writing = !rc && write;
    if (rc == QUIRE_INDEX_FAILED && ix->db && sqlite3_errcode(ix->db) == SQLITE_READONLY)
        quire_index_close(ix); /* looked at again when it is opened */
    if (rc == QUIRE_INDEX_BUSY) ix->stuck_until = quire_now() + STUCK_MS * QUIRE_MS;
    if (!rc && write && !is_current(ix)) { /* replaced between the look and the lock */
        (void)quire_index_end(ix, QUIRE_INDEX_LOST);
        rc = QUIRE_INDEX_LOST;
    }
    return rc;
}

quire_index_rc quire_index_end(quire_index *ix, quire_index_rc rc)
{
    if (!ix->db) return rc;
    quire_index_rc end = QUIRE_INDEX_OK;
    if (!rc && ix->is_writing && !is_current(ix))
        rc = QUIRE_INDEX_LOST; /* never into a file without a name */
    /* Writing pages may have taken longer than what was left: readers get the time to end, however long it took. */
    if (ix->is_writing) ix->deadline = quire_deadline(COMMIT_MS);
    if (!rc) rc = end = quire_index_run(ix, QUIRE_SQL_COMMIT);
    if (rc && !sqlite3_get_autocommit(ix->db)) end = quire_index_run(ix, QUIRE_SQL_ROLLBACK);
    ix->is_writing = false;
    if (rc >= QUIRE_INDEX_LOST || end) quire_index_close(ix); /* whatever it thinks it knows */
    return rc;
}

/* Whether what is taken and what is free lie side by side, within what is in use. */
static quire_index_rc check_places(quire_index *ix)
{
    static const char sql[] =
        "SELECT slab, at, bytes FROM objects UNION ALL SELECT slab, at, bytes FROM free"
        " UNION ALL SELECT slab, at, bytes FROM foreign_records WHERE at > 0 ORDER BY 1, 2";
    sqlite3_stmt *s = NULL;
    quire_index_head h;
    quire_index_rc found = quire_index_read_head(ix, &h);
    if (found) return found;
    int rc = sqlite3_prepare_v2(ix->db, sql, -1, &s, NULL);
    uint64_t slab = 0, end = 0;
    while (!rc && !found && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        uint64_t next = (uint64_t)sqlite3_column_int64(s, 0), at = (uint64_t)sqlite3_column_int64(s, 1);
        if (next != slab) end = QUIRE_BLOCK;
        slab = next;
        if (at < end || slab >= h.next_slab) found = QUIRE_INDEX_DAMAGED;
        end = at + (uint64_t)sqlite3_column_int64(s, 2);
        if (slab == h.slab && end > h.end) found = QUIRE_INDEX_DAMAGED;
        rc = SQLITE_OK;
    }
    (void)sqlite3_finalize(s);
    return found ? found : quire_index_judge(rc);
}

/* Both end, or have the same row. */
static bool same_step(sqlite3_stmt *ours, sqlite3_stmt *right, int *rc)
{
    *rc = sqlite3_step(ours);
    if (sqlite3_step(right) != *rc) return false;
    for (int i = 0; *rc == SQLITE_ROW && i < sqlite3_column_count(right); i++) {
        const char *a = (const char *)sqlite3_column_text(ours, i);
        const char *b = (const char *)sqlite3_column_text(right, i);
        if (!a != !b || (a && strcmp(a, b) != 0)) return false;
    }
    return true;
}

/* Damage in the schema can leave statements that are understood and do something else. */
static quire_index_rc check_schema(quire_index *ix)
{
    static const char sql[] = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid";
    sqlite3 *db = NULL;
    sqlite3_stmt *ours = NULL, *right = NULL;
    quire_index_rc found = QUIRE_INDEX_OK;
    int rc = sqlite3_open_v2(":memory:", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (!rc) rc = sqlite3_exec(db, schema, NULL, NULL, NULL);
    if (!rc) rc = sqlite3_prepare_v2(db, sql, -1, &right, NULL);
    if (rc) found = QUIRE_INDEX_FAILED;
    if (!rc) found = quire_index_judge(rc = sqlite3_prepare_v2(ix->db, sql, -1, &ours, NULL));
    for (rc = SQLITE_ROW; rc == SQLITE_ROW && !found;)
        if (!same_step(ours, right, &rc)) found = QUIRE_INDEX_DAMAGED;
    (void)sqlite3_finalize(ours);
    (void)sqlite3_finalize(right);
    (void)sqlite3_close_v2(db);
    return found;
}

quire_index_rc quire_index_check(quire_index *ix)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(ix->db, "PRAGMA integrity_check(1)", -1, &s, NULL);
    quire_index_rc found = quire_index_judge(rc);
    if (!rc && sqlite3_step(s) == SQLITE_ROW) {
        const unsigned char *text = sqlite3_column_text(s, 0);
        if (!text || strcmp((const char *)text, "ok") != 0) found = QUIRE_INDEX_DAMAGED;
    } else if (!rc) {
        found = quire_index_judge(sqlite3_errcode(ix->db));
    }
    (void)sqlite3_finalize(s);
    if (!found) found = check_schema(ix);
    if (!found) found = quire_index_check_rows(ix);
    return found ? found : check_places(ix);
}
